"""Register two images: phase correlation finds the shift, Gauss and Newton the rest and the gain.

The shifted image is made by Fourier's shift theorem, so its true shift is known to a fraction of
a pixel.
"""

from typing import Any

import numpy as np

SIDE, SHIFT, GAIN = 64, (5.3, -7.6), 1.25


def _moved(xp: Any, image: Any, shift: Any) -> Any:
    """Return an image moved by fractions of pixels, around its edges."""
    rows = xp.fft.fftfreq(SIDE)[:, None]
    columns = xp.fft.rfftfreq(SIDE)[None, :]
    turn = xp.exp(-2j * np.pi * (rows * shift[0] + columns * shift[1]))
    return xp.fft.irfft2(xp.fft.rfft2(image) * turn, s=image.shape)


def run(xp: Any) -> list[Any]:
    """Return the whole shift, the fine one, the gain, and the image laid back."""
    y, x = xp.meshgrid(xp.arange(SIDE), xp.arange(SIDE), indexing="ij")
    spots = xp.asarray(np.random.default_rng(5).uniform(10, 54, (12, 2)))
    image = xp.exp(
        -((y[..., None] - spots[:, 0]) ** 2 + (x[..., None] - spots[:, 1]) ** 2) / 18
    ).sum(axis=-1)
    other = GAIN * _moved(xp, image, SHIFT)
    cross = xp.fft.fft2(other) * xp.conj(xp.fft.fft2(image))
    peaks = xp.fft.ifft2(cross / xp.maximum(xp.abs(cross), 1e-9)).real
    at = xp.unravel_index(xp.argmax(peaks), peaks.shape)
    whole = [int(each) - SIDE * (int(each) > SIDE // 2) for each in at]
    shift = np.asarray(whole, float)
    gain = 1.0
    for _ in range(12):
        back = _moved(xp, other, -shift)
        rows, columns = xp.gradient(back)
        slopes = xp.stack([rows.ravel(), columns.ravel(), image.ravel()], axis=1)
        rest = (back - gain * image).ravel()
        # To move `back` by a step changes it by the step times the slope.
        step = xp.linalg.lstsq(slopes, rest, rcond=None)[0]
        step = step.get() if hasattr(step, "get") else step
        shift = shift - step[:2]
        gain += float(step[2])
        if np.abs(step).max() < 1e-6:
            break
    laid = _moved(xp, other, -shift) / gain
    assert np.allclose(shift, SHIFT, atol=1e-3), shift
    assert abs(gain - GAIN) < 1e-3, gain
    return [np.asarray(whole), shift, gain, laid, xp.abs(laid - image).max() < 1e-2]
