"""Names of the functions of ``cupyx`` that a client may call, by sub-package.

Each is one operation: the worker's own CuPy, or SciPy on an emulated device, runs it whole. They
are functions of arrays, numbers and text; those that take a function or return an object with
methods are not here.
"""

_NDIMAGE = """
affine_transform binary_closing binary_dilation binary_erosion binary_fill_holes binary_hit_or_miss
binary_opening binary_propagation black_tophat center_of_mass convolve convolve1d correlate
correlate1d distance_transform_edt extrema find_objects fourier_ellipsoid fourier_gaussian
fourier_shift fourier_uniform gaussian_filter gaussian_filter1d gaussian_gradient_magnitude
gaussian_laplace generate_binary_structure grey_closing grey_dilation grey_erosion grey_opening
histogram iterate_structure label laplace map_coordinates maximum maximum_filter maximum_filter1d
maximum_position mean median median_filter minimum minimum_filter minimum_filter1d minimum_position
morphological_gradient morphological_laplace percentile_filter prewitt rank_filter rotate shift
sobel spline_filter spline_filter1d standard_deviation sum sum_labels uniform_filter
uniform_filter1d variance white_tophat zoom
"""

_SIGNAL = """
abcd_normalize argrelmax argrelmin band_stop_obj bilinear bilinear_zpk buttap butter buttord
cheb1ap cheb1ord cheb2ap cheb2ord cheby1 cheby2 check_COLA check_NOLA chirp choose_conv_method
coherence convolve convolve2d correlate correlate2d correlation_lags csd cspline1d cspline1d_eval
cspline2d cwt czt czt_points decimate deconvolve detrend ellip ellipap ellipord fftconvolve
filtfilt find_peaks findfreqs firls firwin firwin2 freqs freqs_zpk freqz freqz_sos freqz_zpk
gammatone gauss_spline gausspulse get_window group_delay hilbert hilbert2 iircomb iirdesign
iirfilter iirnotch iirpeak invres invresz istft kaiser_atten kaiser_beta kaiserord lfilter
lfilter_zi lfiltic lombscargle lp2bp lp2bp_zpk lp2bs lp2bs_zpk lp2hp lp2hp_zpk lp2lp lp2lp_zpk
max_len_seq medfilt medfilt2d minimum_phase morlet morlet2 normalize oaconvolve order_filter
peak_prominences peak_widths periodogram qmf qspline1d qspline1d_eval qspline2d
resample resample_poly residue residuez ricker savgol_coeffs savgol_filter sawtooth sepfir2d sos2tf
sos2zpk sosfilt sosfilt_zi sosfiltfilt sosfreqz spectrogram spline_filter square ss2tf ss2zpk stft
sweep_poly symiirorder1 symiirorder2 tf2sos tf2ss tf2zpk unique_roots unit_impulse upfirdn
vectorstrength welch wiener zoom_fft zpk2sos zpk2ss zpk2tf
"""

_WINDOWS = """
barthann bartlett blackman blackmanharris bohman boxcar chebwin cosine exponential flattop gaussian
general_cosine general_gaussian general_hamming get_window hamming hann kaiser
kaiser_bessel_derived lanczos nuttall parzen taylor triang tukey
"""

_SPECIAL = """
bdtr bdtrc bdtri beta betainc betaincinv betaln binom boxcox boxcox1p btdtr btdtri cbrt chdtr
chdtrc chdtri cosdg cosm1 cotdg digamma ellipeinc ellipj ellipk ellipkinc ellipkm1 entr erf erfc
erfcinv erfcx erfinv exp1 exp10 exp2 expi expit expm1 expn exprel fdtr fdtrc fdtri gamma gammainc
gammaincc gammainccinv gammaincinv gammaln gammasgn gdtr gdtrc huber i0 i0e i1 i1e inv_boxcox
inv_boxcox1p j0 j1 k0 k0e k1 k1e kl_div lambertw log1p log_expit log_ndtr log_softmax loggamma
logit logsumexp lpmv multigammaln nbdtr nbdtrc nbdtri ndtr ndtri pdtr pdtrc pdtri poch polygamma
pseudo_huber psi radian rel_entr rgamma round shichi sici sinc sindg softmax sph_harm sph_harm_y
spherical_yn tandg wright_bessel xlog1py xlogy y0 y1 yn zeta zetac
"""

_FFT = """
dct dctn dst dstn fft fft2 fftfreq fftn fftshift fht hfft hfft2 hfftn idct idctn idst idstn ifft
ifft2 ifftn ifftshift ifht ihfft ihfft2 ihfftn irfft irfft2 irfftn next_fast_len rfft rfft2
rfftfreq rfftn
"""

_LINALG = """
bandwidth block_diag circulant companion convolution_matrix dft expm fiedler fiedler_companion
hadamard hankel helmert hilbert khatri_rao kron leslie lu lu_factor lu_solve solve_triangular
toeplitz
"""

_DISTANCE = """
canberra cdist chebyshev cityblock correlation cosine distance_matrix euclidean hamming hellinger
jensenshannon kl_divergence minkowski pdist russellrao sqeuclidean
"""

_OWN_SIGNAL = """
ca_cfar channelize_poly complex_cepstrum convolve1d2o convolve1d3o firfilter firfilter2 firfilter_zi
freq_shift inverse_complex_cepstrum minimum_phase mvdr pulse_compression pulse_doppler real_cepstrum
"""

EXTENSIONS: dict[str, tuple[str, ...]] = {
    "signal": tuple(_OWN_SIGNAL.split()),
    "scipy.ndimage": tuple(_NDIMAGE.split()),
    "scipy.signal": tuple(_SIGNAL.split()),
    "scipy.signal.windows": tuple(_WINDOWS.split()),
    "scipy.spatial.distance": tuple(_DISTANCE.split()),
    "scipy.special": tuple(_SPECIAL.split()),
    "scipy.fft": tuple(_FFT.split()),
    "scipy.fftpack": ("irfft", "rfft"),
    "scipy.linalg": tuple(_LINALG.split()),
    "scipy.stats": ("boxcox_llf", "entropy", "trim_mean", "zmap", "zscore"),
    "scipy.interpolate": (
        "barycentric_interpolate",
        "interpn",
        "krogh_interpolate",
        "pchip_interpolate",
    ),
}
"""The names of functions, by the sub-package of ``cupyx`` that has them."""
