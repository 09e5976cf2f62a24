"""Build the documentation site: ``build_site.py [--url REPOSITORY]`` writes ``build/site``.

The sources are docs/ and four files at the root, as they are. A copy of them is made first, because
their links lead to files of the repository that the site does not have.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "build" / "site-source"
SITE = ROOT / "build" / "site"
CONFIG = ROOT / "mkdocs.yml"
PROJECT = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/reporting.md",
    "CHANGELOG.md": "project/changelog.md",
    "README.md": "README.md",  # docs/README.md is the site's first page, and says more
}
"""Files at the root that are pages of the site, each with its place there."""
APART = ("adr", "results", "project")
"""Folders for developers and auditors, which answer no question of a user."""
REFERENCE = ("cli.md", "errors.md", "metrics.md", "glossary.md", "analyze.md")
FETCHING = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
FETCHED_LINKS = {"stylesheet", "preconnect", "preload", "icon", "modulepreload", "dns-prefetch"}


def main() -> None:
    """Copy the sources, build the site, and check its pages for external resources."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="", help="the repository, for links to its files")
    url: str = parser.parse_args().url.rstrip("/")
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE)
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PROJECT)]:
        if page.parent == ROOT and page.name == "README.md":
            continue
        staged = SOURCE / place_of(page)
        staged.parent.mkdir(exist_ok=True)
        text = with_links_of_the_site(page, url)
        staged.write_text(search_front_matter(place_of(page)) + text, encoding="utf-8")
    shutil.copytree(Path(__file__).parent / "assets", SOURCE / "assets")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file"]
    # Material prints advertising for its successor without this variable.
    done = subprocess.run(
        [*argv, str(CONFIG)], check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    if done.returncode:
        sys.exit(done.returncode)
    if outside := sorted(requests_to_elsewhere()):
        sys.exit("pages of the site fetch from elsewhere:\n" + "\n".join(outside))
    pages = sum(1 for _ in SITE.rglob("*.html"))
    sys.stdout.write(f"{SITE.relative_to(ROOT)}/index.html and {pages - 1} other pages\n")


def place_of(path: Path) -> Path:
    """Return where a file of the repository stands on the site; itself if the site lacks it."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs")
    name = str(path.relative_to(ROOT))
    return Path(PROJECT.get(name, name))


def search_front_matter(place: Path) -> str:
    """Return front matter by which Material's search shows guides first, and no internals."""
    if place.parts[0] in APART:
        return "---\nsearch:\n  exclude: true\n---\n\n"
    if place.name in REFERENCE:
        return "---\nsearch:\n  boost: 0.5\n---\n\n"
    return ""


def with_links_of_the_site(page: Path, url: str) -> str:
    """Return the text of a page, with links to pages of the site or to the repository."""
    here = place_of(page).parent

    def replaced(found: re.Match[str]) -> str:
        text, link = found[1], found[2]
        name, hash_sign, anchor = link.partition("#")
        if not name or ":" in name:
            return found[0]
        target = (page.parent / name).resolve()
        if target.is_relative_to(ROOT / "docs") or str(target.relative_to(ROOT)) in PROJECT:
            return f"[{text}]({os.path.relpath(place_of(target), here)}{hash_sign}{anchor})"
        path = target.relative_to(ROOT)
        return f"[{text}]({url}/blob/HEAD/{path})" if url else f"{text} (`{path}`)"

    blocks = re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    pattern = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
    for index in range(0, len(blocks), 2):  # between blocks of code
        blocks[index] = with_lists_apart(pattern.sub(replaced, blocks[index]))
    return "".join(blocks)


def with_lists_apart(text: str) -> str:
    """Return text with a blank line above each list, as MkDocs needs it."""
    return re.sub(r"(?m)^((?![-*>|#]|\d+\. |\s|$).+)\n(?=(?:[-*]|1\.) \S)", r"\1\n\n", text)


class _Fetches(HTMLParser):
    """Addresses that a browser asks for by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the address of a script, a picture, a style sheet and the like."""
        values = dict(attrs)
        if tag == "link" and FETCHED_LINKS & set((values.get("rel") or "").split()):
            self.addresses.append(values.get("href") or "")
        elif tag in FETCHING:
            self.addresses.append(values.get(FETCHING[tag]) or "")


def requests_to_elsewhere() -> Iterator[str]:
    """Yield each page with an address that it fetches from another host."""
    for page in SITE.rglob("*.html"):
        fetches = _Fetches()
        fetches.feed(page.read_text(encoding="utf-8"))
        for address in fetches.addresses:
            if re.match(r"(?:https?:)?//", address):
                yield f"{page.relative_to(SITE)}: {address}"


if __name__ == "__main__":
    main()
