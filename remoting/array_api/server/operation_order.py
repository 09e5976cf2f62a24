"""The order in which operations are numbered: those that came later have later numbers."""

_FIRST = "cuda.cufft_version fft.cache. fft.several ndarray.field"
_LATER = (
    (*_FIRST.split(), "ndarray.mdspan", "sparse."),
    ("interpolate.",),
    ("cupyx.scipy.spatial.", "spatial."),
    ("peer.arrive", "peer.depart", "peer.prepare"),
    ("door.linalg_errors"),
    ("cuda.array.", "cuda.surface.", "cuda.texture."),
    ("cupyx.signal.",),
)


def in_order(name: str) -> tuple[int, str]:
    """Return the key by which operations are numbered."""
    places = range(len(_LATER), 0, -1)  # the last that fits: one of a group may have come later
    return next((at for at in places if name.startswith(_LATER[at - 1])), 0), name
