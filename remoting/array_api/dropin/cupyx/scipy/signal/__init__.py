"""Signal processing."""

from cupyx import _extensions
from cupyx.scipy.signal import windows as windows
from cupyx.scipy.signal._extrema import argrelextrema as argrelextrema

_extensions.fill(
    globals(),
    """
    chirp convolve convolve2d correlate correlate2d correlation_lags cspline1d cspline1d_eval
    cspline2d cwt czt czt_points decimate detrend fftconvolve filtfilt firls firwin firwin2
    gauss_spline get_window hilbert hilbert2 lombscargle medfilt medfilt2d minimum_phase morlet
    morlet2 oaconvolve order_filter qmf qspline1d qspline1d_eval qspline2d resample_poly ricker
    savgol_coeffs savgol_filter sawtooth sepfir2d sosfiltfilt spline_filter square sweep_poly
    unit_impulse upfirdn wiener zoom_fft
    """,
    """
    abcd_normalize argrelmax argrelmin band_stop_obj bilinear bilinear_zpk buttap butter buttord
    cheb1ap cheb1ord cheb2ap cheb2ord cheby1 cheby2 check_COLA check_NOLA choose_conv_method
    coherence csd deconvolve ellip ellipap ellipord find_peaks findfreqs freqs freqs_zpk freqz
    freqz_sos freqz_zpk gammatone gausspulse group_delay iircomb iirdesign iirfilter iirnotch
    iirpeak invres invresz istft kaiser_atten kaiser_beta kaiserord lfilter lfilter_zi lfiltic
    lp2bp lp2bp_zpk lp2bs lp2bs_zpk lp2hp lp2hp_zpk lp2lp lp2lp_zpk max_len_seq normalize
    peak_prominences peak_widths periodogram resample residue residuez sos2tf
    sos2zpk sosfilt sosfilt_zi sosfreqz spectrogram ss2tf ss2zpk stft symiirorder1 symiirorder2
    tf2sos tf2ss tf2zpk unique_roots vectorstrength welch zpk2sos zpk2ss zpk2tf
    """,
)
