"""Interpolators of the worker: how they are made and asked; their classes are in `interpolate`.

An interpolator here is a handle. To make one waits for the worker, which raises what is wrong with
its points. A call does not wait, as far as the elements decide no error.
"""

from __future__ import annotations

from typing import Any

from cupy._core.dispatch import make as _make
from cupy._door.calls import Remote as _Remote

from cupyx._extensions import operand as _operand
from cupyx.scipy.sparse import _wire as _sparse

_TEXT = "axis bounds_error c extrapolate fill_value k t tck values wi x xi y yi"
ATTRIBUTES = frozenset(_TEXT.split())
"""Attributes of interpolators on the server; the worker says whether one has it."""

_SETTABLE = ("c", "extrapolate", "fill_value")

classes: dict[str, Any] = {}
"""The classes by name."""


def given(**kwargs: Any) -> dict[str, Any]:
    """Return the keywords that are not None, which the library's own defaults stand for."""
    return {name: value for name, value in kwargs.items() if value is not None}


def on_the_first_axis(axis: int) -> None:
    """Raise where `construct_fast` would have to leave the axes of its arrays as they are."""
    if axis != 0:
        raise NotImplementedError("construct_fast is for the first axis alone here")


def ask(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operation and wait for its result."""
    values = [_operand(value) for value in args]
    keywords = {key: _operand(value) for key, value in kwargs.items()}
    session = _make.session_of(*values, *keywords.values())
    return _read(session, session.ask(f"interpolate.{name}", tuple(values), keywords))


def send(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operation that returns one array; only the first of its kind is waited for."""
    values = tuple([_operand(value) for value in args])
    keywords = {key: _operand(value) for key, value in kwargs.items()}
    return _make.lazy(f"interpolate.{name}", values, keywords)


def _read(session: Any, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    items: list[Any] = list(value)
    if items and isinstance(items[0], str) and items[0] == "sparse":
        return _sparse.read(session, items)
    if len(items) == 3 and isinstance(items[0], str) and items[0] == "interpolator":
        made: Any = object.__new__(classes[items[2]])
        _take(made, session, items[1])
        return made
    return tuple([_read(session, item) for item in items])


def _take(made: Any, session: Any, handle: int) -> None:
    object.__setattr__(made, "_gp_handle", handle)
    object.__setattr__(made, "_gp_session", session)


class Interpolator(_Remote):
    """An object of the worker's library that interpolates."""

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("cupyx.") and cls.__name__[0] != "_":
            classes.setdefault(cls.__name__, cls)

    def _make(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Make the object for this one in the worker."""
        made = ask(f"new.{name}", *args, **kwargs)
        if type(self) is classes[name]:
            self.__class__ = type(made)  # a spline without smoothing is one of another class
        made_handle, made_session = made._gp_handle, made._gp_session
        object.__delattr__(made, "_gp_handle")  # it is this object's now: the other frees nothing
        _take(self, made_session, made_handle)

    def _change(self, method: str, *args: Any) -> None:
        """Call a method that changes the object, which may become one of another class."""
        found = classes[ask(method, self, *args)]
        if type(self) in classes.values():
            self.__class__ = found

    def __getattr__(self, name: str) -> Any:
        if name not in ATTRIBUTES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return ask(f"get.{name}", self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTABLE:
            ask(f"set.{name}", self, value)
            return
        if name in ATTRIBUTES:
            raise AttributeError(f"{name!r} of an interpolator on a server cannot be set")
        object.__setattr__(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is on a server, and is not pickled or copied")

    def __copy__(self) -> Any:
        return self.__reduce_ex__(2)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__reduce_ex__(2)
