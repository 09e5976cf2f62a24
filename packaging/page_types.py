"""Check the types of the page's JavaScript by TypeScript from npm: ``tsc --checkJs``.

It is for developers, and no part of a build: the page is served as it is written. TypeScript's
archive must have the recorded SHA-256. Without Node.js, or without npm's registry, nothing is
checked, and that is said in one line.
"""

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from web_vendor import archive_of

TYPESCRIPT = (
    "typescript",
    "5.9.3",
    "10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3",
)
PROJECT = Path(__file__).parent / "page_types"
COMPILER = "package/lib/tsc.js"
LIMIT_S = 600


def get_typescript(folder: Path) -> str:
    """Unpack TypeScript into ``folder`` if it is not there; return why it cannot be, or nothing."""
    name, version, expected = TYPESCRIPT
    if (folder / COMPILER).is_file():
        return ""
    try:
        data = archive_of(name, version, expected)
    except OSError as error:
        return f"{name} {version} cannot be had from npm: {error}"
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")
    return ""


def main() -> int:
    """Check the page; ``sys.argv[1]`` is where TypeScript is kept."""
    folder = Path(sys.argv[1])
    node = shutil.which("node") or shutil.which("nodejs")
    why = get_typescript(folder) if node else "Node.js is not here: apt-get install nodejs"
    if node is None or why:
        sys.stderr.write(f"the types of the page are not checked: {why}\n")
        return 0
    command = [node, str(folder / COMPILER), "--project", str(PROJECT)]
    return subprocess.run(command, check=False, timeout=LIMIT_S).returncode


if __name__ == "__main__":
    sys.exit(main())
