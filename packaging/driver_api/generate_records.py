"""Write the files generated from ``records.py``; with ``--check``, check that they are current.

Run ``python packaging/driver_api/generate_records.py [--check]``. It needs no CUDA.
"""

import argparse
import sys
from pathlib import Path

import packers

DRIVER = Path(__file__).resolve().parents[2] / "remoting" / "driver_api"


def rendered() -> dict[Path, str]:
    """Return the generated files."""
    headers = DRIVER / "shim" / "include"
    return {
        headers / "generated_layouts.h": packers.render_layouts(),
        headers / "generated_packers.h": packers.render(),
    }


def main() -> int:
    """Write the generated files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = 0
    for path, text in rendered().items():
        if not options.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is not what the generator writes", file=sys.stderr)  # noqa: T201
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
