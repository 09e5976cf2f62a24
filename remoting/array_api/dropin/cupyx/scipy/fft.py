"""Fourier, cosine, sine and Hankel transforms."""

from cupyx import _extensions

_extensions.fill(
    globals(),
    """
    dct dctn dst dstn fft fft2 fftfreq fftn fftshift fht hfft hfft2 hfftn idct idctn idst idstn
    ifft ifft2 ifftn ifftshift ifht ihfft ihfft2 ihfftn irfft irfft2 irfftn rfft rfft2 rfftfreq
    rfftn
    """,
    """
    next_fast_len
    """,
)
