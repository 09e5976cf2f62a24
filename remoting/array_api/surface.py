"""The part of CuPy's public surface that the drop-in offers, and the part that it lacks."""

import functools
import os
import subprocess
import sys
from pathlib import Path

DROPIN = Path(__file__).resolve().parent / "dropin"
"""The folder that must come first on a program's PYTHONPATH."""

_TIMEOUT_S = 60
_PROGRAM = """
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


@functools.cache
def _record() -> tuple[set[str], dict[str, list[str]]]:
    """Return CuPy's modules, and its names with their parameters or types."""
    return _read(Path(__file__).with_name("surface_parameters.txt").read_text(encoding="utf-8"))


@functools.cache
def _offer() -> tuple[set[str], dict[str, list[str]]]:
    """Return the same of the drop-in.

    A process imports it, because its name is that of the real CuPy, which may be installed here.
    """
    modules, names = _record()
    paths = dict.fromkeys(name.rpartition(".")[0] for name in names)
    folder = str(Path(__file__).resolve().parent)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, folder, " ".join(sorted(modules)), *paths],
        env={**os.environ, "PYTHONPATH": str(DROPIN)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return _read(done.stdout)


def _read(text: str) -> tuple[set[str], dict[str, list[str]]]:
    words = [line.split() for line in text.splitlines() if not line.startswith("#")]
    found = {each[0]: each[1:] for each in words if each[0] != "="}
    return {each[1] for each in words if each[0] == "="}, found


def recorded(path: str = "") -> set[str]:
    """Return CuPy's dotted public names; with ``path`` the names of that module or class."""
    names = set(_record()[1])
    if not path:
        return names
    return {name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == path}


def provided() -> set[str]:
    """Return the dotted public names that the drop-in has."""
    return set(_offer()[1])


def missing() -> list[str]:
    """Return the dotted names that CuPy has and the drop-in has not, sorted."""
    return sorted(recorded() - provided())


def gaps() -> list[str]:
    """Return CuPy's features, beside names, that the drop-in lacks, sorted.

    These are modules, parameters of functions and methods, and types of ufuncs. A function that
    takes any keyword sends it to the server's library, so it lacks none.
    """
    (modules, parameters), (there, offered) = _record(), _offer()
    lacking = [f"{name} (module)" for name in modules - there]
    for name in parameters.keys() & offered.keys():
        if "**" in offered[name]:
            continue
        kind = "type" if parameters[name][:1] == [":"] else "parameter"
        rest = [each for each in parameters[name] if each not in offered[name]]
        lacking += [f"{name} ({kind} {each})" for each in rest if each[0] not in "*:_"]
    return sorted(lacking)
