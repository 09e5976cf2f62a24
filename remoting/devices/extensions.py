"""Functions of ``cupyx`` as operations, which are imported at the first call."""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.conventions import filter_states
from gpupool.remoting.devices.conventions.extension_conventions import CONVENTIONS, REAL
from gpupool.remoting.devices.extension_names import EXTENSIONS
from gpupool.remoting.devices.geometry.distances import distances

Operation = Callable[..., Any]

PREFIX = "cupyx."
"""Before a function's dotted name in the table of operations."""


def _no_scipy() -> str:
    """Return the error text for missing SciPy, with the command that installs it."""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        command = "pipx inject gpupool scipy"
    elif (prefix / "uv-receipt.toml").exists():
        command = f"uv pip install --python {prefix} scipy"
    else:
        command = f"{sys.executable} -m pip install scipy"
    return f"an emulated GPU runs it by SciPy, which its server lacks; on the server: {command}"


NO_SCIPY = _no_scipy()


def real_extensions() -> dict[str, Operation]:
    """Return the operations of a real GPU: CuPy's own functions."""
    table = _table(lambda path, name: _late(PREFIX + path, name, "the server's CuPy lacks it"))
    return table | {PREFIX + name: adapt(table[PREFIX + name]) for name, adapt in REAL.items()}


@cache
def emulated_extensions() -> Mapping[str, Operation]:
    """Return the operations of an emulated GPU: SciPy's functions of the same names.

    They belong to no session, so each process makes them once.
    """
    table = _table(lambda path, name: _as_arrays(_late(path, name, NO_SCIPY)))
    made = ((name, _as_cupy(name.removeprefix(PREFIX), call)) for name, call in table.items())
    return MappingProxyType(dict(made))


def _as_cupy(name: str, function: Operation) -> Operation:
    """Return a function of SciPy with CuPy's conventions, or with the reason why it has none."""
    if not name.startswith("scipy."):
        return _no_signal
    if name in ("scipy.fft." + each for each in ("dct", "dst", "idct", "idst")):
        return _of_two_types(function)
    adapter = _ADAPTERS.get(name)
    return function if adapter is None else adapter(function)


def _no_signal(*_args: Any, **_kwargs: Any) -> Any:
    raise UnsupportedError(
        "an emulated GPU lacks the functions of cupyx.signal: a real one has them"
    )


def _of_two_types(function: Operation) -> Operation:
    def call(x: object, type: object = 2, *args: object, **kwargs: object) -> Any:  # noqa: A002 - SciPy's name
        if type in (1, 4):
            raise UnsupportedError(f"{function.__name__}: CuPy has the types 2 and 3 only")
        return function(x, type, *args, **kwargs)

    return call


def _triangular(function: Operation) -> Operation:
    def call(a: Any, b: Any, *args: object, **kwargs: object) -> object:
        if a.ndim <= 2 and b.ndim <= 2:
            return function(a, b, *args, **kwargs)
        vectors = b.ndim == a.ndim - 1
        if b.shape[: a.ndim - 1] != a.shape[:-1] or not (vectors or b.ndim == a.ndim):
            raise ValueError(f"incompatible dimensions: {a.shape} and {b.shape}")
        if not vectors:
            return function(a, b, *args, **kwargs)
        return function(a, b[..., None], *args, **kwargs)[..., 0]

    return call


FILTER_MAX = 1 << 40
"""Elements along an axis of a filter, and the largest label."""


def _of_size(function: Operation, first: int = 1) -> Operation:
    def call(*args: object, **kwargs: object) -> object:
        sizes = [*args[first:2], kwargs.get("size"), kwargs.get("max_label")]
        # SciPy makes room for a line of it, or for each label, without a look whether its bytes
        # still fit 64 bits, and writes behind that room.
        counts = [np.abs(np.asarray(size, np.float64)) for size in sizes if size is not None]
        if any((count > FILTER_MAX).any() for count in counts):
            raise ValueError(f"{function.__name__}: no array is as large as this filter or label")
        return function(*args, **kwargs)

    return call


def _structured(function: Operation) -> Operation:
    """Let the structure be its shape: SciPy takes the shape for the elements."""

    def call(image: Any, structure: Any = None, *args: Any, **kwargs: Any) -> Any:
        axes = kwargs.get("axes")
        ndim = image.ndim if axes is None else np.size(axes)
        if isinstance(structure, int):
            structure = (structure,) * ndim
        if type(structure) in (tuple, list):
            structure = np.ones(tuple(structure), bool)
        return function(image, structure, *args, **kwargs)

    return call


