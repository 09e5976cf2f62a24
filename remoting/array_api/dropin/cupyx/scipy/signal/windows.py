"""Window functions."""

from cupyx import _extensions

_extensions.fill(
    globals(),
    """
    barthann bartlett blackman blackmanharris bohman boxcar chebwin cosine exponential flattop
    gaussian general_cosine general_gaussian general_hamming get_window hamming hann kaiser
    kaiser_bessel_derived lanczos nuttall parzen taylor triang tukey
    """,
)
