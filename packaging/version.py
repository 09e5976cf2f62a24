"""Print the version of gpupool; fail when pyproject.toml and the package name different ones.

Needs no installation: the release workflow compares the output with the tag.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def versions() -> tuple[str, str]:
    """Return the version of the project's metadata, and that of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "src" / "gpupool" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.M)
    return project["version"], found[1] if found else ""


if __name__ == "__main__":
    metadata, package = versions()
    if metadata != package:
        sys.exit(f"pyproject.toml says {metadata}, the package {package or 'nothing'}")
    sys.stdout.write(f"{metadata}\n")
