"""Objects of the worker: one class machinery for all families, made of their declarations.

An object here is a handle, with the looks that the worker describes. `families` declares the
members of each class. A constructor waits for the worker, and raises its errors. A method with one
array as its result does not wait.
"""

from __future__ import annotations

import importlib
from typing import Any

from cupy._core.dispatch import make as _make
from cupy._door import state as _state
from cupy._door import wire as _wire
from cupy._door.calls import Remote

from cupyx._extensions import declared, operand

DECLARED = declared("families")
"""The declarations of all families."""

_classes: dict[tuple[str, str], Any] = {}
"""The classes by family and name."""


def class_of(family: str, name: str) -> Any:
    """Return a class; its module may not be imported yet."""
    if (family, name) not in _classes:
        importlib.import_module(f"cupyx.scipy.{family}")
    return _classes[family, name]


def operands(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call as they travel."""
    return tuple(map(operand, args)), {key: operand(value) for key, value in kwargs.items()}


def ask(operation: str, /, *args: object, out: Any = None, **kwargs: object) -> Any:
    """Run an operation of a family, and wait for its result.

    An array ``out`` of the program takes the result, and is returned, as in CuPy.
    """
    session = _make.session_of(*args, *kwargs.values())
    given, named = operands(args, kwargs)
    made = read(session, session.ask(operation, given, named))
    if out is None:
        return made
    if out.shape != made.shape:
        raise ValueError("dimensions do not match")
    out[...] = made
    return out


def read(session: object, value: object) -> Any:
    """Return an answer with its objects."""
    if isinstance(value, list) and len(value) == 5 and isinstance(value[0], str):
        _, handle, family, name, looks = value
        return _object(class_of(family, name), session, handle, looks)
    if isinstance(value, (list, tuple)):
        return type(value)([read(session, item) for item in value])
    return value


def _object(kind: Any, session: object, handle: int, looks: Any) -> Any:
    made: Any = object.__new__(kind)
    made._gp_handle = handle
    made._gp_session = session
    made._gp_device = _state.local.context[0]
    made._look(*looks)
    return made


class RemoteObject(Remote):
    """An object of the worker's library."""

    _gp_family = ""
    _gp_kind = ""
    _gp_device: int

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._take(ask(f"{self._gp_family}.new", self._gp_kind, *args, **kwargs))

    def _look(self) -> None:
        """Take the looks that the worker describes."""

    def _take(self, other: Any) -> None:
        """Become another object, which is then of no use."""
        if type(self) is class_of(self._gp_family, self._gp_kind):
            self.__class__ = type(other)  # a spline without smoothing is one of another class
        old = getattr(self, "_gp_handle", None)
        self._gp_session, self._gp_handle = other._gp_session, other._gp_handle
        vars(self).update(vars(other))
        if old is None:
            del other._gp_handle  # so that its destructor frees nothing
        else:
            other._gp_handle = old

    def _send(self, name: str, /, *args: object, **kwargs: object) -> Any:
        """Call a method that returns one array; only the first of its kind is waited for."""
        return _make.lazy(f"{self._gp_family}.call", *operands((self, name, *args), kwargs))

    def _ask(self, name: str, /, *args: object, **kwargs: object) -> Any:
        """Call a method, and wait for its result."""
        return ask(f"{self._gp_family}.call", self, name, *args, **kwargs)

    def _known(self, name: str, args: tuple[Any, ...], kind: Any, looks: Any, **kwargs: Any) -> Any:
        """Call a method that returns an object of known looks; nothing waits."""
        session = self._gp_session
        kwargs["_expected"] = (kind._gp_kind, tuple(looks))
        given = (self, name, *args)
        handle, _ = session.call(f"{self._gp_family}.call", given, kwargs, _wire.META_OBJECT)
        return _object(kind, session, handle, looks)

    def _change(self, name: str, /, *args: object, **kwargs: object) -> None:
        """Call a method that changes the object, which may become one of another class."""
        self._changed(*self._ask(name, *args, **kwargs))

    def _changed(self, name: str, looks: object) -> None:
        if type(self) is class_of(self._gp_family, self._gp_kind):
            self.__class__ = class_of(self._gp_family, name)
        self._look(*looks)

    def _set(self, name: str, value: object) -> None:
        self._changed(*ask(f"{self._gp_family}.set", self, name, value))

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(f"{type(self).__name__} is on a server, and is not pickled or copied")

    def __copy__(self) -> Any:
        return self.__reduce_ex__(2)

    def __deepcopy__(self, memo: object) -> Any:
        return self.__reduce_ex__(2)


def _method(name: str, marks: str) -> Any:
    how = {"": "_send", "?": "_ask", "!": "_change"}[marks]

    def method(self: object, *args: object, **kwargs: object) -> Any:
        return getattr(self, how)(name, *args, **kwargs)

    return method


def _made_by(family: str, kind: str, name: str) -> Any:
    def method(*args: object, **kwargs: object) -> Any:
        return ask(f"{family}.made", kind, name, *args, **kwargs)

    return staticmethod(method)


def _attribute(family: str, name: str, marks: str) -> Any:
    def get(self: object) -> Any:
        if "?" in marks:
            return ask(f"{family}.get", self, name)
        return _make.lazy(f"{family}.get", (self, name), {})

    def put(self: Any, value: Any) -> None:
        self._set(name, value)

    return property(get, put if "=" in marks else None)


def declare(family: str, kind: Any) -> Any:
    """Give a class of a family its declared members where neither it nor a base has them."""
    name = kind.__name__
    kind._gp_family, kind._gp_kind = family, name
    _classes[family, name] = kind
    bases = [base for base in kind.__mro__ if base.__module__[:5] == "cupyx"]
    for member, marks in DECLARED.FAMILIES[family][name][1].items():
        place = "__call__" if member == "call" else member
        if any(place in vars(base) for base in bases):
            continue
        if marks[:1] == ".":
            made = _attribute(family, member, marks)
        else:
            made = _made_by(family, name, member) if marks == "+" else _method(member, marks)
            function = getattr(made, "__func__", made)
            function.__name__ = function.__qualname__ = member
        path = f"{kind.__module__}.{name}.{member}"
        made.__doc__ = f"See `{path}` of CuPy; the server's library computes it."
        setattr(kind, place, made)
    return kind


def fill(module: dict[str, Any], family: str) -> None:
    """Fill a module with the declared classes and functions of a family that it lacks."""
    path = module["__name__"]
    for name, (base, _) in DECLARED.FAMILIES[family].items():
        kind = module.get(name)
        if kind is None:
            bases = (module[base] if base else RemoteObject,)
            text = f"See `{path}.{name}` of CuPy; it is the server's."
            kind = module[name] = type(name, bases, {"__module__": path, "__doc__": text})
        declare(family, kind)
    for name in DECLARED.FUNCTIONS[family]:
        if "." not in name and name not in module:
            module[name] = function(family, name)


def function(family: str, name: str) -> Any:
    """Return a function of a family's module, which waits for its result."""

    def call(*args: object, **kwargs: object) -> Any:
        return ask(f"{family}.function", name, *args, **kwargs)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__module__ = f"cupyx.scipy.{family}.{name}".rpartition(".")[0]
    call.__doc__ = f"Run `cupyx.scipy.{family}.{name}` of the server's CuPy."
    return call
