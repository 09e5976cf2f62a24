"""The functions of ``cupyx`` that a client may call, by sub-package, declared for both ends.

Each is one operation: the worker's own CuPy, or SciPy on an emulated device, runs it whole. They
are functions of arrays, numbers and text; those that take a function or return an object with
methods are not here. Only plain data is here, because the client reads this file as a program of
any Python from 3.9.

Marks
    The result of ``name`` is one array, for which nothing waits. ``name?`` waits for any result.
    ``name@2`` takes the array for its result as the argument at place 2, as SciPy does; others take
    it by keyword.
"""

from __future__ import annotations

_OWN_SIGNAL = """
ca_cfar? channelize_poly complex_cepstrum? convolve1d2o convolve1d3o firfilter firfilter2
firfilter_zi freq_shift inverse_complex_cepstrum minimum_phase mvdr pulse_compression
pulse_doppler real_cepstrum
"""

_NDIMAGE = """
affine_transform@4 binary_closing@3 binary_dilation@4 binary_erosion@4 binary_fill_holes@2
binary_hit_or_miss@3 binary_opening@3 binary_propagation@3 black_tophat@4 center_of_mass?
convolve@2 convolve1d@3 correlate@2 correlate1d@3 distance_transform_edt extrema? find_objects?
fourier_ellipsoid@4 fourier_gaussian@4 fourier_shift@4 fourier_uniform@4 gaussian_filter@3
gaussian_filter1d@4 gaussian_gradient_magnitude@2 gaussian_laplace@2 generate_binary_structure
grey_closing@4 grey_dilation@4 grey_erosion@4 grey_opening@4 histogram? iterate_structure
label?@2 laplace@1 map_coordinates@2 maximum maximum_filter@3 maximum_filter1d@3
maximum_position? mean median median_filter@3 minimum minimum_filter@3 minimum_filter1d@3
minimum_position? morphological_gradient@4 morphological_laplace@4 percentile_filter@4 prewitt@2
rank_filter@4 rotate@4 shift@2 sobel@2 spline_filter@2 spline_filter1d@3 standard_deviation sum
sum_labels uniform_filter@2 uniform_filter1d@3 variance white_tophat@4 zoom@2
"""

_SIGNAL = """
abcd_normalize? argrelmax? argrelmin? band_stop_obj? bilinear? bilinear_zpk? buttap? butter?
buttord? cheb1ap? cheb1ord? cheb2ap? cheb2ord? cheby1? cheby2? check_COLA? check_NOLA? chirp
choose_conv_method? coherence? convolve convolve2d correlate correlate2d correlation_lags csd?
cspline1d cspline1d_eval cspline2d cwt czt czt_points decimate deconvolve? detrend ellip?
ellipap? ellipord? fftconvolve filtfilt find_peaks? findfreqs? firls firwin firwin2 freqs?
freqs_zpk? freqz? freqz_sos? freqz_zpk? gammatone? gauss_spline gausspulse? get_window
group_delay? hilbert hilbert2 iircomb? iirdesign? iirfilter? iirnotch? iirpeak? invres? invresz?
istft? kaiser_atten? kaiser_beta? kaiserord? lfilter? lfilter_zi? lfiltic? lombscargle lp2bp?
lp2bp_zpk? lp2bs? lp2bs_zpk? lp2hp? lp2hp_zpk? lp2lp? lp2lp_zpk? max_len_seq? medfilt medfilt2d
minimum_phase morlet morlet2 normalize? oaconvolve order_filter peak_prominences? peak_widths?
periodogram? qmf qspline1d qspline1d_eval qspline2d resample? resample_poly residue? residuez?
ricker savgol_coeffs savgol_filter sawtooth sepfir2d sos2tf? sos2zpk? sosfilt? sosfilt_zi?
sosfiltfilt sosfreqz? spectrogram? spline_filter square ss2tf? ss2zpk? stft? sweep_poly
symiirorder1? symiirorder2? tf2sos? tf2ss? tf2zpk? unique_roots? unit_impulse upfirdn
vectorstrength? welch? wiener zoom_fft zpk2sos? zpk2ss? zpk2tf?
"""

