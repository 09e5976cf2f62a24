"""Refuses CuPy's compiled bindings: an installed CuPy's would import this `cupy`, and fail."""

from cupy._door.absent import advice

raise ModuleNotFoundError(
    f"No module named {__name__!r}: {advice(__name__, 'cuda')}", name=__name__
)
