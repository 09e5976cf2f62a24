"""The page's own files, read once, with their types and tags; nothing else is ever served."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gpupool.monitoring.web.live_book import Packed

HERE = Path(__file__).resolve().parent
ONCE = 9
"""How hard files are compressed, which is done once."""

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
                tag = f'"{sha256(data).hexdigest()[:16]}"'
                name = prefix + path.relative_to(folder).as_posix()
                found[name] = Asset(Packed(data, ONCE), TYPES[path.suffix], tag)
    return found
