"""Values of a kernel and their types: what Python knows of them, and how C++ writes them.

A value is a constant, which is any object of Python, or a piece of C++ with a type. Numbers of half
precision are `float` in C++ and are rounded where they are stored, as in CuPy.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

CHARS = "?bBhHiIlLqQefdFD"
"""NumPy's letters of the types of numbers, in the order of C's conversions."""

MODES = ("cuda", "numpy")

_C = {
    "b1": "bool",
    "i1": "signed char",
    "u1": "unsigned char",
    "i2": "short",
    "u2": "unsigned short",
    "i4": "int",
    "u4": "unsigned int",
    "i8": "long long",
    "u8": "unsigned long long",
    "f2": "float",
    "f4": "float",
    "f8": "double",
    "c8": "thrust::complex<float>",
    "c16": "thrust::complex<double>",
}
_SUFFIX = {"i8": "ll", "u4": "u", "u8": "ull", "f2": "f", "f4": "f"}
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


class Kind:
    """A type of values; those of one type are equal, and C++ has a name for each."""

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        raise NotImplementedError


@dataclass(frozen=True)
class Scalar(Kind):
    """A number."""

    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        if self.dtype.char not in CHARS or not self.dtype.isnative:
            raise TypeError(f"a kernel has no numbers of the type {self.dtype}")

    def __str__(self) -> str:
        return self.dtype.name

    @property
    def letter(self) -> str:
        """NumPy's letter for what the number is."""
        return self.dtype.kind

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        return _C[f"{self.dtype.kind}{self.dtype.itemsize}"]

    @property
    def stored(self) -> str:
        """The type of an element of an array in C++."""
        return "__half" if self.dtype.char == "e" else self.c


@dataclass(frozen=True)
class Array(Kind):
    """An array of the device, of any strides."""

    element: Scalar
    ndim: int

    def __str__(self) -> str:
        return f"array of {self.element} with {self.ndim} dimensions"

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        return f"gpjit::View<{self.element.stored}, {self.ndim}>"


@dataclass(frozen=True)
class Pointer(Kind):
    """Memory that the threads of a block share, as an array of one dimension."""

    element: Scalar | Storage
    is_stored = True

    def __str__(self) -> str:
        return f"shared memory of {self.element}"

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        return f"{self.element.stored} *"


@dataclass(frozen=True)
class Iterator(Kind):
    """A place among elements in a row: of an array, or of numbers that are computed."""

    element: Scalar
    form: str = "Strided"

    def __str__(self) -> str:
        return f"iterator of {self.element}" if self.is_stored else f"{self.form} iterator"

    @property
    def is_stored(self) -> bool:
        """Whether the elements can be assigned to."""
        return self.form == "Strided"

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        named = self.element.stored if self.is_stored else self.element.c
        return f"gpjit::rows::{self.form}<{named}>"


@dataclass(frozen=True)
class Storage(Kind):
    """Shared memory that an algorithm of CUB needs."""

    owner: str

    def __str__(self) -> str:
        return f"TempStorage of {self.owner}"

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        return f"{self.owner}::TempStorage"

    stored = c


@dataclass(frozen=True)
class Pack(Kind):
    """A tuple."""

    items: tuple[Kind, ...]

    def __str__(self) -> str:
        return f"tuple of {len(self.items)}"

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        return f"gpjit::Pack<{', '.join([item.c for item in self.items])}>"


@dataclass(frozen=True)
class Three(Kind):
    """An index or a size in the three dimensions of a grid."""

    def __str__(self) -> str:
        return "dim3"

    @property
    def c(self) -> str:
        """The type of a variable in C++."""
        return "gpjit::Three"


@dataclass(frozen=True)
class Void(Kind):
    """Nothing, as what a barrier gives."""

    def __str__(self) -> str:
        return "nothing"

    @property
    def c(self) -> str:
        """The type that C++ has for functions without a result."""
        return "void"


@dataclass(frozen=True)
class Const:
    """A value that the translation knows."""

    obj: Any


@dataclass(frozen=True)
class Value:
    """A value that only the device knows; `place` is what can be assigned to, or looked into."""

    code: str
    kind: Kind
    place: str = ""


Item = Union[Const, Value]

VOID, DIM3 = Void(), Three()
BOOL, INT32, UINT32, INT64, UINT64, SIZE = [
    Scalar(np.dtype(letter)) for letter in ("?", "i", "I", "l", "L", "q")
]


class Translated:
    """A Python function that is translated where a kernel calls it."""

    function: Any
    is_device: bool


def element(place: str, kind: Scalar | Storage) -> Value:
    """Return the value of an element of memory."""
    wide = kind.stored != kind.c
    return Value(f"static_cast<{kind.c}>({place})" if wide else place, kind, place)


def number_kind(mode: str, obj: Any) -> Scalar:
    """Return the type that a number of Python has in a kernel.

    Raises:
        NotImplementedError: it is no number.
    """
    if isinstance(obj, np.generic):
        return Scalar(obj.dtype)
    wide = mode == "numpy"
    if isinstance(obj, bool):
        return BOOL
    if isinstance(obj, int):
        return INT64 if wide or not -(1 << 31) <= obj < 1 << 31 else INT32
    if isinstance(obj, float):
        return Scalar(np.dtype("d" if wide else "f"))
    if isinstance(obj, complex):
        return Scalar(np.dtype("D" if wide else "F"))
    raise NotImplementedError(f"{obj!r} is no number, and a kernel computes with numbers")


