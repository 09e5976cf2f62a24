"""The page's own files, read once, with their types and tags; nothing else is ever served.

Our own scripts and styles are sent without comments and indentation, which are a tenth of them when
compressed. Lines stay lines, so that a script in the browser can still be read.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gpupool.monitoring.web.live_book import Packed

HERE = Path(__file__).resolve().parent
ONCE = 9
"""How hard files are compressed, which is done once."""

LEFT_OUT = {
    ".js": (
        (re.compile(r"^[ \t]*/\*(?:(?!\*/).)*\*/[ \t]*\n", re.MULTILINE | re.DOTALL), ""),
        (re.compile(r"^[ \t]*//.*\n", re.MULTILINE), ""),
        (re.compile(r"^[ \t]+", re.MULTILINE), ""),
    ),
    ".css": (
        (re.compile(r"/\*.*?\*/", re.DOTALL), ""),
        (re.compile(r"\s*([{};])\s*"), r"\1"),
    ),
}
"""Comments and indentation of our own files, which are not served. Comments of scripts are whole
lines."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: Packed
    kind: str
    tag: str


def load_assets() -> dict[str, Asset]:
    """Return all files by the path under which the page asks for them."""
    found: dict[str, Asset] = {}
    for folder, prefix in ((HERE / "static", "/static/"), (HERE / "vendor", "/vendor/")):
        for path in sorted(folder.rglob("*")):
            if path.suffix in TYPES and path.is_file():
                data = path.read_bytes()
                if folder.name == "static":
                    data = _shortened(data.decode(), path.suffix).encode()
                tag = f'"{sha256(data).hexdigest()[:16]}"'
                name = prefix + path.relative_to(folder).as_posix()
                found[name] = Asset(Packed(data, ONCE), TYPES[path.suffix], tag)
    return found


def _shortened(text: str, suffix: str) -> str:
    for pattern, instead in LEFT_OUT.get(suffix, ()):
        text = pattern.sub(instead, text)
    return text
