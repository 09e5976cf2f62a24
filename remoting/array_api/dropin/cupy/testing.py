"""Assertions on arrays of the device and of NumPy, which may be mixed: NumPy's, on copies here."""

import functools
from typing import Any

import numpy as _np

import cupy as _cupy
from cupy._door import absent as _absent

_OPERANDS = ("actual", "desired", "x", "y", "a", "b")


def _on_copies(name: str) -> Any:
    compare = getattr(_np.testing, name)

    @functools.wraps(compare)
    def check(*args: Any, **kwargs: Any) -> None:
        operands = [_cupy.asnumpy(each) for each in args[:2]]
        named = {key: _cupy.asnumpy(kwargs.pop(key)) for key in _OPERANDS if key in kwargs}
        compare(*operands, *args[2:], **named, **kwargs)

    check.__module__ = __name__
    return check


assert_allclose = _on_copies("assert_allclose")
assert_array_almost_equal = _on_copies("assert_array_almost_equal")
assert_array_almost_equal_nulp = _on_copies("assert_array_almost_equal_nulp")
assert_array_less = _on_copies("assert_array_less")
assert_array_max_ulp = _on_copies("assert_array_max_ulp")
_assert_equal = _on_copies("assert_array_equal")


def assert_array_equal(
    actual: Any,
    desired: Any,
    err_msg: str = "",
    verbose: bool = True,
    *,
    strides_check: bool = False,
    **strict: bool,
) -> None:
    """Raise AssertionError unless arrays are equal; with `strides_check`, in their layout too."""
    _assert_equal(actual, desired, err_msg, verbose, **strict)
    if strides_check and actual.strides != desired.strides:
        told = f"\n x: {actual.strides}\n y: {desired.strides}" if verbose else ""
        raise AssertionError(" ".join(filter(None, ("Strides are not equal:", err_msg))) + told)


def assert_array_list_equal(
    xlist: Any, ylist: Any, err_msg: str = "", verbose: bool = True
) -> None:
    """Raise AssertionError unless two lists, or two tuples, have equal arrays."""
    kinds: Any = (type(xlist), type(ylist))
    if kinds not in ((list, list), (tuple, tuple)) or len(xlist) != len(ylist):
        raise AssertionError(f"two lists or tuples of one length are expected, not {kinds}")
    for x, y in zip(xlist, ylist):
        assert_array_equal(x, y, err_msg, verbose)


__getattr__ = _absent.lookup(__name__)
