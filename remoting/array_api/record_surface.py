"""Records the public names of an installed CuPy, for ``gpupool door --missing``.

Run it where the real CuPy is installed (no GPU is needed): ``python record_surface.py >
surface_names.py``. Names only; nothing of CuPy's code is stored.
"""

import importlib
import sys
from typing import Any

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
CLASSES = (
    "cupy.ndarray",
    "cupy.ufunc",
    "cupy.poly1d",
    "cupy.flatiter",
    "cupy.broadcast",
    "cupy.ElementwiseKernel",
    "cupy.ReductionKernel",
    "cupy.RawKernel",
    "cupy.RawModule",
    "cupy.random.RandomState",
    "cupy.random.Generator",
    "cupy.cuda.Device",
    "cupy.cuda.Stream",
    "cupy.cuda.Event",
    "cupy.cuda.MemoryPool",
    "cupy.cuda.MemoryPointer",
)
# Names that modules have by accident of how CuPy is written.
_NOISE = {"annotations", "numpy", "np", "warnings", "contextlib", "os", "sys", "cupy", "functools"}


def names_of(path: str) -> list[str]:
    """Return the public names of one module or class, by its dotted path; [] if it is absent."""
    module, _, rest = path, "", ""
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        module, _, rest = path.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), rest, None)
        except ImportError:
            return []
    return sorted(name for name in dir(found) if not name.startswith("_") and name not in _NOISE)


def main() -> None:
    """Print the module ``surface_names``."""
    version = importlib.import_module("cupy").__version__
    out = sys.stdout
    out.write(f'"""Public names of CuPy {version}; made by record_surface.py, not by hand."""\n\n')
    out.write("SURFACE: dict[str, str] = {\n")
    for path in (*MODULES, *CLASSES):
        out.write(f'    "{path}": """\n')
        line = "       "
        for name in names_of(path):
            if len(line) + len(name) + 1 > 98:
                out.write(line + "\n")
                line = "       "
            line += " " + name
        out.write(line.rstrip() + '\n    """,\n')
    out.write("}\n")


if __name__ == "__main__":
    main()
