"""The functions of `cupyx.signal` on an emulated GPU: CuPy's documented results by NumPy.

SciPy has none of them. Formulas follow CuPy 14.2 where it differs from the literature: the delay of
a cepstrum is turned around a middle that is whole in one direction, and a half in the other.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.signals import filter_states

Operation = Callable[..., Any]


def operations() -> dict[str, Operation]:
    """Return the functions by name; those that need SciPy raise an ImportError without it."""
    return {made.__name__: made for made in _FUNCTIONS}


def _scipy_signal() -> Any:
    return importlib.import_module("scipy.signal")


# --- acoustics ------------------------------------------------------------------------------------


def real_cepstrum(x: Any, n: int | None = None, axis: int = -1) -> Any:
    """Return the inverse transform of the logarithm of a spectrum's magnitude."""
    spectrum = np.fft.fft(x, n=n, axis=axis)
    return np.fft.ifft(np.log(np.abs(spectrum)), n=n, axis=axis).real


def complex_cepstrum(x: Any, n: int | None = None, axis: int = -1) -> Any:
    """Return the cepstrum with its phase, and for each element the delay that was taken out."""
    spectrum = np.fft.fft(x, n=n, axis=axis)
    phase = np.unwrap(np.angle(spectrum))
    middle = (phase.size + 1) // 2
    delay = np.round(phase.ravel()[min(middle, phase.size - 1)] / np.pi)
    phase = phase - (np.pi * delay / middle * np.arange(phase.size)).reshape(phase.shape)
    made = np.fft.ifft(np.log(np.abs(spectrum)) + 1j * phase, n=n, axis=axis).real
    return made, np.full(spectrum.shape, delay, phase.dtype)


def inverse_complex_cepstrum(ceps: Any, ndelay: Any) -> Any:
    """Return the signal of a cepstrum and its delay."""
    spectrum = np.fft.fft(ceps)
    turn = np.pi * int(ndelay) / (0.5 * (spectrum.size + 1)) * np.arange(spectrum.size)
    phase = spectrum.imag + turn.reshape(spectrum.shape)
    return np.fft.ifft(np.exp(spectrum.real + 1j * phase)).real


