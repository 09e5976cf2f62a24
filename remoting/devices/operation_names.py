"""Names of the operations of the array door: a client may call these alone.

They are names of CuPy's functions. Aliases (``acos``, ``amax``, ``round_``) and functions that
need no device are the drop-in's own affair and are not listed.
"""

_UFUNCS = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_count
    bitwise_or bitwise_xor cbrt ceil conjugate copysign cos cosh deg2rad divmod equal exp exp2
    expm1 fabs fix float_power floor floor_divide fmax fmin fmod frexp gcd greater greater_equal
    heaviside hypot i0 invert isfinite isinf isnan lcm ldexp left_shift less less_equal log
    log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum
    minimum modf multiply negative nextafter not_equal positive power rad2deg reciprocal
    remainder right_shift rint sign signbit sin sinc sinh sqrt square subtract tan tanh
    true_divide trunc
"""
UFUNCS = tuple(_UFUNCS.split())

_FUNCTIONS = """
    all allclose any append arange argmax argmin argpartition argsort argwhere around
    array_equal array_equiv average bartlett bincount blackman broadcast_to choose clip compress
    concatenate convolve copyto corrcoef correlate count_nonzero cov cross cumprod cumsum delete
    diag diagflat diff digitize dot ediff1d einsum extract eye fill_diagonal flatnonzero flip
    full gradient hamming hanning histogram histogram2d histogramdd imag indices inner interp
    intersect1d isclose iscomplex isin isneginf isposinf isreal kaiser kron lexsort linspace
    logspace matmul max may_share_memory mean median min nan_to_num nanargmax nanargmin
    nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar nonzero
    outer packbits pad partition percentile piecewise place poly polyfit prod ptp put put_along_axis
    putmask quantile ravel_multi_index real real_if_close repeat roll roots rot90 searchsorted
    select setdiff1d setxor1d shares_memory sort sort_complex std sum take take_along_axis
    tensordot tile trace trapezoid tri tril trim_zeros triu union1d unique unpackbits
    unravel_index unwrap vander var vdot where angle stack cumulative_prod diag_indices
    diag_indices_from ix_ tril_indices tril_indices_from triu_indices triu_indices_from
    cumulative_sum meshgrid resize polyadd polymul polysub polyval
"""
FUNCTIONS = tuple(_FUNCTIONS.split())

METHODS = (
    *("byteswap", "copy", "diagonal", "flatten", "partition", "squeeze", "swapaxes", "transpose"),
)
"""Methods of arrays, which take the arguments of the client."""

_LINALG = """
    cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_power matrix_rank norm pinv qr
    slogdet solve svd tensorinv tensorsolve
"""
LINALG = tuple(_LINALG.split())

_POLYNOMIAL = """
    polynomial.polycompanion polynomial.polyval polynomial.polyvalfromroots
    polynomial.polyvander polyutils.as_series polyutils.trimcoef polyutils.trimseq
"""
POLYNOMIAL = tuple(_POLYNOMIAL.split())

FFT = (
    *(way + rank for way in ("fft", "ifft", "rfft", "irfft") for rank in ("", "2", "n")),
    *("hfft", "ihfft", "fftfreq", "rfftfreq", "fftshift", "ifftshift"),
)

_RANDOM_STATE = """
    beta binomial chisquare choice dirichlet exponential f gamma geometric gumbel hypergeometric
    laplace logistic lognormal logseries multivariate_normal negative_binomial
    noncentral_chisquare noncentral_f normal pareto permutation poisson power randint
    random_sample rayleigh seed shuffle standard_cauchy standard_exponential standard_gamma
    standard_normal standard_t tomaxint triangular uniform vonmises wald weibull zipf
"""
RANDOM_STATE = tuple(_RANDOM_STATE.split())

_GENERATOR = """
    beta binomial chisquare dirichlet exponential f gamma geometric hypergeometric integers
    logseries poisson power random standard_exponential standard_gamma standard_normal uniform
"""
GENERATOR = tuple(_GENERATOR.split())

BIT_GENERATORS = ("XORWOW", "MRG32k3a", "Philox4x3210")
