"""Lines of code of each room, beside the figures of ``size.txt``: CI fails when a room has more.

    python packaging/size.py            # compare
    python packaging/size.py --write    # keep what has become smaller

A line of code is one that is neither blank, nor comment, nor docstring; tables that the product
reads count too, and generated files do not. A figure goes up only by a separate commit, by hand,
with a message that names the gain of the user.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = Path(__file__).with_name("size.txt")
ROOMS = (
    *("pool", "consensus", "remoting", "monitoring", "cli", "simulations"),
    *("src", "packaging", "tests"),
)
OTHER_CODE = (".c", ".h", ".cu", ".js", ".css", ".html", ".sh", ".txt")
LEAVE_OUT = re.compile(r"packaging/size.txt|tests/testdata/|monitoring/web/vendor/|.*/generated_")
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def python_lines(text: str) -> int:
    """Return how many lines have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # Docstrings, and the texts below constants and attributes.
        match node:
            case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=int(last)):
                lines.difference_update(range(first, last + 1))
            case _:
                pass
    return len(lines - {0})


def other_lines(text: str) -> int:
    """Return how many lines of another language are neither blank nor comments alone."""
    count, within = 0, False
    for line in map(str.strip, text.splitlines()):
        within = within or line.startswith("/*")
        count += bool(line) and not within and not line.startswith(("//", "#!", "# "))
        within = within and "*/" not in line
    return count


def counted() -> Counter[str]:
    """Return the lines of each room; a room is a folder of a top folder, and the tests are one."""
    found: Counter[str] = Counter()
    for path in (path for top in ROOMS for path in (ROOT / top).rglob("*.*")):
        name = path.relative_to(ROOT).as_posix()
        if LEAVE_OUT.match(name) or not path.is_file():
            continue
        room = "tests" if name.startswith("tests/") else "/".join(Path(name).parent.parts[:2])
        if path.suffix == ".py":
            found[room] += python_lines(path.read_text())
        elif path.suffix in OTHER_CODE:
            found[room] += other_lines(path.read_text())
    return found


def main() -> None:
    """Compare the counts of lines, or keep the smaller ones."""
    now = counted()
    rows = (line.split() for line in FIGURES.read_text().splitlines() if line[:1] != "#")
    kept = {room: int(lines) for room, lines in rows}
    changed = {room: now[room] - kept.get(room, 0) for room in sorted({*now, *kept})}
    for room, by in changed.items():
        if by:
            sys.stdout.write(f"{room:28} {kept.get(room, 0):7} {by:+6}\n")
    product = sum(lines for room, lines in now.items() if room != "tests")
    tests = changed.get("tests", 0)
    sys.stdout.write(
        f"the product has {product} lines of code ({sum(changed.values()) - tests:+}), "
        f"the tests {now['tests']} ({tests:+})\n"
    )
    if "--write" in sys.argv:
        figures = {room: min(lines, kept.get(room, lines)) for room, lines in sorted(now.items())}
        head = "# Lines of code of each room; size.py says when a figure may go up.\n"
        FIGURES.write_text(head + "".join(f"{r} {n}\n" for r, n in figures.items()))
    elif grown := [room for room, by in changed.items() if by > 0]:
        sys.exit(
            f"more lines than size.txt has: {', '.join(grown)}. Take as many from what nobody uses,"
            " or raise the figure by a commit of its own that says what the user gets for it"
        )


if __name__ == "__main__":
    main()
