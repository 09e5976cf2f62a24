"""Types of elements as both ends name them: NumPy's text for one, the fields for a structure.

A plain type is NumPy's ``str`` of it. A structure is ``["V", bytes, aligned, field...]``, a field
``[name, offset, type, length...]``, where the lengths are those of a field that is an array itself.
Text and dates are in structures only, or what memory is viewed as: no device computes with them.
The worker's side is ``gpupool.remoting.array_api.server.element_types``.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cupy._door import wire

SIZE_MAX = 1 << 30
FIELDS_MAX = 1024
NESTING_MAX = 4
NAME_MAX = 256
_TEXT = re.compile(r"[<>|][biufcSUV][0-9]{1,10}|[<>][mM]8(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?", re.ASCII)
_PLAIN = {np.dtype(letter).str: np.dtype(letter) for letter in wire.DTYPES}
_told: dict[np.dtype[Any], Any] = {}
_TOLD_MAX = 1 << 12


def is_structure(dtype: np.dtype[Any]) -> bool:
    """Say whether it is a structure or so many bytes without a meaning, as devices may keep."""
    return dtype.char == "V" and dtype.subdtype is None and dtype.itemsize > 0


def is_kept(dtype: np.dtype[Any]) -> bool:
    """Say whether devices keep elements of a type, which they may not compute with."""
    return dtype.char in wire.DTYPES or is_structure(dtype) or dtype.char in "mM"


def told(dtype: np.dtype[Any]) -> Any:
    """Return a type's hashable form for the worker; ValueError for one of the host."""
    if dtype.char in wire.DTYPES:
        return dtype.str
    found = _told.get(dtype)
    if found is None:
        if not is_kept(dtype) or dtype.hasobject:
            raise ValueError(f"Unsupported dtype {dtype}")
        found = _tell(dtype, 0)
        if len(_told) >= _TOLD_MAX:
            _told.clear()
        _told[dtype] = found
    return found


def _tell(dtype: np.dtype[Any], depth: int) -> Any:
    if dtype.itemsize > SIZE_MAX:
        raise ValueError(f"Unsupported dtype {dtype}: an element has more than {SIZE_MAX:,} bytes")
    names = dtype.names
    if names is None:
        return dtype.str
    if depth > NESTING_MAX or len(names) > FIELDS_MAX:
        raise ValueError(f"Unsupported dtype {dtype}: too many fields, or nested too deeply")
    fields: list[Any] = []
    for name in names:
        kind, offset = dtype.fields[name][:2]  # type: ignore[index]
        if len(name) > NAME_MAX:
            raise ValueError(f"Unsupported dtype {dtype}: the name of a field is too long")
        fields.append((name, offset, _tell(kind.base, depth + 1), *kind.shape))
    return ("V", dtype.itemsize, dtype.isalignedstruct, *fields)


def read(value: Any) -> np.dtype[Any]:
    """Return the type that the worker names; ValueError, LookupError or TypeError for none."""
    found = _PLAIN.get(value) if isinstance(value, str) else None
    return _read(value, 0) if found is None else found


def _read(value: Any, depth: int) -> np.dtype[Any]:
    if isinstance(value, str):
        if not _TEXT.fullmatch(value):
            raise ValueError(f"no type of elements: {value[:40]!r}")
        made = np.dtype(value)
    else:
        made = _structure(value, depth)
    if not 0 < made.itemsize <= SIZE_MAX:
        raise ValueError("a type without a size")
    return made


def _structure(value: Any, depth: int) -> np.dtype[Any]:
    if type(value) is not list or len(value) < 3 or value[0] != "V" or depth > NESTING_MAX:
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
    names, formats, offsets = map(list, zip(*columns))
    described: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return np.dtype(described, align=aligned)  # which refuses what is no structure


# --- alignment on a GPU ---------------------------------------------------------------------------


def alignment(dtype: np.dtype[Any]) -> int:
    """Return the multiple of bytes at which a GPU reads an element."""
    base = dtype.base
    if base.fields is not None:
        kinds = [base.fields[name][0] for name in base.names or ()]  # type: ignore[index]
        return max([base.alignment, *map(alignment, kinds)])
    return base.itemsize if base.char in wire.DTYPES else 1


def check_kernel(dtype: np.dtype[Any]) -> None:
    """Raise for a structure with fields that no kernel can read, as they are not aligned."""
    if dtype.fields is None:
        return
    for name in dtype.names or ():
        kind, offset = dtype.fields[name][:2]  # type: ignore[index]
        if kind.subdtype is not None:
            raise ValueError("CuPy does not yet support subarray dtypes.")
        check_kernel(kind)
        if offset % alignment(kind):
            raise ValueError(
                f"Field {name} with offset {offset} is not aligned to {alignment(kind)} bytes in "
                f"{dtype}: no kernel can read it; numpy.dtype(fields, align=True) aligns them"
            )
    if dtype.itemsize % alignment(dtype):
        raise ValueError(
            f"Itemsize {dtype.itemsize} is not a multiple of {alignment(dtype)} bytes in {dtype}: "
            "no kernel can read it; numpy.dtype(fields, align=True) aligns them"
        )


# --- comparison of structures ---------------------------------------------------------------------


def are_compared(operands: tuple[Any, ...]) -> bool:
    """Say whether two operands are structures or bytes; TypeError where CuPy has no comparison."""
    first, second = operands
    if not (isinstance(first, np.dtype) and isinstance(second, np.dtype)):
        return False
    if "V" not in (first.char, second.char):
        return False
    if first.fields is None and second.fields is None:
        if first.char != second.char or first.itemsize != second.itemsize:
            raise TypeError(f"cannot compare {first} with {second}: only bytes of the same size")
        return True
    if first.fields is None or second.fields is None:
        raise TypeError("Cannot compare structured and non-structured dtypes")
    try:
        np.promote_types(first, second)
    except TypeError:
        raise TypeError(
            f"Cannot compare {first} with {second}: they have no common dtype"
        ) from None
    return True
