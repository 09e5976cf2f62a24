"""Assertions on arrays of the device and of NumPy, which may be mixed: NumPy's, on copies here."""

import functools
from typing import Any

import numpy as _np

import cupy as _cupy
from cupy._door import absent as _absent

_has_strict = _np.lib.NumpyVersion(_np.__version__) >= "2.0.0"
_ARRAYS = frozenset(("actual", "desired", "x", "y", "a", "b"))


def _of_numpy(name: str) -> Any:
    check: Any = getattr(_np.testing, name)

    @functools.wraps(check)
    def function(*args: Any, strict: bool = False, **kwargs: Any) -> None:
        if strict:
            if not _has_strict:
                raise NotImplementedError("strict=True needs NumPy 2 on this machine")
            kwargs["strict"] = True
        given = [*map(_cupy.asnumpy, args[:2]), *args[2:]]
        named = {key: _cupy.asnumpy(x) if key in _ARRAYS else x for key, x in kwargs.items()}
        check(*given, **named)

    return function


assert_allclose = _of_numpy("assert_allclose")
assert_array_almost_equal = _of_numpy("assert_array_almost_equal")
assert_array_almost_equal_nulp = _of_numpy("assert_array_almost_equal_nulp")
assert_array_less = _of_numpy("assert_array_less")
assert_array_max_ulp = _of_numpy("assert_array_max_ulp")
_equal = _of_numpy("assert_array_equal")


def assert_array_equal(
    actual: Any,
    desired: Any,
    err_msg: str = "",
    verbose: bool = True,
    *,
    strict: bool = False,
    strides_check: bool = False,
) -> None:
    """Raise AssertionError unless arrays are equal; with `strides_check`, in their layout too."""
    _equal(actual, desired, err_msg, verbose, strict=strict)
    if strides_check and actual.strides != desired.strides:
        told = f"\n x: {actual.strides}\n y: {desired.strides}" if verbose else ""
        raise AssertionError(" ".join(filter(None, ("Strides are not equal:", err_msg))) + told)


def assert_array_list_equal(
    xlist: Any, ylist: Any, err_msg: str = "", verbose: bool = True
) -> None:
    """Raise AssertionError unless two lists, or two tuples, have equal arrays."""
    if type(xlist) is not type(ylist) or type(xlist) not in (list, tuple):
        kinds = f"a {type(xlist).__name__} and a {type(ylist).__name__}"
        raise AssertionError(f"two of a list or a tuple are expected, not {kinds}")
    if len(xlist) != len(ylist):
        raise AssertionError(f"{len(xlist)} arrays beside {len(ylist)}")
    for x, y in zip(xlist, ylist):
        assert_array_equal(x, y, err_msg, verbose)


__getattr__ = _absent.lookup(__name__)
