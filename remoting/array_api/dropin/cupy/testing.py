"""Assertions on arrays of the device and of NumPy, which may be mixed: NumPy's, on copies here."""

from typing import Any

import numpy as _np

import cupy as _cupy
from cupy._door import absent as _absent

_has_strict = _np.lib.NumpyVersion(_np.__version__) >= "2.0.0"


def _keywords(strict: bool, **keywords: Any) -> dict[str, Any]:
    if not strict:
        return keywords
    if not _has_strict:
        raise NotImplementedError("strict=True needs NumPy 2 on this machine")
    return {**keywords, "strict": True}


def assert_allclose(
    actual: Any,
    desired: Any,
    rtol: float = 1e-7,
    atol: float = 0,
    equal_nan: bool = True,
    err_msg: str = "",
    verbose: bool = True,
    *,
    strict: bool = False,
) -> None:
    """Raise AssertionError unless arrays are equal up to a tolerance."""
    more = _keywords(strict, equal_nan=equal_nan, err_msg=err_msg, verbose=verbose)
    actual, desired = _cupy.asnumpy(actual), _cupy.asnumpy(desired)
    _np.testing.assert_allclose(actual, desired, rtol, atol, **more)


def assert_array_almost_equal(
    actual: Any, desired: Any, decimal: int = 6, err_msg: str = "", verbose: bool = True
) -> None:
    """Raise AssertionError unless arrays are equal up to so many decimals."""
    actual, desired = _cupy.asnumpy(actual), _cupy.asnumpy(desired)
    _np.testing.assert_array_almost_equal(actual, desired, decimal, err_msg, verbose)


def assert_array_almost_equal_nulp(x: Any, y: Any, nulp: float = 1) -> None:
    """Raise AssertionError unless arrays are equal up to so many units in the last place."""
    _np.testing.assert_array_almost_equal_nulp(_cupy.asnumpy(x), _cupy.asnumpy(y), nulp)


def assert_array_max_ulp(a: Any, b: Any, maxulp: int = 1, dtype: Any = None) -> None:
    """Raise AssertionError unless arrays differ by so many representable numbers at most."""
    _np.testing.assert_array_max_ulp(_cupy.asnumpy(a), _cupy.asnumpy(b), maxulp, dtype)


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
    more = _keywords(strict, err_msg=err_msg, verbose=verbose)
    _np.testing.assert_array_equal(_cupy.asnumpy(actual), _cupy.asnumpy(desired), **more)
    if strides_check and actual.strides != desired.strides:
        told = f"\n x: {actual.strides}\n y: {desired.strides}" if verbose else ""
        raise AssertionError(" ".join(filter(None, ("Strides are not equal:", err_msg))) + told)


def assert_array_list_equal(
    xlist: Any, ylist: Any, err_msg: str = "", verbose: bool = True
) -> None:
    """Raise AssertionError unless two lists, or two tuples, have equal arrays."""
    if type(xlist) is not type(ylist):
        raise AssertionError(f"a {type(xlist).__name__} beside a {type(ylist).__name__}")
    if type(xlist) not in (list, tuple):
        raise AssertionError(f"a list or a tuple is expected, not a {type(xlist).__name__}")
    if len(xlist) != len(ylist):
        raise AssertionError(f"{len(xlist)} arrays beside {len(ylist)}")
    for x, y in zip(xlist, ylist):
        assert_array_equal(x, y, err_msg, verbose)


def assert_array_less(
    x: Any, y: Any, err_msg: str = "", verbose: bool = True, *, strict: bool = False
) -> None:
    """Raise AssertionError unless each element is less than that of the other array."""
    more = _keywords(strict, err_msg=err_msg, verbose=verbose)
    _np.testing.assert_array_less(_cupy.asnumpy(x), _cupy.asnumpy(y), **more)


__getattr__ = _absent.lookup(__name__)