def minimum_phase(x: Any, n: int | None = None) -> Any:
    """Return the signal of the least delay with the same magnitudes."""
    ceps = real_cepstrum(x, n=len(x) if n is None else n)
    size = ceps.size
    odd = size % 2
    fold = np.zeros(size)
    fold[0] = 1
    fold[1 : (size + odd) // 2] = 2
    if not odd:
        fold[size // 2] = 1
    return np.fft.ifft(np.exp(np.fft.fft(ceps * fold))).real


# --- filters --------------------------------------------------------------------------------------


def convolve1d2o(in1: Any, in2: Any, mode: str = "valid", method: str = "direct") -> Any:
    """Return the sums of products of two elements, weighted by a matrix, at each place."""
    del mode, method  # the client knows that they are these
    rows = [_windows(in1, size, max(in2.shape)) for size in in2.shape]
    return np.einsum("ix,iy,xy->i", *rows, in2, optimize=True)


def convolve1d3o(in1: Any, in2: Any, mode: str = "valid", method: str = "direct") -> Any:
    """Return the sums of products of three elements, weighted by a cube, at each place."""
    del mode, method
    rows = [_windows(in1, size, max(in2.shape)) for size in in2.shape]
    return np.einsum("ix,iy,iz,xyz->i", *rows, in2, optimize=True)


def _windows(x: Any, size: int, longest: int) -> Any:
    """Return `size` elements of each place, the last one first."""
    places = x.shape[0] - longest + 1
    return np.lib.stride_tricks.sliding_window_view(x, size)[:places, ::-1]


def firfilter(b: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """Return a signal behind a filter of finite response."""
    return filter_states.lfilter(b, np.ones(1), x, axis, zi)


def firfilter_zi(b: Any) -> Any:
    """Return the state of a filter that gives a step back unchanged."""
    sums = np.cumsum(b[:0:-1])[::-1]
    return sums.astype(np.result_type(np.float32, b))


def firfilter2(
    b: Any,
    x: Any,
    axis: int = -1,
    padtype: str | None = "odd",
    padlen: int | None = None,
    method: str = "pad",
    irlen: int | None = None,
) -> Any:
    """Return a signal behind a filter that goes forwards and then backwards."""
    del method, irlen
    return _scipy_signal().filtfilt(np.atleast_1d(b), 1.0, x, axis, padtype, padlen)


def freq_shift(x: Any, freq: float, fs: float) -> Any:
    """Return magnitudes with the phase of a frequency, element by element."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        raise TypeError("freq_shift: CuPy takes real numbers here")
    turn = -2 * np.pi * freq / fs * np.arange(x.size).reshape(x.shape)
    return x.astype(np.float64) * np.exp(1j * turn)


def channelize_poly(x: Any, h: Any, n_chans: int) -> Any:
    """Return a signal in channels, which a polyphase filter with taps `h` parts.

    Returns:
        Array of (n_chans, len(x) // n_chans).
    """
    dtype = np.promote_types(x.dtype, h.dtype)
    taps, places = len(h) // n_chans, len(x) // n_chans
    filters = np.conj(h[: taps * n_chans].astype(dtype).reshape(taps, n_chans))
    # Newest element first in a channel, and nothing in front of the signal.
    rows = np.conj(x[: places * n_chans].astype(dtype).reshape(places, n_chans)[:, ::-1])
    made = np.zeros((places, n_chans), np.result_type(dtype, np.complex64))
    for tap in range(min(taps, places)):
        made[tap:] += filters[tap] * rows[: places - tap]
    return np.conj(np.fft.fft(made)).T.astype(made.dtype)


# --- radar ----------------------------------------------------------------------------------------


def _prepared(x: Any, normalize: bool, window: Any) -> Any:
    if window is not None:
        if not isinstance(window, np.ndarray):
            window = _scipy_signal().get_window(window, x.shape[-1], False).astype(x.dtype)
        x = x * window
    return x / np.linalg.norm(x) if normalize else x


def pulse_compression(
    x: Any, template: Any, normalize: bool = False, window: Any = None, nfft: int | None = None
) -> Any:
    """Return the correlation of each row with a pulse."""
    size = x.shape[1] if nfft is None else nfft
    spectrum = np.fft.fft(_prepared(template, normalize, window), size)
    made = np.fft.ifft(np.fft.fft(x, size) * spectrum.conj(), size)
    return made if np.result_type(x, template).kind == "c" else made.real


def pulse_doppler(x: Any, window: Any = None, nfft: int | None = None) -> Any:
    """Return the spectrum across pulses, of each sample."""
    return np.fft.fft(_prepared(x.T, False, window), x.shape[0] if nfft is None else nfft).T


def mvdr(x: Any, sv: Any, calc_cov: bool = True) -> Any:
    """Return the weights of sensors that let one direction pass, and others as little as may be."""
    weights = np.linalg.inv(np.cov(x, dtype=x.dtype) if calc_cov else x).dot(sv)
    return weights / sv.conj().dot(weights)


def ca_cfar(array: Any, guard_cells: Any, reference_cells: Any, pfa: float = 1e-3) -> Any:
    """Return the threshold of each cell by the mean of its neighbours, and the cells above it."""
    guards, cells = np.atleast_1d(guard_cells), np.atleast_1d(reference_cells)
    table: Any = array
    for axis in range(array.ndim):  # a GPU adds pairs in 32 bits, with smaller errors than a row
        table = np.cumsum(table, axis=axis, dtype=np.float64)
    sums = np.zeros([length + 1 for length in array.shape])
    sums[(slice(1, None),) * array.ndim] = table
    outer, inner = guards + cells, guards
    count = int(np.prod(2 * outer + 1) - np.prod(2 * inner + 1))
    factor = pfa ** (-1.0 / count) - 1
    made = np.zeros(array.shape, np.float32)
    place = tuple(
        slice(int(far), length - int(far)) for far, length in zip(outer, array.shape, strict=True)
    )
    ring = _boxes(sums, outer, outer) - _boxes(sums, inner, outer)
    made[place] = factor * ring
    return made, array - made > 0


def _boxes(sums: Any, half: Any, margin: Any) -> Any:
    """Return the sums of boxes of `2 * half + 1` cells around those that have a whole margin."""
    made: Any = sums
    for axis in range(sums.ndim):
        near, length = int(margin[axis]) - int(half[axis]), sums.shape[axis]
        places = length - 1 - 2 * int(margin[axis])
        low = np.take(made, range(near, near + places), axis)
        step = near + 2 * int(half[axis]) + 1
        made = np.take(made, range(step, step + places), axis) - low
    return made


_FUNCTIONS: tuple[Operation, ...] = (
    *(ca_cfar, channelize_poly, complex_cepstrum, convolve1d2o, convolve1d3o, firfilter),
    *(firfilter2, firfilter_zi, freq_shift, inverse_complex_cepstrum, minimum_phase, mvdr),
    *(pulse_compression, pulse_doppler, real_cepstrum),
)
