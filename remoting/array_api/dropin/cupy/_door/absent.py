"""Error messages for CuPy names that this package lacks."""

import functools
import importlib
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cupy._door.sites import frame_at

ADVICE = (
    "gpupool's drop-in cupy lacks it (`gpupool door --missing` lists such names); "
    "where CuPy is installed, `gpupool run --door cuda` offers all of it"
)
PRIVATE_ADVICE = (
    "gpupool's drop-in cupy lacks this private name; "
    "where CuPy is installed, `gpupool run --door cuda` has CuPy's own"
)
_LEFT_TO_CUPY = {
    "kernels of Python functions": "cupyx.jit",
    "generalized ufuncs": "cupyx.GeneralizedUFunc",
    "captured graphs": """
        cupy.cuda.graph cupy.cuda.Graph cupy.cuda.Stream.begin_capture
        cupy.cuda.Stream.end_capture cupy.cuda.Stream.is_capturing
    """,
    "callbacks of cuFFT": """
        cupy.fft.config.get_current_callback_manager cupy.fft.config.set_cufft_callbacks
    """,
    "linear systems": """
        BadCoefficients StateSpace TransferFunction ZerosPolesGain bode cont2discrete dbode
        dfreqresp dimpulse dlsim dlti dstep freqresp impulse lsim lti place_poles step
    """,
    "chirp transforms as objects": "CZT ZoomFFT",
    "comparisons of the program": "argrelextrema",
    "functions and kernels over images": """
        cupyx.scipy.ndimage.generic_gradient_magnitude cupyx.scipy.ndimage.generic_laplace
        cupyx.scipy.ndimage.labeled_comprehension
    """,
    "arrays of bfloat16": "cupy.bfloat16",
    "functions over several axes": "cupy.apply_over_axes",
    "printed plans": "cupy.fft.config.show_plan_cache_info",
    "alignment of structures": "cupy.make_aligned_dtype",
    "arrays as `cuda::std::mdspan`": "cupy.ndarray.mdspan",
    "BLAS": "cupy.cublas.asum cupy.cublas.axpy cupy.cublas.dot cupy.cublas.gemm cupy.cublas.gemv",
    "Cholesky solvers": "cupyx.linalg",
    "bindings of CUDA": "cupy_backends.cuda",
}
_LEFT = {
    name if "." in name else f"cupyx.scipy.signal.{name}": subject
    for subject, names in _LEFT_TO_CUPY.items()
    for name in names.split()
}
"""Names that no public code base of those looked through uses, and the subject of each."""

_LIKE = {
    "cupy": (
        "cupy._core.core cupy._core.dlpack cupy._core.fusion cupy._core.raw cupy._core._kernel "
        "cupy._core._reduction cupy._core._routines_binary cupy._core._routines_indexing "
        "cupy._core._routines_linalg cupy._core._routines_logic cupy._core._routines_manipulation "
        "cupy._core._routines_math cupy._core._routines_sorting cupy._core._routines_statistics "
        "cupy._creation cupy._creation.basic cupy._creation.from_data"
    ),
    "cupy._util": "cupy._core.internal cupy._core._scalar",
    "cupy.cuda": "cupy._environment",
    "cupyx": "cupyx._rsqrt cupyx._runtime cupyx._scatter",
    "": "cupy.cuda.cutensor cupy.cuda.nccl",
}
PRIVATE = {name: like for like, names in _LIKE.items() for name in names.split()}
"""Modules of CuPy that public code imports, with the module for their names; "" is: not
available."""

_IMPORTER = "_find_and_load_unlocked"
"""The function of importlib that imports; importlib.util.find_spec only asks, without it."""

_FROM = "_handle_fromlist"
"""The one that imports the names of ``from MODULE import NAMES``."""


@functools.cache
def _names_of_cupy() -> tuple[set[str], set[str]]:
    """Return the recorded names of CuPy, and the modules with records; none without a record."""
    folder = Path(__file__).resolve().parents[3]
    try:
        lines = (folder / "surface_parameters.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set(), set()
    modules = {line[2:] for line in lines if line.startswith("= ")}
    names = {line.split(" ")[0] for line in lines if line[0] not in "#="}
    return names | modules, {name.rpartition(".")[0] for name in names} | {"cupyx.scipy"}


def advice(module: str, name: str) -> str:
    """Return advice to a program on a name that a module of this package lacks."""
    names, known = _names_of_cupy()
    whole = f"{module}.{name}"
    if whole in _LEFT:
        return (
            f"gpupool's drop-in cupy leaves {_LEFT[whole]} to CuPy itself; "
            "on Linux, where CuPy is installed, `gpupool run --door cuda` runs them"
        )
    if "._" in whole:
        return PRIVATE_ADVICE
    if module in known and whole not in names:
        return f"CuPy {sys.modules['cupy'].__version__} has no such name either"
    return ADVICE


def lookup(module: str, *parts: str, like: str = "") -> Any:
    """Return the ``__getattr__`` of a module, which is called for names that it lacks.

    ``parts`` are modules in it that few programs use, and that CuPy has without an import; public
    names are those of the module ``like``.
    """

    def __getattr__(name: str) -> Any:
        if name in parts or f"{module}.{name}" in PRIVATE:
            return importlib.import_module(f"{module}.{name}")
        kind = "module" if module in sys.modules else "class"
        text = f"{kind} {module!r} has no attribute {name!r}"
        if name.startswith("__"):
            raise AttributeError(text)
        if like and ("._" in like or name[0] != "_") and hasattr(sys.modules[like], name):
            return getattr(sys.modules[like], name)
        raise AttributeError(f"{text}: {advice(module, name)}")

    return __getattr__


def of_class(path: str) -> Any:
    """Return the ``__getattr__`` of a class, which is called for names that its objects lack."""
    look = lookup(path)

    def __getattr__(_self: Any, name: str) -> Any:
        return look(name)

    return __getattr__


class _Finder:
    """Comes last, so it is asked for the modules that nobody else has."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Make a private module of public names, or refuse a module of CuPy with advice."""
        del path, target
        if name in PRIVATE:
            return ModuleSpec(name, cls, is_package=True)  # type: ignore[arg-type]
        if not name.startswith(("cupy.", "cupyx.")):
            return None
        caller: Any = frame_at(2)
        if caller.f_code.co_name != _IMPORTER:
            return None
        module, _, last = name.rpartition(".")
        told = advice(module, last)
        while "importlib" in caller.f_code.co_filename:
            if caller.f_code.co_name == _FROM:  # which keeps to itself that a module is not there
                raise ImportError(f"cannot import name {last!r} from {module!r}: {told}", name=name)
            caller = caller.f_back
        raise ModuleNotFoundError(f"No module named {name!r}: {told}", name=name)

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Take a plain module."""
        del spec

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Let it find the public names of the other."""
        like = PRIVATE[module.__name__]
        vars(module)["__getattr__"] = lookup(module.__name__, like=like)
        if like:
            importlib.import_module(like)
        else:
            vars(module)["available"] = False


def watch_imports() -> None:
    """Explain names and imports of CuPy that this package lacks."""
    for name, module in list(sys.modules.items()):
        if name.startswith("cupy.") and "._" not in name:
            vars(module).setdefault("__getattr__", lookup(name))
    here = _Finder.__module__  # others may have a class of this name
    if not any(getattr(type(each), "__module__", "") == here for each in sys.meta_path):
        finder: Any = _Finder()
        sys.meta_path.append(finder)
