"""Check the style of pages, help texts, errors and docstrings: ``prose.py [FILE ...]``.

Each rule is a line of ``WORDS`` or a function here. Vale would do the same, but it comes as a
program that is downloaded when it first runs.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from error_sentences import all_rows

ROOT = Path(__file__).resolve().parent.parent.parent
LENGTH_MAX = 30
"""Words in a sentence; a reader of another language loses the thread beyond."""
ENUMERATION_WORDS = 4
"""A sentence with fewer words between its commas is a list, which is read word by word."""
ERRORS = ROOT / "docs" / "errors.md"
"""It has the error sentences with a hint; all of them are read from the source instead."""
ERROR_LENGTH_MAX = 24
"""Words of an error sentence, a reason or a hint: it is read between other output."""
RECORDS = {"adr", "results"}
"""Folders of past decisions and observations, which are not rewritten."""
WORDS = {
    r"who(?:m)?ever": "say who",
    r"(?:of|by|to|with|for) whom": "make two sentences",
    r"thereof|whereof|hereby|therein|wherein|whereby": "make two sentences",
    r"(?<!no )such(?! as\b)": "name the thing",
    r"leverag\w+|utili[sz]e[sd]?|utili[sz]ing": "write: use",
    r"simply|easily|obviously|of course|basically|actually": "leave it out",
    r"in order to": "write: to",
    r"will|shall|going to": "use the present tense",
    r"(?:is|are|was|were) told": "say who tells it",
    r"it (?:is|was) \w+(?:ed|en) that": "say who does it",
    r"aforementioned|the latter": "repeat the name",
    r"and/or": "write: or",
}
STAND_INS = {
    r"(?:of|by|to|than|for|with|from|in|has|have|as|on|but|all) what(?! (?:to|you)\b)": "name it",
    r"what (?:is|are|was|were|it|they|he|others?|the|a|an|its|their)": "name it",
    r"(?:shows?|says?|knows?|sees?|names?|tells?|lists?) (?:who|which|whose)": "name it",
    r"ha(?:ve|s|d) (?:X|the|all|its|their|it|them|others|(?:program|lease|server|worker|stream)s?)"
    r"(?: (?!that|to|and|which)\w+)? (?:go|let|run|do|wait|show|make|take|give|send|ask|stop|close"
    r"|end|use|move|test|measure|know|freed|sent)": "say who does it: suspend, move, let",
    r"of (?:its|their|one's) own": "write: separate, its",
}
"""A pronoun in a noun's place, and a verb that hides its subject."""
PRONOUNS = re.compile(
    r"\b(?:what|whose|who|whom|who(?:m)?ever|whatever|whichever)\b|\bof (?:its|their|one's) own\b"
    r"|^(?:Have|Has)\b"
    r"|(?<!, )(?<!\b(?:by|of|to|in|at|on) )(?<!\b(?:for|via) )(?<!\b(?:from|with|than|into) )"
    r"(?<!\b(?:after|under) )(?<!\b(?:before|behind) )(?<!\bthrough )\bwhich\b",
    re.IGNORECASE,
)
"""Pronouns of a docstring's first sentence: a relative clause has a noun before it."""


def compiled(words: dict[str, str]) -> dict[re.Pattern[str], str]:
    """Return patterns of whole words in any case, with the advice of each."""
    return {re.compile(rf"\b(?:{each})\b", re.IGNORECASE): words[each] for each in words}


PATTERNS, PAGE_PATTERNS = compiled(WORDS), compiled(STAND_INS)
STARTS = re.compile(r"(?:What|Who|Which|Whose)\b(?!.*\?$)")
"""A sentence that begins so, and is no question, has a pronoun for its subject."""

ALONE = re.compile(r"\s*(?:$|#|\||[-*] |\d+\. )")
"""A line that does not go on with the paragraph above."""
COLUMN = re.compile(r"\s+\S.*?\s{2,}(\S.*)$|\s+gpupool (.*)$")
"""A line of a help text with an option or an example, and its meaning."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A text that ends where the next one begins, with the line of the file where it stands."""

    line: int
    text: str


def main() -> None:
    """Print each finding of the files, or of all pages, and fail if there is one."""
    files = [Path(name).resolve() for name in sys.argv[1:]] or list(pages())
    found = [finding for path in files for finding in findings(path)]
    if not sys.argv[1:]:
        found += docstring_findings()
        found += [f"{row[0]!r}: {each}" for row in all_rows() for each in error_problems(*row)]
    sys.stdout.writelines(f"{finding}\n" for finding in found)
    if found:
        sys.exit(f"{len(found)} findings about style in {len(files)} files")


def pages() -> Iterator[Path]:
    """Yield all files with prose that people read as it is today."""
    yield from sorted(path for path in ROOT.glob("*.md"))
    for path in sorted((ROOT / "docs").rglob("*.md")):
        parts = set(path.relative_to(ROOT / "docs").parts)
        if not parts & RECORDS and path != ERRORS:
            yield path


