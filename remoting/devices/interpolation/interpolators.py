"""Interpolators: objects of the worker's library, and the operations that make and use them.

The client holds a handle of each and knows its class; knots and coefficients stay here. A real GPU
has the interpolators of CuPy, an emulated one those of SciPy.

Answers
    An interpolator in an answer is ``["interpolator", object, class]``.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.extensions import NO_SCIPY
from gpupool.remoting.devices.geometry.spatial import Triangles
from gpupool.remoting.devices.interpolation import interpolator_names as names
from gpupool.remoting.devices.sparse import EmulatedLibrary, Library, Operations

Operation = Callable[..., Any]
_DENSE = ("CloughTocher2DInterpolator", "LinearNDInterpolator", "RBFInterpolator")
"""Interpolators of scattered points with work that grows faster than the points."""


class Interpolators:
    """The interpolators of CuPy, and the operations on them."""

    package = "cupyx.scipy.interpolate"
    lacking = "this CuPy lacks it"

    def __init__(self, backend: Any, sparse: Library) -> None:
        self.backend = backend
        self._sparse = Operations(sparse)

    def table(self) -> dict[str, Operation]:
        """Return name to callable."""
        made = {f"interpolate.new.{name}": self._new(name) for name in names.CLASSES}
        made |= {f"interpolate.{name}": self._method(name) for name in names.METHODS}
        made |= {f"interpolate.get.{name}": self._attribute(name) for name in names.ATTRIBUTES}
        made |= {f"interpolate.set.{name}": self._setter(name) for name in names.SETTABLE}
        made |= {f"interpolate.{name}": self._function(name) for name in names.FUNCTIONS}
        return made | {
            f"interpolate.{kind}.{name}": self._factory(kind, name)
            for kind, name in names.FACTORIES
        }

    def expect(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise before memory is taken that the device has not; CuPy's pool does so itself."""

    def keep(self, made: Any) -> Any:
        """Return a new or changed interpolator, with its memory accounted for."""
        return made

    def changed(self, name: str, interpolator: Any) -> None:
        """Complete an interpolator after a method or a change of an attribute."""

    def result(self, value: Any) -> Any:
        """Return a number as CuPy gives it."""
        return value

    # --- what comes in and goes out ---------------------------------------------------------------

    def _named(self, name: str) -> Any:
        try:
            found = getattr(importlib.import_module(self.package), name, None)
        except ImportError:
            found = None
        if found is None:
            raise UnsupportedError(f"cupyx.scipy.interpolate.{name}: {self.lacking}")
        return found

    def class_of(self, value: Any) -> str | None:
        """Return the name of an interpolator's class; None for any other object."""
        kind: Any = type(value)
        if kind.__name__ not in names.CLASSES:
            return None
        return kind.__name__ if kind is self._named(kind.__name__) else None

    def _checked(self, value: Any) -> Any:
        if self.class_of(value) is None:
            raise TypeError("no interpolator")
        return value

    def told(self, value: Any) -> Any:
        """Return a result as an answer has it."""
        name = self.class_of(value)
        if name is not None:
            return ["interpolator", self.keep(value), name]
        if type(value) in (tuple, list):
            return tuple([self.told(item) for item in value])
        if getattr(value, "format", None) is not None:
            return self._sparse.told(value)
        return self.result(value)

    # --- operations -------------------------------------------------------------------------------

    def _new(self, name: str) -> Operation:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.expect(name, args, kwargs)
            # A triangulation may take the place of the points.
            given = [arg.made if isinstance(arg, Triangles) else arg for arg in args]
            return self.told(self._named(name)(*given, **kwargs))

        return call

    def _factory(self, kind: str, name: str) -> Operation:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.told(getattr(self._named(kind), name)(*args, **kwargs))

        return call

    def _function(self, name: str) -> Operation:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.told(self._named(name)(*args, **kwargs))

        return call

    def _method(self, name: str) -> Operation:
        def call(interpolator: Any, *args: Any, **kwargs: Any) -> Any:
            kind = self.class_of(self._checked(interpolator))
            method = interpolator if name == "call" else getattr(interpolator, name, None)
            if method is None:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            self.expect("", args, kwargs)
            made = method(*args, **kwargs)
            if name in names.IN_PLACE:
                self.changed(name, interpolator)
                return self.class_of(self.keep(interpolator))  # it may have become another
            return self.told(np.asarray(made) if type(made) is float else made)

        return call

    def _attribute(self, name: str) -> Operation:
        def call(interpolator: Any) -> Any:
            return self.told(getattr(self._checked(interpolator), name))

        return call

    def _setter(self, name: str) -> Operation:
        def call(interpolator: Any, value: Any) -> None:
            if not hasattr(self._checked(interpolator), name):
                raise AttributeError(f"{type(interpolator).__name__} has no {name}")
            if name == "c":
                # Compiled code reads as many coefficients as there were.
                old = interpolator.c
                fits = self.backend.is_array(value) and value.shape == old.shape
                if not fits or value.dtype != old.dtype:
                    raise TypeError(f"c must be an array of {old.dtype} of shape {old.shape}")
            setattr(interpolator, name, value)
            self.changed(name, interpolator)

        return call


class EmulatedInterpolators(Interpolators):
    """The interpolators of SciPy, with their memory accounted for."""

    package = "scipy.interpolate"
    lacking = NO_SCIPY

    def expect(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise for points of which the device has no room for a square matrix."""
        given = [value for value in (*args[:1], kwargs.get("y")) if isinstance(value, np.ndarray)]
        if name in _DENSE and given and kwargs.get("neighbors") is None:
            self.backend.expect(8 * len(given[0]) ** 2 if given[0].ndim else 0)

    def keep(self, made: Any) -> Any:
        """Account for the arrays of a new or changed interpolator."""
        for name in names.ATTRIBUTES:
            part = getattr(made, name, None) if name != "tck" else None
            for each in part if isinstance(part, tuple) else (part,):
                if isinstance(each, np.ndarray) and not each.dtype.hasobject:
                    self.backend.adopt(each)
        return made

    def changed(self, name: str, interpolator: Any) -> None:
        """Correct values that are wrong in SciPy 1.17 and right in CuPy."""
        if name == "add_xi":  # its weights are not those of all points
            interpolator.wi = type(interpolator)(interpolator.xi).wi
        if name == "fill_value" and getattr(interpolator, "_kind", "") == "linear":
            # It was made with a function that does not extrapolate.
            interpolator._call = type(interpolator)._call_linear

    def told(self, value: Any) -> Any:
        """Return a result as an answer has it; CuPy's sparse results are matrices."""
        if getattr(value, "format", None) is not None:
            value = importlib.import_module("scipy.sparse").csr_matrix(value)
        return super().told(value)

    def result(self, value: Any) -> Any:
        """Return a number of NumPy as an array without axes."""
        return np.asarray(value) if isinstance(value, np.generic) else value


def real_interpolators(backend: Any) -> dict[str, Operation]:
    """Return the operations of a real GPU."""
    return Interpolators(backend, Library(backend)).table()


def emulated_interpolators(backend: Any) -> dict[str, Operation]:
    """Return the operations of an emulated GPU."""
    return EmulatedInterpolators(backend, EmulatedLibrary(backend)).table()