_SIGNAL_WINDOWS = """
barthann bartlett blackman blackmanharris bohman boxcar chebwin cosine exponential flattop
gaussian general_cosine general_gaussian general_hamming get_window hamming hann kaiser
kaiser_bessel_derived lanczos nuttall parzen taylor triang tukey
"""

_SPATIAL_DISTANCE = """
canberra cdist chebyshev cityblock correlation cosine distance_matrix euclidean hamming
hellinger jensenshannon kl_divergence minkowski pdist russellrao sqeuclidean
"""

_SPECIAL = """
bdtr@3 bdtrc@3 bdtri@3 beta@2 betainc@3 betaincinv@3 betaln@2 binom@2 boxcox@2 boxcox1p@2
btdtr@3 btdtri@3 cbrt@1 chdtr@2 chdtrc@2 chdtri@2 cosdg@1 cosm1@1 cotdg@1 digamma@1 ellipeinc@2
ellipj? ellipk@1 ellipkinc@2 ellipkm1@1 entr@1 erf@1 erfc@1 erfcinv@1 erfcx@1 erfinv@1 exp1@1
exp10@1 exp2@1 expi@1 expit@1 expm1@1 expn@2 exprel@1 fdtr@3 fdtrc@3 fdtri@3 gamma@1 gammainc@2
gammaincc@2 gammainccinv@2 gammaincinv@2 gammaln@1 gammasgn@1 gdtr@3 gdtrc@3 huber@2 i0@1 i0e@1
i1@1 i1e@1 inv_boxcox@2 inv_boxcox1p@2 j0@1 j1@1 k0@1 k0e@1 k1@1 k1e@1 kl_div@2 lambertw log1p@1
log_expit@1 log_ndtr@1 log_softmax loggamma@1 logit@1 logsumexp lpmv@3 multigammaln nbdtr@3
nbdtrc@3 nbdtri@3 ndtr@1 ndtri@1 pdtr@2 pdtrc@2 pdtri@2 poch@2 polygamma pseudo_huber@2 psi@1
radian@3 rel_entr@2 rgamma@1 round@1 shichi? sici? sinc sindg@1 softmax sph_harm sph_harm_y
spherical_yn tandg@1 wright_bessel@3 xlog1py@2 xlogy@2 y0@1 y1@1 yn@2 zeta@2 zetac@1
"""

_FFT = """
dct dctn dst dstn fft fft2 fftfreq fftn fftshift fht hfft hfft2 hfftn idct idctn idst idstn ifft
ifft2 ifftn ifftshift ifht ihfft ihfft2 ihfftn irfft irfft2 irfftn next_fast_len? rfft rfft2
rfftfreq rfftn
"""

_FFTPACK = """
irfft rfft
"""

_LINALG = """
bandwidth? block_diag circulant companion convolution_matrix dft expm? fiedler fiedler_companion
hadamard hankel helmert hilbert khatri_rao kron leslie lu? lu_factor? lu_solve solve_triangular
toeplitz
"""

_STATS = """
boxcox_llf entropy trim_mean zmap zscore
"""

_INTERPOLATE = """
barycentric_interpolate interpn krogh_interpolate pchip_interpolate
"""


def _marked(text: str) -> dict[str, tuple[bool, int]]:
    made: dict[str, tuple[bool, int]] = {}
    for word in text.split():
        name, _, place = word.partition("@")
        made[name.rstrip("?")] = name.endswith("?"), int(place or -1)
    return made


EXTENSIONS = {
    "signal": _marked(_OWN_SIGNAL),
    "scipy.ndimage": _marked(_NDIMAGE),
    "scipy.signal": _marked(_SIGNAL),
    "scipy.signal.windows": _marked(_SIGNAL_WINDOWS),
    "scipy.spatial.distance": _marked(_SPATIAL_DISTANCE),
    "scipy.special": _marked(_SPECIAL),
    "scipy.fft": _marked(_FFT),
    "scipy.fftpack": _marked(_FFTPACK),
    "scipy.linalg": _marked(_LINALG),
    "scipy.stats": _marked(_STATS),
    "scipy.interpolate": _marked(_INTERPOLATE),
}
"""By sub-package and name: whether each call waits, and the place of the result's array or -1."""
