"""Interpolators of a worker: rules beside their table of members."""

import importlib
from typing import Any

from gpupool.remoting.devices.remote_objects import Objects

_DENSE = ("CloughTocher2DInterpolator", "LinearNDInterpolator", "RBFInterpolator")
"""Interpolators of scattered points with work that grows faster than the points."""


class Interpolators(Objects):
    """The interpolators of CuPy, or of SciPy with the values of CuPy."""

    family = "interpolate"

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Raise for points of which an emulated GPU has no room for a square matrix."""
        given: list[Any] = [*filter(self.backend.is_array, (*args[:1], kwargs.get("y")))]
        if self.emulated and name in _DENSE and given and kwargs.get("neighbors") is None:
            self.backend.expect(8 * len(given[0]) ** 2 if given[0].ndim else 0)
        return args, kwargs

    def after(self, name: str, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Correct values that are wrong in SciPy 1.17 and right in CuPy."""
        if self.emulated and name == "add_xi":  # its weights are not those of all points
            made.wi = type(made)(made.xi).wi
        if self.emulated and name == "fill_value" and getattr(made, "_kind", "") == "linear":
            # It was made with a function that does not extrapolate.
            made._call = made.__class__._call_linear
        if self.emulated and name == "design_matrix":
            return self.sparse_matrix(made)
        return made

    def check_part(self, value: Any, name: str, new: Any) -> None:
        """Raise for coefficients of other looks: compiled code reads as many as there were."""
        if name == "c":
            old = value.c
            fits = self.backend.is_array(new) and new.shape == old.shape
            if not fits or new.dtype != old.dtype:
                raise TypeError(f"c must be an array of {old.dtype} of shape {old.shape}")

    def sparse_matrix(self, made: Any) -> Any:
        """Return a sparse array of SciPy as a matrix, as CuPy's is."""
        return importlib.import_module("scipy.sparse").csr_matrix(made)
