"""docs/errors.md, made of the source: ``error_sentences.py [--check]`` prints or compares it.

Every error that a user may see is a ``GpupoolError``, made in one place with what happened, why and
a hint. So the page is read from the syntax of those places, and no program runs for it.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "errors.md"
ROOMS = ("cli", "consensus", "monitoring", "pool", "remoting")
PARTS = ("what", "why", "hint")
HEAD = """\
# Error sentences

This file is generated from the source (`make docs`), and `make lint` compares it. It lists each
error that has a hint, by kind, and the hint in italics. A word in capitals stands for a name, a
number or a reason of the moment, and `…` for a longer text.
[Troubleshooting](troubleshooting.md) explains the common ones.

The command line prints the sentence on stderr, its reason below it, and then the hint. With
`--json` it prints `{"error": {"code", "message", "hint"}}`, where `code` is the word in the
heading. `gpupool run` and `gpupool shell` exit with 125 instead of 1 and 3.
"""


@dataclass(slots=True)
class Kind:
    """A class of errors: its code for programs, its exit code, and its meaning."""

    name: str
    base: str
    code: str = ""
    exit_code: str = ""
    meaning: str = ""
    sentences: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


def main() -> None:
    """Print the page, or compare it with the one that is there."""
    made = page()
    if "--check" not in sys.argv[1:]:
        sys.stdout.write(made)
    elif made != PAGE.read_text(encoding="utf-8"):
        sys.exit(
            f"{PAGE.relative_to(ROOT)} is not what the source says: write it anew with make docs"
        )


def kinds_with_sentences() -> dict[str, Kind]:
    """Return all kinds of errors, each with its sentences and their hints."""
    trees = dict(sources())
    kinds = kinds_of(trees.values())
    for tree in trees.values():
        for name, sentence, hint in sentences_of(tree, kinds):
            kinds[name].sentences.add((sentence, hint))
    return kinds


def all_rows() -> list[tuple[str, str]]:
    """Return each sentence with its hint, those that no page has too."""
    return sorted({row for kind in kinds_with_sentences().values() for row in kind.sentences})


def page() -> str:
    """Return docs/errors.md as it must be.

    A sentence without a hint is left out: it tells a reader of the page nothing that it did not
    tell on the terminal.
    """
    kinds = kinds_with_sentences()
    codes = exit_codes()
    sections: dict[str, list[Kind]] = {}
    for kind in kinds.values():
        if any(hint for _, hint in kind.sentences):
            sections.setdefault(inherited(kind, kinds, "code"), []).append(kind)
    parts = [HEAD]
    for code, members in sorted(sections.items()):
        exits = {codes[inherited(kind, kinds, "exit_code")] for kind in members}
        listed = " or ".join(map(str, sorted(exits)))
        first = next((kind for kind in members if kind.code), members[0])
        rows = sorted({row for kind in members for row in kind.sentences if row[1]})
        parts.append(f"## {code}: exit code {listed}\n\n{first.meaning}\n")
        parts.extend(f"- {escaped(sentence)} *{escaped(hint)}*" for sentence, hint in rows)
        parts.append("")
    return "\n".join(parts)


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """Yield each module that names an error, parsed."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "Error(" in text:
                yield path, ast.parse(text)


def kinds_of(trees: Iterable[ast.Module]) -> dict[str, Kind]:
    """Return the base of our errors and every class below it, by name."""
    kinds: dict[str, Kind] = {}
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    grown = True
    while grown:
        before = len(kinds)
        for node in classes:
            bases = [named(base) for base in node.bases]
            base = next((each for each in bases if each in kinds), "")
            if node.name not in kinds and (base or node.name == "GpupoolError"):
                kinds[node.name] = kind_of(node, base)
        grown = len(kinds) > before
    return kinds


def kind_of(node: ast.ClassDef, base: str) -> Kind:
    """Return the ``Kind`` of an error class, read from its definition."""
    kind = Kind(
        node.name, base, meaning=" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    )
    for line in node.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        value = getattr(line, "value", None)
        if isinstance(target, ast.Name) and target.id == "code" and isinstance(value, ast.Constant):
            kind.code = str(value.value)
        elif isinstance(target, ast.Name) and target.id == "exit_code":
            kind.exit_code = named(value)
    if node.name == "GpupoolError":
        kind.meaning = "Something failed for which there is no narrower kind."
    return kind


def inherited(kind: Kind, kinds: dict[str, Kind], attribute: str) -> str:
    """Return an attribute of a class, or of the nearest class above that has it."""
    while not getattr(kind, attribute):
        kind = kinds[kind.base]
    return getattr(kind, attribute)


def exit_codes() -> dict[str, int]:
    """Return the exit codes by name."""
    text = (ROOT / "pool" / "errors.py").read_text(encoding="utf-8")
    return {name: int(code) for name, code in re.findall(r"(?m)^    ([A-Z_]+) = (\d+)$", text)}


def sentences_of(tree: ast.Module, kinds: dict[str, Kind]) -> Iterator[tuple[str, str, str]]:
    """Yield class, sentence and hint of each error that a module makes."""
    everywhere = assigned(tree.body)
    scopes = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for scope in scopes:
        nodes = list(ast.walk(scope))
        calls = [each for each in nodes if isinstance(each, ast.Call) and named(each.func) in kinds]
        known = {**everywhere, **assigned(nodes)} if calls else {}
        for call in calls:
            given = dict(zip(PARTS, call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg in PARTS}
            if "what" not in given:
                continue  # a class that makes its own sentence
            whys = texts(given["why"], known) if "why" in given else [""]
            hints = texts(given["hint"], known) if "hint" in given else []
            said = " / ".join(hint for hint in hints if hint not in ("", "…"))
            for what in texts(given["what"], known):
                if what == "…":
                    continue  # another error's, passed on
                for why in whys:
                    yield named(call.func), f"{what}: {why}" if why else what, said


def assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the values that each name gets in some statements."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def texts(node: ast.expr, known: dict[str, list[ast.expr]], depth: int = 0) -> list[str]:
    """Return each text that an expression can be, with names in the places of values."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return ["".join(part_of(value) for value in values)]
        case ast.IfExp(body=body, orelse=orelse):
            return [*texts(body, known, depth), *texts(orelse, known, depth)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [texts(left, known, depth)[0] + texts(right, known, depth)[0]]
        case ast.Name(id=name) if name in known and depth < 3:
            return [text for value in known[name] for text in texts(value, known, depth + 1)]
        case _:
            return ["…"]


def part_of(node: ast.expr) -> str:
    """Return the text or placeholder for a part of an f-string."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    name = named(value).strip("_")
    return name.upper() if name and name.isidentifier() else "…"


def named(node: ast.AST | None) -> str:
    """Return the last name of ``name`` and ``object.name``, else nothing."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is in a cell of a table."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    main()
