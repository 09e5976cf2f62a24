"""Convolve signals by FFT, in blocks that overlap, and find a chirp in noise with it."""

from typing import Any

import numpy as np

SIGNAL, CHIRP, BLOCK, PLACE = 4000, 200, 512, 2718


def _overlap_add(xp: Any, signal: Any, kernel: Any) -> Any:
    """Return the full convolution, one block of the signal after the other."""
    size = 1 << (BLOCK + kernel.size - 2).bit_length()
    spectrum = xp.fft.rfft(kernel, size)
    made = xp.zeros(signal.size + kernel.size - 1, signal.dtype)
    for start in range(0, signal.size, BLOCK):
        part = signal[start : start + BLOCK]
        piece = xp.fft.irfft(xp.fft.rfft(part, size) * spectrum, size)
        made[start : start + part.size + kernel.size - 1] += piece[: part.size + kernel.size - 1]
    return made


def run(xp: Any) -> list[Any]:
    """Return the convolution, the place of the chirp, and the power spectrum in decibels."""
    rng = np.random.default_rng(3)
    time = xp.linspace(0, 1, CHIRP)
    chirp = xp.sin(2 * np.pi * (5 * time + 20 * time**2)) * xp.hanning(CHIRP)
    signal = xp.asarray(rng.normal(0, 0.5, SIGNAL))
    signal[PLACE : PLACE + CHIRP] += chirp
    matched = _overlap_add(xp, signal, chirp[::-1])
    direct = xp.convolve(signal, chirp[::-1])
    assert bool(xp.allclose(matched, direct))
    place = int(xp.argmax(xp.abs(matched))) - CHIRP + 1
    assert abs(place - PLACE) <= 2, place
    frames = xp.lib.stride_tricks.as_strided(signal, (30, 256), (128 * 8, 8)) * xp.hamming(256)
    power = xp.abs(xp.fft.rfft(frames, axis=1)) ** 2
    decibels = 10 * xp.log10(power.mean(axis=0) + 1e-12)
    top = xp.fft.fftshift(xp.fft.fft(signal[:1024]))
    return [matched, place, decibels, xp.abs(top), xp.corrcoef(matched, direct)]
