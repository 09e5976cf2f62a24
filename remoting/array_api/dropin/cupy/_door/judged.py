"""Which calls wait once for the worker's library to check their arguments.

The client checks the arguments of what programs call in loops, and sends those calls without
waiting. The functions here are called rarely and have many rules. The first call of each kind, with
arrays of the same shapes and types and the same other arguments, waits until the worker has run it,
so that a wrong argument is an error of that call. Later calls of that kind do not wait.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from cupy._door.calls import Remote

KINDS_MAX = 1 << 14

_TEXT = """
angle argpartition average bincount choose compress convolve copyto corrcoef correlate cov cross
cumprod cumsum delete diff digitize dot ediff1d einsum extract fill_diagonal gradient histogram
histogram2d histogramdd indices insert interp intersect1d isin lexsort median nancumprod
nancumsum nanmedian nanquantile ndarray.as_strided ndarray.gather ndarray.partition ndarray.sort
packbits pad
partition percentile place poly polyfit put put_along_axis putmask quantile ravel_multi_index
repeat roll roots searchsorted select setdiff1d setxor1d sort_complex take take_along_axis tile
trapezoid trim_zeros ufunc.at ufunc.reduceat union1d unique unpackbits unravel_index unwrap
vander
"""
_NAMES = frozenset(_TEXT.split())
_PREFIXES = ("cupyx.", "fft.", "linalg.")

# CuPy itself waits for the device here, because the elements decide whether there is an error.
_BY_ELEMENTS = frozenset(
    ("bincount", "place", "random.logseries", "ravel_multi_index", "unravel_index")
)

EACH = object()
"""The kind of calls of which each waits."""

linalg_raises = False
"""Whether a program asked for errors of `linalg` that only the elements show."""


def is_judged(name: str) -> bool:
    """Say whether the worker's library checks arguments that the client does not."""
    return name in _NAMES or name in _BY_ELEMENTS or name.startswith(_PREFIXES)


class Judged:
    """The kinds of calls of one session that the worker has accepted."""

    def __init__(self) -> None:
        self._kinds: set[Any] = set()

    def accept(self, kind: Any) -> None:
        """Remember what `must_wait` returned, for calls of that kind not to wait again."""
        if kind is not EACH:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds.add(kind)

    def must_wait(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the kind of a call that must wait, `EACH` if each of its kind must; else None.

        A call waits that is the first of its kind, or one that CuPy waits for too.
        """
        modes = (*args, kwargs.get("mode"))
        if name in _BY_ELEMENTS or any(type(mode) is str and mode == "raise" for mode in modes):
            return EACH
        if linalg_raises and name.startswith("linalg."):
            return EACH
        try:
            kind = (name, _looks(args), _looks(tuple(kwargs.items())))
            return None if kind in self._kinds else kind
        except TypeError:  # what has no hash, or an array that only the worker can describe
            return EACH


def _looks(value: Any) -> Any:
    """Return what the checks of an argument depend on; TypeError where it is not known."""
    if isinstance(value, Remote):
        known = getattr(value, "_known", value)
        if known is None:
            raise TypeError("not described yet")
        return known
    if type(value) in (tuple, list):
        return type(value), tuple([_looks(item) for item in value])
    if type(value) is slice:
        return slice, _looks((value.start, value.stop, value.step))
    return type(value), value
