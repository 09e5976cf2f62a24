"""Clean a recording: filter, median, envelope and peaks by `cupyx.scipy`, beside SciPy's."""

import importlib
from typing import Any

import numpy as np

COUNT, RATE = 2048, 1000.0


def run(xp: Any) -> list[Any]:
    """Return the cleaned signal, its spectrum, its envelope, and a smoothed spectrogram."""
    root = "scipy" if xp is np else "cupyx.scipy"
    signal: Any = importlib.import_module(root + ".signal")
    ndimage: Any = importlib.import_module(root + ".ndimage")
    special: Any = importlib.import_module(root + ".special")
    time = xp.arange(COUNT) / RATE
    noise = xp.asarray(np.random.default_rng(9).normal(0, 0.2, COUNT))
    wanted = xp.sin(2 * np.pi * 30 * time) * (1 + 0.5 * xp.sin(2 * np.pi * 2 * time))
    heard = wanted + noise + 0.8 * xp.sin(2 * np.pi * 200 * time)
    taps = xp.asarray(np.sinc(0.14 * (np.arange(65) - 32)) * np.hamming(65))
    taps /= taps.sum()
    clean = signal.fftconvolve(heard, taps, mode="same")
    smooth = ndimage.median_filter(clean, size=5)
    blurred = ndimage.gaussian_filter1d(smooth, 2.0)
    envelope = xp.abs(signal.hilbert(blurred))
    frames = xp.stack([blurred[at : at + 256] for at in range(0, COUNT - 256, 128)])
    power = xp.abs(xp.fft.rfft(frames * xp.hanning(256), axis=1)) ** 2
    map_of = ndimage.uniform_filter(xp.log1p(power), size=3)
    inside = (blurred[1:-1] > blurred[:-2]) & (blurred[1:-1] > blurred[2:])
    peaks = xp.flatnonzero(inside) + 1
    chance = special.erfc(xp.abs(noise) / (0.2 * np.sqrt(2)))
    return [clean, smooth, blurred, envelope, map_of, peaks, chance]
