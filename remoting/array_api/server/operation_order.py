"""The order in which operations are numbered: those that came later have later numbers."""

_FIRST = "cuda.cufft_version fft.cache. fft.callbacks fft.several fft.with_callbacks ndarray.field"
_CAPTURES = "cuda.stream.begin_capture cuda.stream.end_capture cuda.stream.is_capturing"
_LAST = "polyadd polymul polynomial. polysub polyval tril_indices triu_indices unique_"
_LATER = (
    (*_FIRST.split(), "ndarray.mdspan", "sparse."),
    ("interpolate.",),
    ("cupyx.scipy.spatial.", "signal.", "spatial."),
    ("peer.arrive", "peer.depart", "peer.prepare"),
    ("door.linalg_errors", "signal.decimate"),
    ("cuda.array.", "cuda.graph.", "cuda.surface.", "cuda.texture.", *_CAPTURES.split()),
    ("cupyx.signal.",),
    ("cumulative_", "diag_indices", "ix_", "meshgrid", "resize", *_LAST.split()),
)


def in_order(name: str) -> tuple[int, str]:
    """Return the key by which operations are numbered."""
    places = range(len(_LATER), 0, -1)  # the last that fits: one of a group may have come later
    return next((at for at in places if name.startswith(_LATER[at - 1])), 0), name
