"""What a program is told that uses a name of CuPy which this package lacks."""

import importlib
import sys
from typing import Any

from cupy._door.sites import frame_at

ADVICE = (
    "gpupool's drop-in cupy lacks it (`gpupool door --missing` lists such names); "
    "where CuPy is installed, `gpupool run --door cuda` offers all of it"
)

_IMPORTER = "_find_and_load_unlocked"
"""The function of importlib that imports; importlib.util.find_spec only asks, without it."""


def lookup(module: str, *parts: str) -> Any:
    """Return the ``__getattr__`` of a module, which is called for names that it lacks.

    ``parts`` are modules in it that few programs use, and that CuPy has without an import.
    """

    def __getattr__(name: str) -> Any:
        if name in parts:
            return importlib.import_module(f"{module}.{name}")
        text = f"module {module!r} has no attribute {name!r}"
        if name.startswith("_"):
            raise AttributeError(text)
        raise AttributeError(f"{text}: {ADVICE}")

    return __getattr__


class _Finder:
    """Comes last, so it is asked for the modules that nobody else has."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Refuse the import of a module of CuPy, with advice."""
        del path, target
        if not name.startswith(("cupy.", "cupyx.")):
            return
        caller = frame_at(2)
        if caller.f_code.co_name == _IMPORTER:
            raise ModuleNotFoundError(f"No module named {name!r}: {ADVICE}", name=name)


def watch_imports() -> None:
    """Explain every import of a module of CuPy that this package lacks."""
    here = _Finder.__module__  # others may have a class of this name
    if not any(getattr(type(each), "__module__", "") == here for each in sys.meta_path):
        finder: Any = _Finder()
        sys.meta_path.append(finder)
