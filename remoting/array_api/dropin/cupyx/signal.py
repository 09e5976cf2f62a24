"""Signal processing that SciPy lacks: cepstra, radar, channels, convolutions of higher order."""

from __future__ import annotations

from typing import Any

import cupy as _cupy

from cupyx import _extensions

_extensions.fill(
    globals(),
    """
    channelize_poly convolve1d2o convolve1d3o firfilter firfilter2 firfilter_zi freq_shift
    inverse_complex_cepstrum minimum_phase mvdr pulse_compression pulse_doppler real_cepstrum
    """,
    """
    ca_cfar complex_cepstrum
    """,
)

_compression: Any = globals()["pulse_compression"]
_doppler: Any = globals()["pulse_doppler"]
_TAPS_MAX = 32


def _of_order(ndim: int) -> Any:
    def check(in1: Any, in2: Any, mode: str = "valid", method: str = "direct") -> None:
        if in1.ndim != 1:
            raise ValueError("in1 should have one dimension")
        if in2.ndim != ndim:
            raise ValueError(f"in2 should have {ndim} dimensions")
        if mode != "valid":
            raise NotImplementedError(f"mode {mode!r} is not implemented, and 'valid' is")
        if method != "direct":
            raise NotImplementedError(f"method {method!r} is not implemented, and 'direct' is")

    return check


def _channels(x: Any, h: Any, n_chans: int) -> None:
    dtype = _cupy.promote_types(x.dtype, h.dtype)
    if dtype.char not in "fdFD":
        raise NotImplementedError(f"Data type ({dtype}) not allowed.")
    if (taps := len(h) // n_chans) > _TAPS_MAX:
        raise NotImplementedError(
            f"each filter would have {taps} taps, and {_TAPS_MAX} are the most: take a shorter "
            "filter or more channels"
        )


def _both_ways(
    b: Any,
    x: Any,
    axis: int = -1,
    padtype: Any = "odd",
    padlen: Any = None,
    method: str = "pad",
    irlen: Any = None,
) -> None:
    del irlen
    if method not in ("pad", "gust"):
        raise ValueError("method must be 'pad' or 'gust'.")
    if method == "gust":
        raise NotImplementedError("gust method not supported yet")
    if padtype not in ("even", "odd", "constant", None):
        raise ValueError(
            f"Unknown value {padtype!r} given to padtype.  padtype must be 'even', 'odd', "
            "'constant', or None."
        )
    edge = 0 if padtype is None else 3 * len(b) if padlen is None else padlen
    if x.shape[axis] <= edge:
        raise ValueError(
            f"The length of the input vector x must be greater than padlen, which is {edge}."
        )


def _sensors(x: Any, sv: Any, calc_cov: bool = True) -> None:
    del calc_cov
    if x.shape[0] > x.shape[1]:
        raise ValueError("there are more sensors than samples: a row is a sensor, so transpose x")
    if x.shape[0] != sv.shape[0]:
        raise ValueError("the steering vector has one number for each sensor, a row of x")


def _cells(array: Any, guard_cells: Any, reference_cells: Any, pfa: float = 1e-3) -> None:
    del pfa
    if array.ndim not in (1, 2):
        raise TypeError("Only 1D and 2D arrays are currently supported.")
    pairs = [(guard_cells, reference_cells)]
    if array.ndim == 2:
        if len(guard_cells) != 2 or len(reference_cells) != 2:
            raise TypeError("Guard and reference cells must be two dimensional.")
        pairs = list(zip(guard_cells, reference_cells))
    for length, (guards, cells) in zip(array.shape, pairs):
        if length <= 2 * guards + 2 * cells:
            raise ValueError("Array too small for given parameters")


def cfar_alpha(pfa: float, N: int) -> float:
    """Return the factor of the threshold for a rate of false alarms and `N` reference cells."""
    return N * (pfa ** (-1.0 / N) - 1)


def pulse_compression(
    x: Any, template: Any, normalize: bool = False, window: Any = None, nfft: int | None = None
) -> Any:
    """Return the correlation of each row of pulses with a pulse, by the transform.

    Args:
        x: array of (pulses, samples).
        template: the pulse.
        normalize: whether the pulse gets the norm 1.
        window: of the pulse's length: an array, a name for `get_window`, or a function of the
            frequencies.
        nfft: length of the transform; by default the number of samples.
    """
    _two_axes(x)
    return _compression(x, template, normalize, _window(window, template), nfft)


def pulse_doppler(x: Any, window: Any = None, nfft: int | None = None) -> Any:
    """Return the spectrum across pulses of each sample.

    Args:
        x: array of (pulses, samples).
        window: of the number of pulses, as in `pulse_compression`.
        nfft: length of the transform; by default the number of pulses.
    """
    _two_axes(x)
    return _doppler(x, _window(window, x.T), nfft)


def _two_axes(x: Any) -> None:
    if x.ndim != 2:
        raise ValueError(f"x has two axes, pulses and samples, and this has {x.ndim}")


def _window(window: Any, x: Any) -> Any:
    """Return a window that can travel: a function of the program is called here."""
    count = x.shape[-1]
    if callable(window):
        window = window(_cupy.fft.fftfreq(count).astype(x.dtype))
    elif isinstance(window, _cupy.ndarray) and window.shape != (count,):
        raise ValueError("window must have the same length as data")
    return window


for _name, _check in (
    ("ca_cfar", _cells),
    ("channelize_poly", _channels),
    ("convolve1d2o", _of_order(2)),
    ("convolve1d3o", _of_order(3)),
    ("firfilter2", _both_ways),
    ("mvdr", _sensors),
):
    globals()[_name] = _extensions.checked(globals()[_name], _check)
