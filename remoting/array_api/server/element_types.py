"""Types of elements that may cross the wire: numbers, bytes, dates, and structures of them.

The drop-in's side is ``dropin/cupy/_door/dtypes.py``, which describes the forms. The set is closed:
a type with references to objects of this process has no form.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

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
"""The types that devices compute with, by NumPy's ``str``; int64 is "l": SciPy's C has no "q"."""

_TEXT = re.compile(r"[<>|][biufcSUV][0-9]{1,10}|[<>][mM]8(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?", re.ASCII)


def dtype_of(value: Any) -> np.dtype[Any]:
    """Return the type that a client names; raise for one outside the closed set."""
    found = DTYPES.get(value) if isinstance(value, str) else None
    if found is not None:
        return found
    try:
        made = _read(value, 0)
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise _refused(value) from error
    # Text is in structures alone, and numbers in the other order of bytes.
    if made.char not in "VmM" or not made.isnative:
        raise _refused(value)
    return made


def _refused(value: Any) -> RemoteProtocolError:
    return RemoteProtocolError("malformed message", why=f"dtype {str(value)[:60]}")


def is_sendable(dtype: np.dtype[Any]) -> bool:
    """Say whether an array of a type may be described to a client, which ends at another."""
    if dtype.str in DTYPES:
        return True
    return dtype.char in "VmM" and dtype.isnative and not dtype.hasobject


def need_sendable(dtype: np.dtype[Any]) -> None:
    """Raise TypeError for a type that may not be described to a client."""
    if not is_sendable(dtype):
        raise TypeError(f"it gave elements of type {dtype}, which no GPU has")


def told(dtype: np.dtype[Any]) -> Any:
    """Return a type's form for a client."""
    if dtype.names is None:
        return dtype.str
    fields: list[Any] = []
    for name in dtype.names:
        kind, offset = dtype.fields[name][:2]  # type: ignore[index]
        fields.append([name, offset, told(kind.base), *kind.shape])
    return ["V", dtype.itemsize, dtype.isalignedstruct, *fields]


def _read(value: Any, depth: int) -> np.dtype[Any]:
    made: np.dtype[Any]
    if isinstance(value, str):
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
    if type(aligned) is not bool or not 0 < len(fields) <= FIELDS_MAX:
        raise ValueError("a structure without fields, or with too many")
    columns: list[Any] = []
    for name, offset, kind, *shape in fields:
        if type(name) is not str or len(name) > NAME_MAX:
            raise ValueError("a field without a name")
        base = _read(kind, depth + 1)
        columns.append((name, (base, tuple(shape)) if shape else base, offset))
    names, formats, offsets = map(list, zip(*columns, strict=True))
    described: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return np.dtype(described, align=aligned)  # which refuses what is no structure
