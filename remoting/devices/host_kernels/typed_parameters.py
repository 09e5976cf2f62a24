"""Parameters of elementwise and reduction kernels, and the arrays behind them, by CuPy's rules."""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import address_of, is_ndarray

Array = np.ndarray[Any, Any]

TYPE_NAMES: dict[str, str] = {
    "?": "bool",
    "b": "signed char",
    "B": "unsigned char",
    "h": "short",
    "H": "unsigned short",
    "i": "int",
    "I": "unsigned int",
    "l": "long long",
    "L": "unsigned long long",
    "q": "long long",
    "Q": "unsigned long long",
    "e": "float16",
    "f": "float",
    "d": "double",
    "F": "complex<float>",
    "D": "complex<double>",
}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_WORDS_MAX = 64


class Layout(ctypes.Structure):
    """One array or index in a kernel, as in include/cupy/carray.cuh."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_ssize_t),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("ndim", ctypes.c_ssize_t),
        ("dense", ctypes.c_ssize_t),
    )


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: ``raw T x``."""

    name: str
    letter: str  # that stands for a type, or nothing
    dtype: np.dtype[Any] | None
    raw: bool
    constant: bool


def parameters(text: Any, *, constant: bool) -> tuple[Parameter, ...]:
    """Return the parameters of a list such as ``T x, raw float32 y``.

    Raises:
        ValueError: it is no such list.
    """
    if not isinstance(text, str):
        raise TypeError("parameters are no text")
    parts = text.strip().split(",") if text else []
    if len(parts) > _WORDS_MAX:
        raise ValueError(f"a kernel has {_WORDS_MAX} parameters at most")
    return tuple(_parameter(part, constant=constant) for part in parts)


def _parameter(text: str, *, constant: bool) -> Parameter:
    words = text.split()
    if len(words) < 2 or not all(_IDENTIFIER.fullmatch(word) for word in words):
        raise ValueError(f"Syntax error: {text}")
    *before, kind, name = words
    for word in before:
        if word not in ("raw", "_non_const"):
            raise ValueError(f'Unknown keyword "{word}"')
    dtype = None if len(kind) == 1 else np.dtype(kind)
    if dtype is not None and dtype.char not in TYPE_NAMES:
        raise ValueError(f"Unsupported dtype {dtype}")
    constant = constant and "_non_const" not in before
    return Parameter(name, "" if dtype is not None else kind, dtype, "raw" in before, constant)


def bind(
    inputs: Sequence[Parameter],
    outputs: Sequence[Parameter],
    values: Sequence[Any],
    results: Sequence[Any],
) -> dict[str, np.dtype[Any]]:
    """Return the types that letters stand for: arrays decide, outputs first.

    Raises:
        TypeError: two arguments want two types of one letter, or none decides.
    """
    found: dict[str, np.dtype[Any]] = {}
    for parameter, value in (*zip(outputs, results, strict=False), *zip(inputs, values)):  # noqa: B905
        if not is_ndarray(value):
            continue
        has = value.dtype
        wanted = parameter.dtype or found.setdefault(parameter.letter, has)
        if wanted != has:
            raise TypeError(f"Type is mismatched. {parameter.name} {has} {wanted}")
    for parameter in (*inputs, *outputs):
        if parameter.dtype is None and parameter.letter not in found:
            raise TypeError(f"type {parameter.letter!r} is not decided by any array")
    return found


def dtype_of(parameter: Parameter, types: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the type of a parameter."""
    return parameter.dtype if parameter.dtype is not None else types[parameter.letter]


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the C++ name of a type.

    Raises:
        TypeError: no kernel has it.
    """
    try:
        return TYPE_NAMES[dtype.char]
    except KeyError:
        raise TypeError(f"Unsupported dtype {dtype}") from None


def typedefs(types: dict[str, np.dtype[Any]]) -> str:
    """Return the names that letters have in a source."""
    return "".join(f"typedef {type_name(kind)} {name};\n" for name, kind in sorted(types.items()))


def type_of(parameter: Parameter) -> str:
    """Return a parameter's type name in a source."""
    return parameter.letter or type_name(parameter.dtype or np.dtype(float))


class Memory:
    """Memory of a launch's arguments, as long as it runs."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self.pointers: list[int] = []

    @property
    def objects(self) -> list[Any]:
        """The objects of ctypes in it."""
        kinds = (ctypes.Array, ctypes.Structure, ctypes.c_uint64, ctypes.c_void_p)
        return [each for each in self._kept if isinstance(each, kinds)]

    def number(self, value: Any, dtype: np.dtype[Any]) -> None:
        """Add a number in a type; one that does not fit wraps, as in CuPy."""
        made: Any = np.asarray(value)
        if made.dtype.hasobject or made.ndim:
            raise TypeError(f"Unsupported type {type(value)}")
        if made.dtype.kind == "c" and dtype.kind not in "cb":
            made = made.real
        self._keep(ctypes.create_string_buffer(made.astype(dtype).tobytes(), 16))

    def array(self, value: Array) -> None:
        """Add an array."""
        self.layout(address_of(value), value.shape, value.strides, dense=value.flags.c_contiguous)

    def layout(
        self, address: int, shape: Sequence[int], strides: Sequence[int], *, dense: bool
    ) -> None:
        """Add an array, or an index, which has no memory."""
        lengths = (ctypes.c_ssize_t * max(1, len(shape)))(*shape)
        steps = (ctypes.c_ssize_t * max(1, len(shape)))(*strides)
        self._kept += (lengths, steps)
        size = 1
        for length in shape:
            size *= length
        where = ctypes.addressof(lengths), ctypes.addressof(steps)
        self._keep(Layout(address, size, *where, len(shape), int(dense)))

    def _keep(self, value: Any) -> None:
        self._kept.append(value)
        self.pointers.append(ctypes.addressof(value))


def collapse(
    shape: tuple[int, ...], arrays: Sequence[Array]
) -> tuple[tuple[int, ...], list[Array]]:
    """Return fewer dimensions in which all arrays have the same elements in the same order."""
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in arrays]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        mine = [array.strides[axis] for array in arrays]
        joins = bool(lengths) and all(
            step[-1] == length * own for step, own in zip(steps, mine, strict=True)
        )
        if joins:
            lengths[-1] *= length
        else:
            lengths.append(length)
        for step, own in zip(steps, mine, strict=True):
            if joins:
                step[-1] = own
            else:
                step.append(own)
    made = tuple(lengths)
    views = [
        np.lib.stride_tricks.as_strided(array, made, step)
        for array, step in zip(arrays, steps, strict=True)
    ]
    return made, views
