"""Objects of a worker's library: the operations that make and use them, one table for all families.

The client holds a handle of each, and knows its class and looks. The object itself stays here. A
real GPU has the objects of CuPy, an emulated one those of SciPy. `families` declares the members
of each class. No other name of the library is reached.

Answers
    An object in an answer is ``["object", object, family, class, looks]``, with the looks that
    its family describes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError, is_ndarray, is_sequence
from gpupool.remoting.devices.extensions import NO_SCIPY
from gpupool.remoting.devices.families import FAMILIES, FUNCTIONS

Operation = Callable[..., Any]


class Objects:
    """The objects of one family, and the operations on them.

    Args:
        backend: the device with the arrays of the objects.
        families: all families of the backend, to which this one is added.
        library: the package that has them: ``cupyx.scipy``, or ``scipy`` on an emulated GPU.
    """

    family = ""

    def __init__(self, backend: Any, families: list[Objects], library: str = "cupyx.scipy") -> None:
        self.backend = backend
        self.emulated = library == "scipy"
        self.classes = FAMILIES[self.family]
        self._package = f"{library}.{self.family}"
        self._families = families
        families.append(self)

    def table(self) -> dict[str, Operation]:
        """Return name to callable."""
        operations = (self.new, self.made, self.call, self.get, self.set, self.function)
        return {f"{self.family}.{each.__name__}": each for each in operations}

    # --- the library ------------------------------------------------------------------------------

    def named(self, path: str) -> Any:
        """Return a class or a function of the library by its name.

        Raises:
            UnsupportedError: the library lacks it, or there is no library.
        """
        module, _, name = f"{self._package}.{path}".rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            why = NO_SCIPY if self.emulated else "this CuPy lacks it"
            raise UnsupportedError(f"cupyx.scipy.{self.family}.{path}: {why}") from None

    def kind_of(self, value: Any) -> str:
        """Return the name of an object's class; empty for a value that is none of the family."""
        kind: Any = value.__class__
        name = kind.__name__
        return name if name in self.classes and kind is self.named(name) else ""

    def marks(self, kind: str, name: str, *, of: str = "") -> str:
        """Return the marks of a member, of methods (``of=""``), attributes or class methods.

        Raises:
            AttributeError: the class has no such member.
        """
        found = self.classes[kind][1].get(name) if kind in self.classes else None
        if found is None or (found[:1] if found[:1] in (".", "+") else "") != of:
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        return found

    def need(self, value: Any) -> str:
        """Return the name of an object's class; TypeError for a value that is none."""
        kind = self.kind_of(value)
        if not kind:
            raise TypeError(f"no object of cupyx.scipy.{self.family}, but {type(value).__name__}")
        return kind

    # --- additions of a family --------------------------------------------------------------------

    def looks(self, value: Any) -> list[Any]:
        """Return the features of an object that the client knows beside its class."""
        del value
        return []

    def parts(self, value: Any) -> list[Any]:
        """Return the arrays that an object of an emulated GPU consists of."""
        names = self.classes[type(value).__name__][1]
        found: list[Any] = []
        for name, marks in names.items():
            part = getattr(value, name, None) if marks[:1] == "." else None
            found += part if type(part) is tuple else (part,)
        return [part for part in found if is_ndarray(part) and part.dtype != object]

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments of a call as the library takes them; raise for memory it has not."""
        del name
        return args, kwargs

    def after(self, name: str, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a result of a call as CuPy gives it."""
        del name, args, kwargs
        return made

    # --- results ----------------------------------------------------------------------------------

    def keep(self, value: Any) -> Any:
        """Return a new or changed object, with its memory accounted for; CuPy's pool does so."""
        if self.emulated:
            for part in self.parts(value):
                self.backend.adopt(part)
        return value

    def told(self, value: Any) -> Any:
        """Return a result as an answer has it.

        Raises:
            TypeError: it has no form.
        """
        for family in self._families:
            kind = family.kind_of(value)
            if kind:
                return ["object", family.keep(value), family.family, kind, family.looks(value)]
        if self.backend.is_array(value):
            return value
        if is_sequence(value):
            return type(value)([self.told(item) for item in value])
        if issubclass(type(value), np.generic):  # of SciPy
            return value.item() if value.dtype.kind in "biu" else np.asarray(value)
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return value
        if value is NotImplemented:
            raise TypeError(f"unsupported operands of cupyx.scipy.{self.family}")
        raise TypeError(f"a result of type {type(value).__name__} cannot be sent")

    def _result(self, value: Any, expected: Any) -> Any:
        """Return an answer, or the object itself if the client has described it already."""
        told = self.told(value)
        if expected is None:
            return told
        if type(told) not in (list,) or told[3:] != _as_lists(expected):
            raise ValueError(
                f"the result is {told!r}, but the client inferred {list(expected)}; this is a bug "
                "of the drop-in, please report it"
            )
        return told[1]

    # --- operations -------------------------------------------------------------------------------

    def new(self, kind: str, /, *args: Any, **kwargs: Any) -> Any:
        """Make an object of a class."""
        if kind not in self.classes:
            raise ValueError(f"no class {kind}")
        found = self.named(kind)
        args, kwargs = self.before(kind, args, kwargs)
        return self.told(self.after(kind, found(*args, **kwargs), args, kwargs))

    def made(self, kind: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a class."""
        self.marks(kind, name, of="+")
        args, kwargs = self.before(name, args, kwargs)
        return self.told(self.after(name, getattr(self.named(kind), name)(*args, **kwargs), (), {}))

    def function(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the family's module."""
        if name not in FUNCTIONS[self.family]:
            raise ValueError(f"no function {name}")
        found = self.named(name)
        args, kwargs = self.before(name, args, kwargs)
        return self.told(self.after(name, found(*args, **kwargs), args, kwargs))

    def call(
        self, value: Any, name: str, /, *args: Any, _expected: Any = None, **kwargs: Any
    ) -> Any:
        """Call a method; of one that changes the object, return its class and looks."""
        kind = self.need(value)
        marks = self.marks(kind, name)
        args, kwargs = self.before(name, (value, *args), kwargs)
        made = self.method(args[0], name)(*args[1:], **kwargs)
        if "!" in marks:
            self.after(name, args[0], args, kwargs)
            return self.told(args[0])[3:]
        return self._result(self.after(name, made, args, kwargs), _expected)

    def method(self, value: Any, name: str) -> Operation:
        """Return a method of an object by its declared name."""
        return value if name == "call" else getattr(value, name)

    def get(self, value: Any, name: str) -> Any:
        """Return an attribute."""
        self.marks(self.need(value), name, of=".")
        return self.told(self.attribute(value, name))

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of an object by its declared name."""
        return getattr(value, name)

    def set(self, value: Any, name: str, new: Any) -> Any:
        """Set an attribute; return the class and looks of the object."""
        kind = self.need(value)
        if "=" not in self.marks(kind, name, of="."):
            raise AttributeError(f"{name!r} of a {kind} cannot be set")
        self.check_part(value, name, new)
        setattr(value, name, new)
        self.after(name, value, (value, new), {})
        return self.told(value)[3:]

    def check_part(self, value: Any, name: str, new: Any) -> None:
        """Raise where an attribute cannot have a value; compiled code reads it unseen."""


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if is_sequence(value) else value
