"""Get the tools of ``make test-monitoring`` beside Python: Prometheus, Chromium and axe-core.

Debian's packages are installed where this is root and they are absent. The file of axe-core comes
from npm, and must have the recorded SHA-256. What cannot be had is said in one line each; the tests
of it are left out then, and say so as well.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from web_vendor import archive_of

PROGRAMS = {"prometheus": ("prometheus", "promtool"), "chromium": ("chromium", "google-chrome")}
"""Debian's packages, and the programs of which one says that it is there."""

AXE = ("axe-core", "4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745")
AXE_FILE = "package/axe.min.js"


def install(package: str, programs: tuple[str, ...]) -> str:
    """Install a package if it is absent; return why it is left out, or nothing."""
    if any(map(shutil.which, programs)):
        return ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{package} is not here, and root alone installs it: apt-get install {package}"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (("update",), ("install", "--yes", "--no-install-recommends", package)):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments], env=environment, capture_output=True, text=True
        )
    if done.returncode:
        return f"{package} cannot be installed: {(done.stderr.splitlines() or ['?'])[-1]}"
    return ""


def get_axe(path: Path) -> str:
    """Write axe-core's file if it is absent; return why it is left out, or nothing."""
    name, version, expected = AXE
    if path.is_file():
        return ""
    try:
        data = archive_of(name, version, expected)
    except OSError as error:
        return f"{name} {version} cannot be had from npm: {error}"
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile(AXE_FILE)
        if member is None:
            sys.exit(f"{name} {version} has no {AXE_FILE}")
        path.write_bytes(member.read())
    return ""


def main() -> None:
    """Get everything that is absent."""
    why = [install(package, programs) for package, programs in PROGRAMS.items()]
    for each in (*why, get_axe(Path(sys.argv[1]))):
        if each:
            print(f"left out: {each}")  # noqa: T201


if __name__ == "__main__":
    main()
