"""Where CuPy's functions differ from SciPy's of the same names, by which emulated GPUs compute.

A program that was tested on an emulated GPU then has the same errors and types on a real one.
Each convention makes a function with CuPy's arguments, checks and results from SciPy's.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import is_ndarray, is_sequence

Operation = Callable[..., Any]
IMAGE_AXES = (2, 3)


def _edt(function: Operation) -> Operation:
    def call(
        image: Any,
        sampling: object = None,
        return_distances: bool = True,
        return_indices: bool = False,
        distances: Any = None,
        indices: Any = None,
        *,
        block_params: object = None,
        float64_distances: bool = True,
    ) -> Any:
        if np.ndim(image) not in IMAGE_AXES:
            raise NotImplementedError("Only 2D and 3D distance transforms are supported.")
        if not (return_distances or return_indices):
            raise RuntimeError("at least one of return_distances/return_indices must be True")
        del block_params  # how a GPU divides the work
        kind = np.dtype(np.float64 if float64_distances else np.float32)
        _check_output("distances", distances, return_distances, image.shape, kind)
        _check_output("indices", indices, return_indices, (image.ndim, *image.shape), None)
        made: Any = function(image, sampling, return_distances, return_indices)
        results: list[Any] = [*made] if is_sequence(made) else [made]
        if return_distances:
            results[0] = results[0].astype(kind, copy=False)
        outputs = [distances] * return_distances + [indices] * return_indices
        for at, output in enumerate(outputs):
            if output is not None:
                output[...] = results[at]
                results[at] = output
        return results[0] if len(results) == 1 else tuple(results)

    return call


def _check_output(name: str, output: Any, asked: bool, shape: Any, kind: Any) -> None:
    if output is None:
        return
    if not asked:
        raise RuntimeError(f"return_{name} must be True if {name} is supplied")
    if output.shape != tuple(shape):
        raise RuntimeError(f"{name} array has wrong shape")
    if kind is not None and output.dtype != kind:
        raise RuntimeError(f"{name} array must have dtype: {kind}")
    # A pixel of an image has coordinates of 16 bits, one of a volume has coordinates of 32.
    if kind is None and (output.dtype.kind not in "iu" or output.dtype.itemsize < len(shape) - 1):
        raise RuntimeError(f"{name} array must have an integer dtype of enough bytes")


def _positions(function: Operation) -> Operation:
    """Return positions as numbers of the host, as CuPy's are."""

    def call(*args: object, **kwargs: object) -> Any:
        return _numbers(function(*args, **kwargs))

    return call


def _extrema(function: Operation) -> Operation:
    def call(*args: object, **kwargs: object) -> Any:
        least, greatest, first, last = function(*args, **kwargs)
        return least, greatest, _numbers(first), _numbers(last)

    return call


def _histogram(function: Operation) -> Operation:
    def call(*args: object, **kwargs: object) -> Any:
        made: Any = function(*args, **kwargs)
        return list(made) if made.dtype.hasobject else made  # one array for each label

    return call


def _numbers(value: Any) -> Any:
    if issubclass(type(value), np.generic):
        return value.item()
    if is_ndarray(value):
        return value.item() if value.ndim == 0 else value
    if is_sequence(value):
        return type(value)(_numbers(item) for item in value)
    return value


def _bandwidth(_function: Operation) -> Operation:
    def call(a: Any) -> tuple[int, int]:
        if not np.size(a):
            return 0, 0
        _check_matrix(a)
        below = np.subtract(*np.nonzero(a))
        return max(int(below.max(initial=0)), 0), max(-int(below.min(initial=0)), 0)

    return call


def _check_matrix(a: Any) -> None:
    axes = np.ndim(a)
    if axes != 2:
        raise np.linalg.LinAlgError(f"{axes}-dimensional array given. It must be two-dimensional")


def _next_fast_len(_function: Operation) -> Operation:
    """Limit FFT lengths to cuFFT's fast factors (2, 3, 5, 7): SciPy's lengths use 11 too."""

    def call(target: Any, real: object = False) -> int:
        del real
        least = operator.index(target)
        if least < 0 or least >> 62:
            raise ValueError(f"a transform of {least} points")
        return min(_multiples(least)) if least else 0

    return call


def _multiples(least: int) -> list[int]:
    """Return, for each product of 3, 5 and 7, the first that is long enough, by a power of 2."""
    products = [1]
    for prime in (3, 5, 7):
        for product in list(products):
            while product < least:
                product *= prime
                products.append(product)
    return [product << (-(-least // product) - 1).bit_length() for product in products]


def _firls(function: Operation) -> Operation:
    def call(
        numtaps: object, bands: object, desired: object, weight: object = None, fs: object = 2
    ) -> Any:
        return function(numtaps, bands, desired, weight=weight, fs=fs)

    return call


def _max_len_seq(function: Operation) -> Operation:
    def call(nbits: Any, *args: Any, **kwargs: Any) -> Any:
        return function(operator.index(nbits), *args, **kwargs)  # SciPy takes Python's alone

    return call


def _ranked(function: Operation) -> Operation:
    """Take integers of 64 bits by either of NumPy's names for them; SciPy knows the one."""

    def call(image: Any, *args: object, **kwargs: object) -> Any:
        if hasattr(image, "dtype") and image.dtype.kind in "iu" and image.dtype.itemsize == 8:
            image = image.view(np.int64 if image.dtype.kind == "i" else np.uint64)
        return function(image, *args, **kwargs)

    return call


CONVENTIONS: dict[str, Callable[[Operation], Operation]] = {
    "scipy.fft.next_fast_len": _next_fast_len,
    "scipy.linalg.bandwidth": _bandwidth,
    "scipy.ndimage.distance_transform_edt": _edt,
    "scipy.ndimage.extrema": _extrema,
    "scipy.ndimage.histogram": _histogram,
    "scipy.ndimage.maximum_position": _positions,
    "scipy.ndimage.minimum_position": _positions,
    "scipy.signal.firls": _firls,
    "scipy.signal.max_len_seq": _max_len_seq,
    "scipy.signal.medfilt": _ranked,
    "scipy.signal.order_filter": _ranked,
}
"""By name, functions that turn SciPy's function into CuPy's."""

REAL: dict[str, Callable[[Operation], Operation]] = {
    name: CONVENTIONS[name]
    for name in (
        "scipy.ndimage.extrema",
        "scipy.ndimage.maximum_position",
        "scipy.ndimage.minimum_position",
    )
}
"""Those of CuPy itself: its positions are NumPy's numbers, of which an answer would make arrays."""
