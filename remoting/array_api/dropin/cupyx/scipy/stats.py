"""Statistics."""

from cupyx import _extensions

_extensions.fill(
    globals(),
    """
    boxcox_llf entropy trim_mean zmap zscore
    """,
)
