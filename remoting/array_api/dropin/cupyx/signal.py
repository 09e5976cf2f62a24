"""Signal processing that SciPy lacks, by the server's CuPy: a real GPU alone has it."""

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
