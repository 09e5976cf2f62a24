"""Get the browser libraries of ``gpupool web`` from npm into monitoring/web/vendor.

``make web-vendor`` runs it after a version below was changed. Archives must have the recorded
SHA-256; so must the files, which a test compares with ``vendor/SHA256SUMS``.
"""

import hashlib
import io
import json
import sys
import tarfile
import urllib.request
from pathlib import Path

VENDOR = Path(__file__).resolve().parent.parent / "monitoring" / "web" / "vendor"
REGISTRY = "https://registry.npmjs.org"

# Package, version, SHA-256 of its archive, licence, and which files are taken under which name.
PACKAGES = (
    (
        "lit-html",
        "3.3.1",
        "88ec73d260c7b357fc2bbe1c3dfb5bdd5d99a11ede78669221a6f046ad8c3e93",
        "BSD-3-Clause",
        {"lit-html.js": "lit-html.js", "LICENSE": "lit-html.LICENSE"},
    ),
    (
        "uplot",
        "1.6.32",
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        "MIT",
        {
            "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
            "dist/uPlot.min.css": "uPlot.min.css",
            "LICENSE": "uPlot.LICENSE",
        },
    ),
)


def archive_of(name: str, version: str, expected: str) -> bytes:
    """Return a package's archive, which must have the SHA-256 ``expected``; else this ends.

    Raises:
        OSError: when the registry cannot be reached.
    """
    with urllib.request.urlopen(f"{REGISTRY}/{name}/{version}", timeout=60) as answer:  # noqa: S310
        where = str(json.load(answer)["dist"]["tarball"])
    if not where.startswith("https://"):
        sys.exit(f"{where} is no https address")
    with urllib.request.urlopen(where, timeout=60) as answer:  # noqa: S310
        data: bytes = answer.read()
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        sys.exit(f"{name} {version} has SHA-256 {found}, not {expected}")
    return data


def main() -> None:
    """Get all files, and write their sums."""
    VENDOR.mkdir(exist_ok=True)
    sums: list[str] = []
    for name, version, expected, licence, files in PACKAGES:
        data = archive_of(name, version, expected)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for inside, ours in files.items():
                member = archive.extractfile(f"package/{inside}")
                if member is None:
                    sys.exit(f"{name} {version} has no {inside}")
                # A browser would ask for the map, which is not served.
                kept = [
                    line
                    for line in member.read().splitlines(keepends=True)
                    if not line.startswith(b"//# sourceMappingURL=")
                ]
                content = b"".join(kept)
                (VENDOR / ours).write_bytes(content)
                sums.append(f"{hashlib.sha256(content).hexdigest()}  {ours}\n")
        print(f"{name} {version}, {licence}")  # noqa: T201
    (VENDOR / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()
