"""The order in which operations are numbered: those that came later have later numbers."""

_FIRST = "cuda.cufft_version fft.cache. fft.callbacks fft.several fft.with_callbacks ndarray.field"
_LATER = (
    (*_FIRST.split(), "ndarray.mdspan", "sparse."),
    ("interpolate.",),
    ("cupyx.scipy.spatial.", "signal.", "spatial."),
    ("peer.arrive", "peer.depart", "peer.prepare"),
)


def in_order(name: str) -> tuple[int, str]:
    """Return the key by which operations are numbered."""
    return next((at for at, names in enumerate(_LATER, 1) if name.startswith(names)), 0), name
