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
_PARAMETERS = """
import importlib.util
import sys
sys.path.insert(0, sys.argv[1])
import record_surface
for name in sys.argv[2].split():
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    if found is not None:
        print("=", name)
for line in record_surface.surface_of(tuple(sys.argv[3:])):
    print(line)
"""


def recorded() -> set[str]:
    """Return the dotted public names of CuPy, as recorded."""
    return {f"{path}.{name}" for path, names in SURFACE.items() for name in names.split()}


def provided() -> set[str]:
    """Return the dotted public names that the drop-in has.

    A process of its own imports it, because its name is that of the real CuPy, which may be
    installed here.
    """
    found: set[str] = set()
    for line in _ask(_PROGRAM, *SURFACE):
        path, *names = line.split()
        found |= {f"{path}.{name}" for name in names}
    return found


def _ask(program: str, *args: str) -> list[str]:
    """Return the lines that a program of the drop-in prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).resolve().parent), *args],
        env={**os.environ, "PYTHONPATH": str(DROPIN)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return done.stdout.splitlines()


def _read(lines: list[str]) -> tuple[set[str], dict[str, list[str]]]:
    """Return modules, and parameters or types by dotted name."""
    words = [line.split() for line in lines if not line.startswith("#")]
    found = {each[0]: each[1:] for each in words if each[0] != "="}
    return {each[1] for each in words if each[0] == "="}, found


def gaps() -> list[str]:
    """Return CuPy's features, beside names, that the drop-in lacks, sorted.

    These are modules, parameters of functions and methods, and types of ufuncs. A function that
    takes any keyword sends it to the server's library, so it lacks none.
    """
    record = Path(__file__).with_name("surface_parameters.txt").read_text(encoding="utf-8")
    modules, parameters = _read(record.splitlines())
    there, offered = _read(_ask(_PARAMETERS, " ".join(sorted(modules)), *SURFACE))
    lacking = [f"{name} (module)" for name in modules - there]
    for name in parameters.keys() & offered.keys():
        if "**" in offered[name]:
            continue
        kind = "type" if parameters[name][:1] == [":"] else "parameter"
        rest = [each for each in parameters[name] if each not in offered[name]]
        lacking += [f"{name} ({kind} {each})" for each in rest if each[0] not in "*:_"]
    return sorted(lacking)


def missing() -> list[str]:
    """Return the dotted names that CuPy has and the drop-in has not, sorted."""
    return sorted(recorded() - provided())