def _of_list(value: Any, kind: Any) -> object:
    return kind(value) if isinstance(value, list) else value


def _of_arrays(function: Operation) -> Operation:
    """Let the first two arguments be lists, of which SciPy makes no arrays here, and CuPy does."""

    def call(*args: object, **kwargs: object) -> object:
        return function(*[_of_list(arg, np.asarray) for arg in args[:2]], *args[2:], **kwargs)

    return call


_LISTED = "argrelmax argrelmin coherence csd spectrogram welch"


def _over_axes(function: Operation) -> Operation:
    """Let the axes be a list, which CuPy's reductions take."""

    def call(a: object, axis: object = None, *args: object, **kwargs: object) -> object:
        return function(a, _of_list(axis, tuple), *args, **kwargs)

    return call


_SIZED = """black_tophat grey_closing grey_dilation grey_erosion grey_opening maximum_filter
maximum_filter1d minimum_filter minimum_filter1d morphological_gradient morphological_laplace
uniform_filter uniform_filter1d white_tophat"""


_AFFINE = ("offset", "output_shape", "output", "order", "mode", "cval", "prefilter")


def _affine(function: Operation) -> Operation:
    def call(
        input: Any,  # noqa: A002 - SciPy's name
        matrix: Any,
        *args: Any,
        texture_memory: bool = False,
        **kwargs: object,
    ) -> Any:
        given = dict(zip(_AFFINE, args, strict=False), **kwargs)
        given.pop("float64_coords", None)  # SciPy's always are
        if not texture_memory:
            return function(input, matrix, **given)
        if input.ndim not in (2, 3) or input.dtype != np.float32:
            raise ValueError("texture memory has arrays of float32 with 2 or 3 axes")
        # A texture is interpolated linearly at most, also beyond its border.
        order, mode = min(given.get("order", 3), 1), given.get("mode", "constant")
        given |= {"order": order, "mode": "grid-constant" if mode == "constant" else mode}
        output = given.pop("output", None)
        made = function(input, matrix, output=np.float32 if output is None else output, **given)
        return output if made is None else made

    return call


def _instead(made: Operation) -> Callable[[Operation], Operation]:
    """Return an adapter that leaves SciPy's function out, which may be missing, for another one."""

    def call(*args: object, **kwargs: object) -> object:
        try:
            return made(*args, **kwargs)
        except ImportError:
            raise UnsupportedError(f"{made.__name__}: {NO_SCIPY}") from None

    return lambda _function: call


_ADAPTERS = {
    **{f"scipy.ndimage.{name}": _of_size for name in _SIZED.split()},
    **{
        f"scipy.ndimage.binary_{name}": _structured
        for name in ("erosion", "dilation", "opening", "closing")
    },
    **{f"scipy.signal.{name}": _of_arrays for name in _LISTED.split()},
    **{f"scipy.special.{name}": _over_axes for name in ("log_softmax", "logsumexp", "softmax")},
    "scipy.ndimage.affine_transform": _affine,
    "scipy.ndimage.find_objects": functools.partial(_of_size, first=0),
    **CONVENTIONS,
    "scipy.linalg.solve_triangular": _triangular,
    **{f"scipy.spatial.distance.{name}": _instead(made) for name, made in distances().items()},
    **{f"scipy.signal.{name}": _instead(made) for name, made in filter_states.operations().items()},
}


def _table(make: Callable[[str, str], Operation]) -> dict[str, Operation]:
    return {
        f"{PREFIX}{path}.{name}": make(path, name)
        for path, names in EXTENSIONS.items()
        for name in names
    }


def _late(module: str, name: str, otherwise: str) -> Operation:
    def call(*args: object, **kwargs: object) -> object:
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            why = otherwise if isinstance(error, ImportError) else "the server's version lacks it"
            raise UnsupportedError(f"{module}.{name}: {why}") from None
        return function(*args, **kwargs)

    call.__name__ = name
    return call


def _as_arrays(function: Operation) -> Operation:
    """Return a function that returns numbers as arrays without axes, as CuPy does."""

    def call(*args: object, **kwargs: object) -> object:
        return _array(function(*args, **kwargs))

    call.__name__ = function.__name__
    return call


def _array(value: Any) -> object:
    if issubclass(type(value), np.generic):
        return np.asarray(value)
    if type(value) in (tuple, list):
        return type(value)(map(_array, value))
    return value
