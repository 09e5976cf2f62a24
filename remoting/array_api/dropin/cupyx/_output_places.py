"""At which place functions of `cupyx.scipy` take the array for their result, if not by keyword.

SciPy's signatures have these places, and CuPy's are the same; a test compares the two.
"""

from __future__ import annotations

_PLACES = {
    "cupyx.scipy.ndimage": {
        1: "laplace",
        2: """binary_fill_holes convolve correlate gaussian_gradient_magnitude gaussian_laplace
        label map_coordinates prewitt shift sobel spline_filter uniform_filter zoom""",
        3: """binary_closing binary_hit_or_miss binary_opening binary_propagation convolve1d
        correlate1d gaussian_filter maximum_filter maximum_filter1d median_filter minimum_filter
        minimum_filter1d spline_filter1d uniform_filter1d""",
        4: """affine_transform binary_dilation binary_erosion black_tophat fourier_ellipsoid
        fourier_gaussian fourier_shift fourier_uniform gaussian_filter1d grey_closing
        grey_dilation grey_erosion grey_opening morphological_gradient morphological_laplace
        percentile_filter rank_filter rotate white_tophat""",
    },
    "cupyx.scipy.special": {
        1: """cbrt cosdg cosm1 cotdg digamma ellipk ellipkm1 entr erf erfc erfcinv erfcx erfinv
        exp1 exp10 exp2 expi expit expm1 exprel gamma gammaln gammasgn i0 i0e i1 i1e j0 j1 k0 k0e
        k1 k1e log1p log_expit log_ndtr loggamma logit ndtr ndtri psi rgamma round sindg tandg y0
        y1 zetac""",
        2: """beta betaln binom boxcox boxcox1p chdtr chdtrc chdtri ellipeinc ellipkinc expn
        gammainc gammaincc gammainccinv gammaincinv huber inv_boxcox inv_boxcox1p kl_div pdtr
        pdtrc pdtri poch pseudo_huber rel_entr xlog1py xlogy yn zeta""",
        3: """bdtr bdtrc bdtri betainc betaincinv btdtr btdtri fdtr fdtrc fdtri gdtr gdtrc lpmv
        nbdtr nbdtrc nbdtri radian wright_bessel""",
    },
}
"""By package and place, names of functions."""

OUTPUT_PLACES = {
    f"{path}.{name}": place
    for path, places in _PLACES.items()
    for place, names in places.items()
    for name in names.split()
}
"""By dotted name, the place among the arguments."""
