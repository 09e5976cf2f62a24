"""The part of CuPy's public surface that the drop-in offers, and the part that it lacks."""

import os
import subprocess
import sys
from pathlib import Path

from gpupool.remoting.array_api.surface_names import SURFACE

DROPIN = Path(__file__).resolve().parent / "dropin"
"""The folder that must come first on a program's PYTHONPATH."""

_TIMEOUT_S = 60
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import record_surface
for path in sys.argv[2:]:
    print(path, *record_surface.names_of(path))
"""


def recorded() -> set[str]:
    """Return the dotted public names of CuPy, as recorded."""
    return {f"{path}.{name}" for path, names in SURFACE.items() for name in names.split()}


def provided() -> set[str]:
    """Return the dotted public names that the drop-in has.

    A process of its own imports it, because its name is that of the real CuPy, which may be
    installed here.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(Path(__file__).resolve().parent), *SURFACE],
        env={**os.environ, "PYTHONPATH": str(DROPIN)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    found: set[str] = set()
    for line in done.stdout.splitlines():
        path, *names = line.split()
        found |= {f"{path}.{name}" for name in names}
    return found


def missing() -> list[str]:
    """Return the dotted names that CuPy has and the drop-in has not, sorted."""
    return sorted(recorded() - provided())
