"""Types of elements that may cross the wire: numbers, bytes, dates, and structures of them.

The drop-in's side is ``dropin/cupy/_door/dtypes.py``, which describes the forms. The set is closed:
a type with references to objects of this process has no form. bfloat16 needs the package ml_dtypes.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import importlib.util
import re
from typing import Any

import numpy as np

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire

SIZE_MAX = 1 << 30
FIELDS_MAX = 1024
NESTING_MAX = 4
NAME_MAX = 256
DTYPES = {name: np.dtype(name) for name in (np.dtype(char).str for char in array_wire.DTYPES)}
"""Types that devices compute with, by NumPy's ``str``; int64 is "l", for SciPy's C knows no "q"."""

BFLOAT16 = "bfloat16"
_LETTER: str = "E"  # of NumPy for it, which others may have too

_TEXT = re.compile(r"[<>|][biufcSUV][0-9]{1,10}|[<>][mM]8(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?", re.ASCII)


def has_bfloat16() -> bool:
    """Say whether this process can have the type."""
    return importlib.util.find_spec("ml_dtypes") is not None


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Say whether it is the type of 16 bits with the exponent of float32."""
    return dtype.char == _LETTER and dtype.name == BFLOAT16


def dtype_of(value: Any) -> np.dtype[Any]:
    """Return the type that a client names; raise for one outside the closed set."""
    found = DTYPES.get(value) if isinstance(value, str) else None
    if found is not None:
        return found
    try:
        made = _read(value, 0)
    except (ImportError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise _refused(value) from error
    if value == BFLOAT16:
        return made
    # Text is in structures alone, and numbers in the other order of bytes.
    if made.char not in "VmM" or not made.isnative:
        raise _refused(value)
    return made


def _refused(value: Any) -> RemoteProtocolError:
    return RemoteProtocolError("malformed message", why=f"dtype {str(value)[:60]}")


def is_sendable(dtype: np.dtype[Any]) -> bool:
    """Say whether an array of a type may be described to a client, which ends at another."""
    if dtype.str in DTYPES or is_bfloat16(dtype):
        return True
    return dtype.char in "VmM" and dtype.isnative and not dtype.hasobject


def need_sendable(dtype: np.dtype[Any]) -> None:
    """Raise TypeError for a type that may not be described to a client."""
    if not is_sendable(dtype):
        raise TypeError(f"it gave elements of type {dtype}, which no GPU has")


def told(dtype: np.dtype[Any]) -> Any:
    """Return a type's form for a client."""
    if dtype.names is None:
        return BFLOAT16 if is_bfloat16(dtype) else dtype.str
    fields: list[Any] = []
    for name in dtype.names:
        kind, offset = dtype.fields[name][:2]  # type: ignore[index]
        fields.append([name, offset, told(kind.base), *kind.shape])
    return ["V", dtype.itemsize, dtype.isalignedstruct, *fields]


def _read(value: Any, depth: int) -> np.dtype[Any]:
    made: np.dtype[Any]
    if value == BFLOAT16:
        made = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    elif isinstance(value, str):
        if not _TEXT.fullmatch(value):
            raise ValueError("no type of elements")
        made = np.dtype(value)
    else:
        made = _structure(value, depth)
    if not 0 < made.itemsize <= SIZE_MAX:
        raise ValueError("a type without a size")
    return made


def _structure(value: Any, depth: int) -> np.dtype[Any]:
    if not array_wire.is_list(value) or len(value) < 3 or value[0] != "V" or depth > NESTING_MAX:
        raise ValueError("no type of elements")
    _, size, aligned, *fields = value
    if type(size) is not int or not 0 < size <= SIZE_MAX or type(aligned) is not bool:
        raise ValueError("a structure of no size")
    if not 0 < len(fields) <= FIELDS_MAX:
        raise ValueError("a structure without fields, or with too many")
    names: list[str] = []
    formats: list[Any] = []
    offsets: list[int] = []
    for field in fields:
        if not array_wire.is_list(field) or len(field) < 3:
            raise ValueError("no field")
        name, offset, kind, *shape = field
        if type(name) is not str or len(name) > NAME_MAX or type(offset) is not int:
            raise ValueError("a field without a name or a place")
        lengths: list[Any] = shape
        if not all(type(length) is int and 0 <= length <= SIZE_MAX for length in lengths):
            raise ValueError("a field of no shape")
        if len(lengths) > array_wire.MAX_NDIM:
            raise ValueError("a field of too many dimensions")
        base = _read(kind, depth + 1)
        total = base.itemsize
        for length in lengths:
            total *= length
        if not 0 <= offset <= size - total:
            raise ValueError("a field outside of its structure")
        names.append(name)
        formats.append((base, tuple(lengths)) if lengths else base)
        offsets.append(offset)
    described: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return np.dtype(described, align=aligned)
