"""Interpolation, as far as functions do it."""

from cupyx import _extensions

_extensions.fill(
    globals(),
    """
    barycentric_interpolate interpn krogh_interpolate pchip_interpolate
    """,
)
