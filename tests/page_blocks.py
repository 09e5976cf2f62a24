"""The shell blocks of the pages, and their marks for tests.

A mark is a comment of HTML above a block, which readers do not see::

    <!-- tested -->                        the block runs as it is written, with a pool at hand
    <!-- tested, prints "4.0 GiB" -->      and this is in what it prints
    <!-- tested, without "train" -->       except for lines with this word
    <!-- followed -->                      a reader of a bare system follows it (tests/packaging)
    <!-- untested: needs a GPU -->         no test here can follow it, and why
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = {"adr", "results"}
"""Folders of past decisions and observations, which are not followed."""
BLOCK = re.compile(r"(?ms)^(?: *<!-- (\w+)([^>]*?) -->\n)?( *)```sh\n(.*?)^ *```$")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: how it is followed, and its lines that are."""

    kind: str
    script: str
    prints: tuple[str, ...] = ()
    reason: str = ""


def pages() -> list[Path]:
    """Return the pages with commands for readers."""
    docs = ROOT / "docs"
    found = [path for path in docs.rglob("*.md") if not RECORDS & set(path.parent.parts)]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(found)]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page; one without a mark has no kind."""
    for kind, rest, indent, script in BLOCK.findall(page.read_text(encoding="utf-8")):
        without = re.search(r'without "([^"]+)"', rest)
        lines = [line.removeprefix(indent) for line in script.splitlines()]
        if without:
            lines = [line for line in lines if without[1] not in line]
        shown = rest.partition("prints ")[2].partition(", without")[0]
        prints = tuple(re.findall(r'"([^"]+)"', shown))
        reason = rest.removeprefix(": ") if kind == "untested" else ""
        yield Block(kind, "\n".join(lines) + "\n", prints, reason)
