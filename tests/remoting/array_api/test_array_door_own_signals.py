"""`cupyx.signal` and `cupyx.linalg` on emulated GPUs, against formulas and NumPy's results."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from typing import Any

import numpy as np
import pytest

RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def signal(cp: Any) -> Any:
    """Give `cupyx.signal`, which a look at `cupyx` imports."""
    assert cp.__name__ == "cupy"
    return importlib.import_module("cupyx").signal


@pytest.fixture(scope="module")
def linalg(cp: Any) -> Any:
    """Give `cupyx.linalg`."""
    assert cp.__name__ == "cupy"
    return importlib.import_module("cupyx").linalg


def close(made: Any, wanted: Any, rtol: float = 1e-9) -> None:
    """Compare an array of the device with one of NumPy."""
    np.testing.assert_allclose(made.get(), wanted, rtol=rtol, atol=1e-9)


def test_a_cepstrum_and_back(cp: Any, signal: Any) -> None:
    x = RNG.random(63) + 0.1
    spectrum = np.fft.fft(x)
    close(signal.real_cepstrum(cp.asarray(x)), np.fft.ifft(np.log(np.abs(spectrum))).real)
    ceps, delay = signal.complex_cepstrum(cp.asarray(x))
    assert ceps.shape == delay.shape == (63,)
    assert len(set(delay.get().tolist())) == 1
    fading = 0.5 ** np.arange(64)
    ceps, delay = signal.complex_cepstrum(cp.asarray(fading))
    assert not delay.any()
    close(signal.inverse_complex_cepstrum(ceps, 0), fading)
    turned = np.fft.fft(ceps.get()) + 2j * np.pi / 32.5 * np.arange(64)
    close(signal.inverse_complex_cepstrum(ceps, 2), np.fft.ifft(np.exp(turned)).real)
    for size in (62, 63):
        made = signal.minimum_phase(cp.asarray(x), size)
        magnitudes = np.abs(np.fft.fft(x, size))
        close(abs(cp.fft.fft(made)), magnitudes, 1e-6)


def test_convolutions_of_higher_order(cp: Any, signal: Any) -> None:
    x, two, three = RNG.random(30), RNG.random((4, 6)), RNG.random((3, 2, 5))
    places = range(30 - 6 + 1)
    wanted = [
        sum(x[i + 3 - a] * x[i + 5 - b] * two[a, b] for a in range(4) for b in range(6))
        for i in places
    ]
    close(signal.convolve1d2o(cp.asarray(x), cp.asarray(two)), wanted)
    made = signal.convolve1d3o(cp.asarray(x), cp.asarray(three))
    cells = [(a, b, c) for a in range(3) for b in range(2) for c in range(5)]
    assert made.shape == (26,)
    close(
        made,
        [
            sum(x[i + 2 - a] * x[i + 1 - b] * x[i + 4 - c] * three[a, b, c] for a, b, c in cells)
            for i in range(26)
        ],
    )


def test_filters_of_finite_response(cp: Any, signal: Any) -> None:
    b, x = RNG.random(5), RNG.random((3, 80))
    wanted = np.stack([np.convolve(row, b)[:80] for row in x])
    close(signal.firfilter(cp.asarray(b), cp.asarray(x)), wanted)
    close(signal.firfilter_zi(cp.asarray(b)), [b[k:].sum() for k in range(1, 5)])
    smooth = signal.firfilter2(cp.asarray(np.ones(3) / 3), cp.full(40, 2.0))
    close(smooth, np.full(40, 2.0))
    with pytest.raises(NotImplementedError, match="gust"):
        signal.firfilter2(cp.asarray(b), cp.asarray(x), method="gust")
    with pytest.raises(ValueError, match="greater than padlen, which is 15"):
        signal.firfilter2(cp.asarray(b), cp.zeros(15))
    first, state = signal.firfilter(cp.asarray(b), cp.asarray(x[:, :3]), zi=cp.zeros((3, 4)))
    rest, _ = signal.firfilter(cp.asarray(b), cp.asarray(x[:, 3:]), zi=state)
    close(cp.concatenate([first, rest], axis=1), wanted)


def test_channels_keep_all_of_a_signal(cp: Any, signal: Any) -> None:
    x, h = RNG.random(64).astype(np.float32), RNG.random(12)
    made = signal.channelize_poly(cp.asarray(x), cp.asarray(h), 4)
    assert made.shape == (4, 16)
    assert made.dtype == np.complex128
    reg = np.zeros((4, 3))
    for place in range(16):
        reg = np.column_stack([x[4 * place : 4 * place + 4][::-1], reg[:, :-1]])
        rows = (reg * h.reshape(3, 4).T).sum(axis=1)
        close(made[:, place], np.conj(np.fft.fft(rows)))
    with pytest.raises(NotImplementedError, match="33 taps"):
        signal.channelize_poly(cp.zeros(99), cp.zeros(99), 3)
    with pytest.raises(NotImplementedError, match="int64"):
        signal.channelize_poly(cp.zeros(99, int), cp.zeros(9, int), 3)


def test_pulses(cp: Any, signal: Any) -> None:
    x, pulse = RNG.random((4, 16)), RNG.random(16)
    wanted = np.fft.ifft(np.fft.fft(x) * np.fft.fft(pulse).conj())
    close(signal.pulse_compression(cp.asarray(x), cp.asarray(pulse)), wanted.real)
    given = [
        ("hann", 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(4) / 3)),
        (cp.arange(4.0), np.arange(4)),
        (lambda f: f * 2, np.fft.fftfreq(4) * 2),
    ]
    for window, numbers in given:
        made = signal.pulse_doppler(cp.asarray(x), window)
        close(made, np.fft.fft((x.T * numbers), axis=1).T)
    one = signal.pulse_compression(cp.asarray(x), cp.asarray(pulse), normalize=True, nfft=32)
    norm = np.fft.fft(pulse / np.linalg.norm(pulse), 32).conj()
    close(one, np.fft.ifft(np.fft.fft(x, 32) * norm).real)
    with pytest.raises(ValueError, match="same length"):
        signal.pulse_doppler(cp.asarray(x), cp.zeros(16))
    with pytest.raises(ValueError, match="two axes"):
        signal.pulse_doppler(cp.zeros(3))


def test_thresholds_of_neighbours(cp: Any, signal: Any) -> None:
    x = RNG.random((20, 24)).astype(np.float32)
    threshold, found = signal.ca_cfar(cp.asarray(x), (1, 2), (2, 3))
    alpha = signal.cfar_alpha(1e-3, 7 * 11 - 3 * 5)
    wanted = np.zeros_like(x)
    for i in range(3, 17):
        for j in range(5, 19):
            around = x[i - 3 : i + 4, j - 5 : j + 6].sum() - x[i - 1 : i + 2, j - 2 : j + 3].sum()
            wanted[i, j] = alpha * around / (7 * 11 - 3 * 5)
    close(threshold, wanted, 1e-5)
    np.testing.assert_array_equal(found.get(), x - threshold.get() > 0)
    line, _ = signal.ca_cfar(cp.asarray(x[0]), 1, 2, pfa=0.1)
    assert not line[:3].any() and not line[-3:].any() and (line[3:-3] > 0).all()
    with pytest.raises(ValueError, match="too small"):
        signal.ca_cfar(cp.zeros(10), 2, 3)
    with pytest.raises(TypeError, match="two dimensional"):
        signal.ca_cfar(cp.zeros((9, 9)), (1,), (1, 1))
    with pytest.raises(TypeError, match="1D and 2D"):
        signal.ca_cfar(cp.zeros((9, 9, 9)), 1, 1)


def test_beams_and_shifts(cp: Any, signal: Any) -> None:
    x = np.array([[1, 2, 3], [4, 5, 7]], np.float64)
    close(signal.mvdr(cp.asarray(x), cp.asarray([1.0, 2.0])), [-2, 1.5])
    with pytest.raises(ValueError, match="more sensors"):
        signal.mvdr(cp.zeros((3, 2)), cp.zeros(3))
    with pytest.raises(ValueError, match="steering vector"):
        signal.mvdr(cp.zeros((2, 3)), cp.zeros(3))
    turn = np.exp(-2j * np.pi * 0.5 / 8 * np.arange(6))
    close(signal.freq_shift(cp.arange(6), 0.5, 8), np.arange(6) * turn)
    with pytest.raises(TypeError, match="real numbers"):
        signal.freq_shift(cp.zeros(3, complex), 1, 2).get()


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_a_cholesky_factor_solves(cp: Any, linalg: Any, dtype: Any) -> None:
    a = RNG.random((2, 5, 5)) + (1j * RNG.random((2, 5, 5)) if dtype is np.complex128 else 0)
    a = (a @ a.conj().swapaxes(1, 2) + np.eye(5)).astype(dtype)
    inverse = linalg.invh(cp.asarray(a[0]))
    close(inverse, np.linalg.inv(a[0]), 1e-3 if dtype is np.float32 else 1e-9)
    assert inverse.flags.c_contiguous and inverse.dtype == dtype
    b = RNG.random((2, 5, 2)).astype(dtype)
    factor = np.linalg.cholesky(a)
    wanted = np.linalg.solve(a, b)
    rtol = 2e-3 if dtype is np.float32 else 1e-9
    junk = factor + np.triu(np.full((5, 5), np.nan), 1)
    for lower, given in ((True, junk), (False, junk.conj().swapaxes(1, 2))):
        close(linalg.cho_solve((cp.asarray(given), lower), cp.asarray(b)), wanted, rtol)
    with pytest.raises(ValueError, match="NaN or infinity"):
        linalg.cho_solve((cp.asarray(factor), True), cp.full((2, 5, 2), np.inf))
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        linalg.invh(cp.zeros((2, 3)))
    with pytest.raises(TypeError, match="array of the device"):
        linalg.invh(a[0])
    errstate = importlib.import_module("cupyx").errstate
    with errstate(linalg="raise"), pytest.raises(np.linalg.LinAlgError):
        linalg.invh(cp.asarray(-a[0]))


def test_a_sparse_system(cp: Any, linalg: Any) -> None:
    a = np.diag(np.arange(2.0, 8)) + np.diag(np.ones(5), 1) + np.diag(np.ones(5), -1)
    b = RNG.random(6)
    made = linalg.sparse.lschol(cp.asarray(a), cp.asarray(b))
    assert made.dtype == np.float64
    close(made, np.linalg.solve(a, b))
    with pytest.raises(ValueError, match="1-d"):
        linalg.sparse.lschol(cp.asarray(a), cp.zeros((6, 1)))
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        linalg.sparse.lschol(cp.zeros((2, 3)), cp.zeros(2))
