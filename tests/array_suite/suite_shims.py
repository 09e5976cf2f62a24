"""Stand-ins for CuPy's internal modules: a test file can import them, a test that uses them fails.

CuPy's tests name modules that the drop-in does not have, because a program never needs them.
Without stand-ins one such import would lose all tests of its file.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

INTERNALS = (
    "cupy_backends",
    "cupyx.cusolver",
    "cupyx.cusparse",
    "cupyx.cutensor",
    "cupyx.cutlass",
    "cupy.cublas",
    "cupy.cuda",
    "cupy.fft._fft",
    "cupy.fft._cache",
    "cupy.linalg._util",
    "cupy.linalg._decomposition",
    "cupy.lib._routines_poly",
    "cupy.lib._polynomial",
    "cupy.polynomial",
)
CUDA = ("driver", "compiler", "cub", "curand", "cusolver", "cublas", "nvrtc")
# The private modules of `cupyx.scipy` that the drop-in lacks; its own come before any stand-in.
_PRIVATE = re.compile(r"cupyx\.scipy\.(\w+\.)*_")
# A module that is loading may call a stand-in, to decorate a test for example; a test may not.
running = False


class InternalsUsed(NotImplementedError):
    """A test called one of CuPy's internals."""


class Anything:
    """A name of a stand-in module."""

    def __init__(self, name: str, *_class: object) -> None:
        self._name = name

    def __call__(self, *_args: object, **_kwargs: object) -> "Anything":
        if running:
            raise InternalsUsed(f"internals of CuPy: {self._name}")
        return self

    def __getattr__(self, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self._name}.{name}")

    def __add__(self, _other: object) -> "Anything":
        return self

    __radd__ = __mul__ = __rmul__ = __add__

    def __lt__(self, _other: object) -> bool:
        return True

    __le__ = __lt__

    def __gt__(self, _other: object) -> bool:
        return False

    __ge__ = __gt__


class Module(types.ModuleType):
    """A stand-in module: it has every name."""

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that the drop-in and the installed packages lack."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        private = fullname.startswith("cupy._") or _PRIVATE.match(fullname) is not None
        if private or any(f"{fullname}.".startswith(f"{name}.") for name in INTERNALS):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def _returning(value: object) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: value


def _get_size(size: Any) -> tuple[int, ...]:
    """Return a `size` as a shape tuple, as CuPy does; tests of random numbers compare shapes."""
    return () if size is None else tuple(size) if hasattr(size, "__len__") else (int(size),)


def _stand_in(module: str) -> Callable[[str], Anything]:
    def lookup(name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{module}.{name}")

    return lookup


def _choices_without_effect(core: Any) -> None:
    """Let tests choose CuPy's accelerators and limits, without effect on the results.

    A test that asserts the choice still fails: nothing calls what it patches.
    """
    for module in (core, core._accelerator):
        for kind in ("routine", "reduction"):
            setattr(module, f"get_{kind}_accelerators", _returning([]))
            setattr(module, f"set_{kind}_accelerators", _returning([]))
    cublas: Any = importlib.import_module("cupy.cublas")
    cublas.get_batched_gesv_limit = cublas.set_batched_gesv_limit = _returning(0)
    cusolver: Any = importlib.import_module("cupyx.cusolver")
    cusolver.check_availability = bool  # of a named function: all of them are there


def _compilers_without_effect(compiler: Any) -> None:
    """Let tests of raw kernels set the cache of compiled kernels, and query nvcc's version."""
    compiler.__getattr__ = _stand_in("cupy.cuda.compiler")
    compiler._run_cc = _returning("release 12.9")
    cache: Any = importlib.import_module("cupy.cuda._compiler_cache")
    cache.DiskKernelCacheBackend = _returning(object())  # tests pass it to CuPy alone


def install(cupy: Any) -> None:
    """Install the stand-ins; the objects that test collection needs are real."""
    # After the finder of files, so that what the drop-in has is its own, and before the drop-in's,
    # which refuses what nobody has found.
    at = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path.insert(at + 1, Finder())
    sys.modules["cupy_backends"] = Module("cupy_backends")  # the drop-in's refuses imports
    vars(sys.modules["cupy_backends"])["__path__"] = []
    for name in CUDA:
        if not hasattr(cupy.cuda, name):
            setattr(cupy.cuda, name, importlib.import_module("cupy.cuda." + name))
    _compilers_without_effect(cupy.cuda.compiler)
    backend: Any = importlib.import_module("cupy_backends.cuda.api.runtime")
    backend.is_hip = cupy.cuda.runtime.is_hip  # a stand-in would be true, and tests are left out
    cupy.cuda.driver.get_build_version = cupy.cuda.runtime.runtimeGetVersion
    cupy.cuda.get_nvcc_path = cupy.cuda.get_cuda_path = _returning("")
    core: Any = importlib.import_module("cupy._core")
    for name in ("core", "flags", "internal", "_kernel", "_accelerator"):
        setattr(core, name, importlib.import_module("cupy._core." + name))
    core.__getattr__ = _stand_in("cupy._core")
    core.internal.prod = math.prod
    core.get_size = _get_size
    core.core.ndarray = core.ndarray = cupy.ndarray
    for module in (core, core.core):
        module.get_compute_type = _returning(0)
        module.set_compute_type = _returning(0)
    core.array = cupy.array
    _choices_without_effect(core)
    util: Any = importlib.import_module("cupy._util")
    util.ENABLE_SLICE_COPY = False  # an experiment of CuPy that is off by default
    cupy._util = util
    cupy.cuda.device.get_compute_capability = lambda: "90"
    cupyx: Any = importlib.import_module("cupyx")
    scipy: Any = importlib.import_module("cupyx.scipy")
    cupyx.scipy = scipy
    importlib.import_module("cupyx.scipy.sparse")
    scipy._scipy_available = importlib.util.find_spec("scipy") is not None
    for name in ("fft", "fftpack", "interpolate", "linalg", "ndimage", "special", "stats"):
        # A module with a path may have private ones below it.
        importlib.import_module(f"cupyx.scipy.{name}").__path__ = []
    # Names of kernels and their lowest degrees, by which tests of `RBFInterpolator` are made.
    radial: Any = importlib.import_module("cupyx.scipy.interpolate._rbfinterp")
    degrees = {"multiquadric": 0, "linear": 0, "thin_plate_spline": 1, "cubic": 1, "quintic": 2}
    radial._NAME_TO_MIN_DEGREE = degrees
    radial._SCALE_INVARIANT = {"linear", "thin_plate_spline", "cubic", "quintic"}
    radial._AVAILABLE = {"gaussian", "inverse_multiquadric", "inverse_quadratic"}
    radial._AVAILABLE |= radial._SCALE_INVARIANT | set(degrees)
    # Public names whose tests look for them in private modules.
    for name in ("_distributions", "_bit_generator", "_sample"):
        setattr(cupy.random, name, cupy.random)
        sys.modules[f"cupy.random.{name}"] = cupy.random
