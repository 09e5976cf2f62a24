"""Filters with a state in the form of CuPy, for an emulated GPU, which computes by SciPy.

The state of a filter lets a signal be filtered in parts. SciPy keeps delays, the sums that a direct
form carries from one sample to the next. CuPy 14.2 keeps samples, since its filters are parallel:
the last `M = len(b) - 1` inputs and the last `N = len(a) - 1` outputs, the oldest first. A delay is
a sum of these samples, so a state becomes SciPy's by a product with the filter's coefficients::

    delay[m] = sum of b[m + 1 + k] * x[-1 - k] - a[m + 1 + k] * y[-1 - k] over k

The state of a step's end is the one whose next outputs are all equal. CuPy looks for it among the
outputs that one input more shifts by nothing, which is a linear system for the last outputs.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

Operation = Callable[..., Any]


def operations() -> dict[str, Operation]:
    """Return the functions by name; they raise an ImportError where there is no SciPy."""
    return {made.__name__: made for made in (lfilter, lfilter_zi, lfiltic, sosfilt, sosfilt_zi)}


def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """Return a filtered signal; with a state ``zi`` also the next one.

    Raises:
        ValueError: ``zi`` is not of the shape of ``x``, with `len(b) + len(a) - 2` along ``axis``.
    """
    if zi is None:
        return _scipy_lfilter()(b, a, x, axis)
    b, a = np.atleast_1d(b), np.atleast_1d(a)
    dtype = np.result_type(x, b / a[0], *([a] if a.size > 1 else []))
    axis = range(x.ndim)[axis]  # an IndexError for one that is not there
    _need_shape(zi, _resized(x.shape, axis, b.size + a.size - 2))
    made, state = _filtered(
        b / a[0], a / a[0], np.moveaxis(x, axis, -1), np.moveaxis(zi, axis, -1), dtype
    )
    return _back(made, axis), _back(state, axis)


def sosfilt(sos: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """Return a signal behind sections of two poles each; with a state ``zi`` also the next one.

    Raises:
        ValueError: ``zi`` is not of the shape of ``x`` for each section, with 4 along ``axis``.
    """
    if zi is None:
        return _scipy_signal().sosfilt(sos, x, axis)
    axis = range(x.ndim)[axis]
    _need_shape(zi, (len(sos), *_resized(x.shape, axis, 4)))
    dtype = np.result_type(x, sos)
    made = np.moveaxis(x, axis, -1)
    states: list[Any] = []
    for section, state in zip(sos, zi, strict=True):
        made, after = _section(section, made, np.moveaxis(state, axis, -1), dtype)
        states.append(_back(after, axis))
    return _back(made, axis), np.stack(states).astype(dtype)


def lfiltic(b: Any, a: Any, y: Any, x: Any = None) -> Any:
    """Return the state behind outputs and inputs of the past, of which the newest come first."""
    if y is None and x is None:
        return None
    parts = [
        _newest(past, count)[..., ::-1]
        for past, count in ((x, np.size(b) - 1), (y, np.size(a) - 1))
        if past is not None and count > 0
    ]
    return np.concatenate(parts, axis=-1) if parts else np.empty(0)


def _newest(past: Any, count: int) -> Any:
    """Return the `count` newest samples, where zeros are before the first one."""
    missing = np.zeros((*past.shape[:-1], max(count - past.shape[-1], 0)))
    return np.concatenate([past, missing], axis=-1)[..., :count]


def lfilter_zi(b: Any, a: Any) -> Any:
    """Return the state of a filter at the end of its response to a step."""
    inputs, outputs = b.size - 1, a.size - 1
    ones = np.ones(inputs)
    if not outputs:
        return ones
    b, a = b / a[0], a / a[0]
    dtype = np.result_type(np.float64, a, b)
    return np.concatenate([ones, _settled(b, a, ones, np.ones(outputs + 1), dtype)])


def sosfilt_zi(sos: Any) -> Any:
    """Return the state of sections of two poles at the end of their response to a step."""
    states = np.zeros((len(sos), 4), sos.dtype)
    x: Any = np.ones(3, sos.dtype)
    for section, state in zip(sos, states, strict=True):
        state[:2] = x[:2]
        state[2:] = _settled(section[:3], _one(section[3:]), x[:2], x, sos.dtype)
        x, _ = _section(section, x, state, sos.dtype)
    return states


def _settled(b: Any, a: Any, before: Any, x: Any, dtype: Any) -> Any:
    """Return the outputs before ``x``, oldest first, that let the filter's outputs stay equal."""
    count = a.size - 1
    rest, unit = np.zeros(count), np.eye(count)
    shifted = _filtered(b, a, x, np.concatenate([before, rest]), dtype)[0]
    # Row j: what the output that is j + 1 samples old adds to each output from now on.
    none = np.zeros((count, b.size - 1))
    old = np.concatenate([none, unit[:, ::-1]], axis=1)
    added = _filtered(b, a, np.zeros((count, x.size)), old, dtype)[0]
    matrix = (added[:, :count] - added[:, -count:]).T
    change = shifted[-count:] - shifted[:count]
    # A zero leaves too few equations, for which CuPy takes the least squares. So do we where a
    # coefficient is next to zero: CuPy's solver does not raise there, and leaves infinities.
    linalg: Any = np.linalg
    try:
        found: Any = None if (a[1:] == 0).any() else linalg.solve(matrix, change)
    except np.linalg.LinAlgError:
        found = None
    if found is None:
        found = linalg.lstsq(matrix, change, rcond=None)[0]
    return np.nan_to_num(found, nan=0.0, posinf=np.inf, neginf=-np.inf)[::-1]