def literal(obj: Any, kind: Scalar) -> str:
    """Return the text of a number in C++.

    Raises:
        OverflowError: the type has no such number.
    """
    made = kind.dtype.type(obj)
    name = f"{kind.letter}{kind.dtype.itemsize}"
    if kind.letter == "c":
        part = Scalar(np.dtype(kind.dtype.char.lower()))
        return f"{kind.c}({literal(made.real, part)}, {literal(made.imag, part)})"
    if kind.letter == "b":
        return "true" if made else "false"
    if kind.letter in "iu":
        number = int(made)
        if number == np.iinfo(kind.dtype).min and number < 0:  # C++ has no such literal
            return f"static_cast<{kind.c}>({number + 1}{_SUFFIX.get(name, '')} - 1)"
        text = f"{number}{_SUFFIX.get(name, '')}"
        if kind.dtype.itemsize < 4:
            return f"static_cast<{kind.c}>({text})"
    else:
        number = float(made)
        if not math.isfinite(number):
            bits = "0x7ff8000000000000ll" if number != number else "0x7ff0000000000000ll"
            sign = "-" if number < 0 else ""
            return f"static_cast<{kind.c}>({sign}__longlong_as_double({bits}))"
        text = f"{number!r}{_SUFFIX.get(name, '')}"
    return f"({text})" if text.startswith("-") else text


def value_of(item: Any, mode: str) -> Value:
    """Return a value for the device; of a constant that is a number or a tuple of numbers.

    Raises:
        TypeError: it is nothing that a kernel can compute with.
    """
    if isinstance(item, Value):
        if item.kind == VOID:
            raise TypeError("a call without a result has no value")
        return item
    if isinstance(item, Const):
        if isinstance(item.obj, tuple):
            return packed([value_of(Const(each), mode) for each in item.obj])
        if isinstance(item.obj, (bool, int, float, complex, np.generic)):
            kind = number_kind(mode, item.obj)
            return Value(literal(item.obj, kind), kind)
        raise TypeError(f"{item.obj!r} is nothing that a kernel can compute with")
    raise TypeError(f"a {type(item).__name__.lower()} is no value of a kernel")


def packed(values: list[Value]) -> Value:
    """Return a tuple of values."""
    kind = Pack(tuple([each.kind for each in values]))
    return Value(f"{kind.c}::of({', '.join([each.code for each in values])})", kind)


def scalar_of(item: Any, mode: str) -> Scalar:
    """Return the type of a number.

    Raises:
        TypeError: it is no number.
    """
    if isinstance(item, Const):
        return number_kind(mode, item.obj)
    kind = item.kind if isinstance(item, Value) else None
    if isinstance(kind, Scalar):
        return kind
    raise TypeError(f"a number is needed, and this is a {kind}")


def cast(item: Item, kind: Scalar, casting: Any, mode: str) -> Value:
    """Return a number in another type.

    Raises:
        TypeError: it is no number, or `casting` does not allow it.
    """
    old = scalar_of(item, mode)
    if casting != "unsafe" and not _allowed(item, old, kind, mode):
        raise TypeError(
            f"Cannot cast from {old} to {kind} with the rule {casting!r}; write the type, as "
            f"cupy.{kind}(...), where it is meant"
        )
    if isinstance(item, Const):
        if old.letter != "c" or kind.letter == "c":
            try:
                return Value(literal(item.obj, kind), kind)
            except OverflowError:
                if mode == "numpy":
                    raise
        item = value_of(item, mode)  # C++ takes the lower bits
    if old.dtype == kind.dtype:
        return Value(item.code, kind, item.place)
    code = item.code
    if old.letter == "c" and kind.letter == "b":
        return Value(f"gpjit::truth({code})", kind)
    if old.letter == "c" and kind.letter != "c":
        warnings.warn(
            "Casting complex values to real discards the imaginary part",
            np.exceptions.ComplexWarning,
            stacklevel=2,
        )
        code = f"({code}).real()"
    if kind.letter == "c" and old.letter != "c":
        code = f"static_cast<{_C[f'f{kind.dtype.itemsize // 2}']}>({code})"
    if kind.letter == "f" and kind.dtype.itemsize == 2:
        return Value(f"static_cast<float>({code})", kind)
    return Value(f"static_cast<{kind.c}>({code})", kind)


def _allowed(item: Item, old: Scalar, kind: Scalar, mode: str) -> bool:
    """Say whether a number may change its type without a word of the program.

    In the mode "cuda" whole numbers lose and get their signs as in C.
    """
    if mode == "numpy" and isinstance(item, Value):
        return np.can_cast(old.dtype, kind.dtype, "same_kind")
    return _RANKS[old.letter] <= _RANKS[kind.letter]


def truth(item: Item, mode: str) -> str:
    """Return the code of a condition.

    Raises:
        TypeError: it is no real number.
    """
    if scalar_of(item, mode).letter == "c":
        raise TypeError("a complex number is neither true nor false here")
    return cast(item, BOOL, "unsafe", mode).code
