"""Names of CuPy that the drop-in lacks: writes the file that ``gpupool door --missing`` prints.

Without an option the script imports the drop-in and writes ``missing_names.json`` by the record of
CuPy's surface; with ``--check`` it says whether that file is current. With ``--record`` it prints
the record, ``surface_parameters.txt``: run it so where the real CuPy is installed, no GPU is
needed. Both have names, parameters and types only; nothing of CuPy's code is stored.

Lines
    ``cupy.sum a axis dtype``, with ``*`` and ``**`` for any others, as for ``cupy.pi **``, which
    tells nothing of them; ``cupy.add : ??->? bb->b`` are the types of a ufunc; ``= cupyx.jit`` is a
    module.
"""

import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOM = Path(__file__).resolve().parents[1] / "remoting/array_api"
_SCIPY = (
    *("fft", "fftpack", "interpolate", "linalg", "ndimage", "optimize", "signal", "signal.windows"),
    *("sparse", "sparse.csgraph", "sparse.linalg", "spatial", "spatial.distance", "special"),
    "stats",
)
MODULES = (
    "cupy",
    "cupy.linalg",
    "cupy.fft",
    "cupy.random",
    "cupy.cuda",
    "cupy.cuda.runtime",
    "cupy.cuda.driver",
    "cupy.exceptions",
    "cupy.lib.stride_tricks",
    "cupy.polynomial.polynomial",
    "cupy.polynomial.polyutils",
    "cupyx",
    *(f"cupyx.scipy.{name}" for name in _SCIPY),
)
_CLASSES = """
    ndarray ufunc poly1d flatiter broadcast ElementwiseKernel ReductionKernel RawKernel RawModule
    random.RandomState random.Generator cuda.Device cuda.Stream cuda.Event cuda.MemoryPool
    cuda.MemoryPointer
"""
CLASSES = tuple(f"cupy.{name}" for name in _CLASSES.split())
# Names that modules have by accident of how CuPy is written.
_NOISE = {"annotations", "numpy", "np", "warnings", "contextlib", "os", "sys", "cupy", "functools"}


_NOT_CALLED = ("ufunc",)  # a class whose objects only CuPy makes


def _found(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, rest = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), rest, None)
        except ImportError:
            return None


def names_of(path: str) -> list[str]:
    """Return the public names of one module or class, by its dotted path; [] if it is absent."""
    found = _found(path)
    if found is None:
        return []
    names = {*dir(found), *_set_by(found)}
    return sorted(name for name in names if not name.startswith("_") and name not in _NOISE)


def _set_by(found: Any) -> Iterator[str]:
    """Yield the attributes that the methods of a class set, which the class itself has not."""
    for each in found.__mro__ if isinstance(found, type) else ():
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError):  # a compiled one has them all
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr


def parameters_of(value: Any, name: str) -> list[str] | None:
    """Return how a callable names its parameters; None if it says nothing of them.

    ``:`` and types stand for a ufunc, ``*`` and ``**`` for any further arguments.
    """
    if not callable(value) or name in _NOT_CALLED:
        return None
    if type(value).__name__ == "ufunc":
        kinds: Any = value
        return [":", *kinds.types]
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        # Compiled functions have their signature in the first line of their text.
        first = (getattr(value, "__doc__", None) or "").split("\n")[0]
        match = re.search(rf"\b{re.escape(name)}\((.*?)\)( ->.*)?$", first)
        if match is None:
            return None
        words = [re.split(r"[=:]", part)[0].split() for part in match[1].split(",")]
        named = [re.sub(r"(\*+).*", r"\1", each[-1]) for each in words if each]
        return [each for each in named if each not in ("self", "cls", "/")]
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    named = [marks.get(each.kind, each.name) for each in parameters]
    return [each for each in named if each != "self"]


def surface_of(paths: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each public name of modules and classes."""
    for path in paths:
        found = _found(path)
        for name in names_of(path) if found is not None else ():
            parameters = parameters_of(getattr(found, name, None), name)
            yield " ".join([f"{path}.{name}", *(["**"] if parameters is None else parameters)])


def modules() -> Iterator[str]:
    """Yield the dotted names of all public modules of CuPy."""
    for package in ("cupy", "cupyx"):
        found = importlib.import_module(package)
        for each in pkgutil.walk_packages(
            found.__path__, package + ".", onerror=lambda _name: None
        ):
            if not any(part.startswith("_") for part in each.name.split(".")):
                yield each.name


Surface = dict[str, list[str]]
"""By dotted name its parameters or types; modules by ``= `` and their name."""


def record() -> str:
    """Return the surface of the CuPy that is installed, as the text of a file."""
    version = importlib.import_module("cupy").__version__
    first = f"# Public names and parameters of CuPy {version}, by array_surface.py, not by hand."
    names = [f"= {name}" for name in sorted(set(modules()))]
    return "\n".join([first, *names, *surface_of((*MODULES, *CLASSES)), ""])


def recorded() -> Surface:
    """Return the surface of CuPy that was recorded."""
    lines = (ROOM / "surface_parameters.txt").read_text(encoding="utf-8").splitlines()
    split = [line.removeprefix("= ").split() for line in lines if line[0] != "#"]
    marks = ["= " if line[0] == "=" else "" for line in lines if line[0] != "#"]
    return {mark + words[0]: words[1:] for mark, words in zip(marks, split, strict=True)}


def offered(wanted: Surface) -> Surface:
    """Return as much of a surface as the `cupy` has that this process imports."""
    paths = dict.fromkeys(name.rpartition(".")[0] for name in wanted if name[0] != "=")
    found = [line.split() for line in surface_of(tuple(paths))]
    made = {words[0]: words[1:] for words in found}
    return made | {name: [] for name in wanted if name[0] == "=" and _is_module(name[2:])}


def _is_module(name: str) -> bool:
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        return False
    # A folder that has nothing but compiled code of a module that is gone is none.
    return found is not None and type(found.loader).__name__ != "NamespaceLoader"


def missing(wanted: Surface, have: Surface) -> dict[str, list[str]]:
    """Return CuPy's names that the drop-in lacks, and its gaps: modules, parameters and types.

    A function that takes any keyword sends it to the server's library, so it lacks none.
    """
    lacking = wanted.keys() - have.keys()
    gaps = [f"{name[2:]} (module)" for name in lacking if name[0] == "="]
    for name in wanted.keys() & have.keys():
        if "**" not in have[name]:
            kind = "type" if wanted[name][:1] == [":"] else "parameter"
            rest = [each for each in wanted[name] if each not in have[name]]
            gaps += [f"{name} ({kind} {each})" for each in rest if each[0] not in "*:_"]
    return {"missing": sorted(name for name in lacking if name[0] != "="), "gaps": sorted(gaps)}


def main() -> None:
    """Write, check or print a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--record", "--check"):
        parser.add_argument(option, action="store_true")
    arguments = parser.parse_args()
    if arguments.record:
        sys.stdout.write(record())
        return
    sys.path.insert(0, str(ROOM / "dropin"))
    wanted, path = recorded(), ROOM / "missing_names.json"
    text = json.dumps(missing(wanted, offered(wanted)), indent=1) + "\n"
    if not arguments.check:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path} is not current: run `python packaging/array_surface.py`")


if __name__ == "__main__":
    main()