def _section(section: Any, x: Any, state: Any, dtype: Any) -> Any:
    """Return a signal behind one section of two poles, and the section's next state."""
    return _filtered(section[:3], _one(section[3:]), x, state, dtype)


def _one(a: Any) -> Any:
    """Return the denominator of a section; CuPy takes its first number for one."""
    return np.concatenate([np.ones(1, a.dtype), a[1:]])


def _filtered(b: Any, a: Any, x: Any, state: Any, dtype: Any) -> Any:
    """Return signals along the last axis behind a filter with ``a[0] == 1``, and the next state."""
    work = np.result_type(dtype, np.float32)  # SciPy has no filters of half precision
    inputs, outputs = b.size - 1, a.size - 1
    old_x, old_y = state[..., :inputs].astype(work), state[..., inputs:].astype(work)
    x, size = x.astype(work), max(inputs, outputs)
    made: Any = np.zeros(x.shape, work)
    if x.size:
        # A filter without delays has a state of one that is always zero, with SciPy too.
        delays = old_x @ _delays(b, size, work) - old_y @ _delays(a, size, work)
        made, _ = _scipy_lfilter()(b.astype(work), a.astype(work), x, -1, delays)
    after = [_last(old_x, x, inputs), _last(old_y, made, outputs)]
    return made.astype(dtype), np.concatenate(after, axis=-1).astype(dtype)


def _delays(coefficients: Any, size: int, dtype: Any) -> Any:
    """Return the matrix that makes `size` delays of the past samples of one kind."""
    past = coefficients.size - 1
    made = np.zeros((past, size), dtype)
    for age in range(past):
        made[past - 1 - age, : past - age] = coefficients[1 + age :]
    return made


def _last(old: Any, new: Any, count: int) -> Any:
    """Return the last `count` samples of the old and new ones."""
    whole = np.concatenate([old, new], axis=-1)
    return whole[..., whole.shape[-1] - count :]


def _back(made: Any, axis: int) -> Any:
    return np.ascontiguousarray(np.moveaxis(made, -1, axis))


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _need_shape(zi: Any, shape: tuple[int, ...]) -> None:
    if zi.shape != shape:
        raise ValueError(f"zi: its shape is {zi.shape}, and the filter's state has {shape}")


def _scipy_lfilter() -> Any:
    return _scipy_signal().lfilter


def _scipy_signal() -> Any:
    return importlib.import_module("scipy.signal")