def findings(path: Path) -> Iterator[str]:
    """Yield a file's violations of the rules, as ``FILE:LINE: problem``."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    for paragraph in paragraphs(text, helps=path.name == "cli.md"):
        for problem in (*problems(paragraph.text), *stand_ins(paragraph.text)):
            yield f"{name}:{paragraph.line}: {problem}"


def docstring_findings() -> Iterator[str]:
    """Yield the first sentences of docstrings with a pronoun in a noun's place."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split():
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
                continue
            if isinstance(text := node.value.value, str):
                first = " ".join(text.strip().split("\n\n")[0].split())
                for found in pronouns(first):
                    yield f"{name}:{node.lineno}: {found!r}: begin with the noun: {first[:70]!r}"


def pronouns(sentence: str) -> list[str]:
    """Return the pronouns in nouns' places in the first sentence of a docstring."""
    return PRONOUNS.findall(sentence) + [
        found[0] for pattern in PAGE_PATTERNS for found in pattern.finditer(sentence)
    ]


def problems(text: str) -> Iterator[str]:
    """Yield a paragraph's violations of the rules."""
    if found := re.search(r"\S  +[^\s\[]", text):  # "  [default: 1]" is click's
        yield f"two spaces: {text[max(0, found.start() - 20) : found.end() + 20]!r}"
    yield from words_of(text, PATTERNS)
    for sentence in sentences(text):
        count = length(sentence)
        if count > LENGTH_MAX:
            yield f"a sentence of {count} words: {sentence[:70]!r}"


def stand_ins(text: str) -> Iterator[str]:
    """Yield pronouns of a page that stand where a noun would say more."""
    yield from words_of(text, PAGE_PATTERNS)
    for sentence in sentences(text):
        if STARTS.match(sentence):
            yield f"{sentence.split()[0]!r}: begin with the noun: {sentence[:70]!r}"


def words_of(text: str, patterns: dict[re.Pattern[str], str]) -> Iterator[str]:
    """Yield each place at which one of some patterns fits, with its advice."""
    for pattern, advice in patterns.items():
        for found in pattern.finditer(text):
            yield f"{found[0]!r}: {advice}: {text[max(0, found.start() - 40) : found.end() + 30]!r}"


def error_problems(sentence: str, hint: str) -> Iterator[str]:
    """Yield an error's violations of the rules: a clause, a reason behind a colon, and a hint."""
    for text in (sentence, hint):
        yield from problems(plain(text))
        yield from stand_ins(plain(text))
    if re.search(r"(?<!\.\.)\.$", sentence) or re.search(r"(?<!\.\.)\.$", hint):
        yield f"an error ends without a full stop: {sentence!r} {hint!r}"
    if re.match(r"(?!CuPy|NumPy|Python|Prometheus|Field )[A-Z][a-z]", sentence):
        yield f"an error begins with a small letter, behind our name: {sentence!r}"
    if "`" in sentence + hint:
        yield f"a command stands between double quotes: {sentence!r} {hint!r}"
    if "docs/" in hint:
        yield f"a hint names what is on the machine, and no page: {hint!r}"
    for part in (*re.split(r": |; ", sentence), *re.split(r": |; | / ", hint)):
        count = len(re.findall(r"[\w'-]+", part))
        if count > ERROR_LENGTH_MAX:
            yield f"a clause of {count} words: {part[:70]!r}"


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph; a colon and a semicolon end one, too."""
    return re.split(r"(?<=[.!?:;])\s+", text)


def length(sentence: str) -> int:
    """Return the number of words of a sentence; of an enumeration, that of its longest part."""
    parts = sentence.split(",")
    words = [len(re.findall(r"[\w'`-]+", part)) for part in parts]
    return max(words) if sum(words) < ENUMERATION_WORDS * len(parts) else sum(words)


def paragraphs(text: str, *, helps: bool = False) -> Iterator[Paragraph]:
    """Yield the paragraphs, items and cells of a document, with ``X`` for code and addresses.

    Blocks of code are left out; those of docs/cli.md are help texts, whose sentences are read.
    """
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    lines: list[str] = []
    begun, in_code = 1, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            in_code, line = not in_code, ""
        if in_code and not helps:
            continue
        column = COLUMN.match(line) if in_code else None
        if lines and (column or ALONE.match(line)):
            yield Paragraph(begun, plain(" ".join(lines)))
            lines = []
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip("| ")):
                yield Paragraph(number, plain(cell.strip()))
        elif line.strip() and not re.match(r"\s*#|Usage:", line):
            begun = begun if lines else number
            said = column[1] or "" if column else line.strip()
            lines.append(re.sub(r"^(?:[-*>]|\d+\.) ", "", said))


def plain(text: str) -> str:
    """Return Markdown without its marks."""
    text = re.sub(r"`[^`]+`", "X", text)
    text = re.sub(r'"[^"]*"', "X", text)  # words of a program or of others
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*\*|(?<!\w)_|_(?!\w)|https?://\S+", "", text)


if __name__ == "__main__":
    main()
