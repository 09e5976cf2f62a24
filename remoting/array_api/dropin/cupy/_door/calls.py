"""Plans of calls: the constant part of a call, sent once, and how its varying part is packed."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import gc
import struct
from typing import Any

import numpy as np

from cupy._door import dtypes, wire
from cupy._door.meta import Meta

LEAVES_MAX = 4096
SCALAR_MAX = 4096  # bytes of one structured number
_DTYPE_TYPES = (bool, int, float, complex)
_VIEWS = frozenset(
    {
        "broadcast_to",
        *("ndarray.as_strided", "ndarray.diagonal", "ndarray.field", "ndarray.getitem"),
        "ndarray.imag",
        *("ndarray.real", "ndarray.reshape_view", "ndarray.squeeze", "ndarray.swapaxes"),
        *("ndarray.transpose", "ndarray.view"),
    }
)
"""Operations with results that share their source's memory, as a rule."""

_ANYWHERE = _VIEWS | {
    "door.fetch",
    "door.fill",
    "door.get",
    "door.pointer",
    "door.same",
    "door.sync",
    "door.touch",
}


def runs_anywhere(name: str) -> bool:
    """Say whether an operation computes nothing, so that it needs no device to be current."""
    return name in _ANYWHERE or name.startswith(("cuda.", "peer."))


_collecting = False
"""Whether Python collects garbage."""


def _note_collection(phase: str, _info: Any) -> None:
    global _collecting
    _collecting = phase == "start"


gc.callbacks.append(_note_collection)


class _End:
    """Goes with the last slot of a `Remote`: after a collection's destructors, which may use it."""

    __slots__ = ("garbage", "handle")

    def __init__(self, garbage: list[int], handle: int) -> None:
        self.garbage, self.handle = garbage, handle

    def __del__(self) -> None:
        # Only an append: destructors run anywhere, so they must neither lock nor send.
        self.garbage.append(self.handle)


class Remote:
    """Something that lives in a worker. Dropping the last reference frees it there."""

    __slots__ = ("__weakref__", "_gp_end", "_gp_handle", "_gp_session")
    _gp_end: _End
    _gp_handle: int
    _gp_session: Any

    def __del__(self) -> None:
        try:
            if _collecting:
                self._gp_end = _End(self._gp_session.garbage, self._gp_handle)
            else:  # Only an append here too.
                self._gp_session.garbage.append(self._gp_handle)
        except AttributeError:
            return  # creation failed before there was a handle


def remote_of(stream: Any) -> Any:
    """Return the worker's object of a stream; None for a default one and for the current one."""
    return None if stream is None else stream._remote


def remote_object(kind: Any, session: Any, operation: str, args: Any, /, **kwargs: Any) -> Any:
    """Make an object in the worker; return the instance of ``kind``, a `Remote`, for it."""
    handle, _ = session.call(operation, args, kwargs, wire.META_OBJECT)
    made: Remote = object.__new__(kind)
    made._gp_handle = handle
    made._gp_session = session
    return made


PROMPT_MIN = 1 << 16
"""Bytes of a result from which arrays that were dropped before it are freed before it.

So they are before an object of the worker, whose bytes are not known here. Other calls leave them
to the end of their batch, so that a batch has up to 4 MiB more in use.
"""

LONG_RECORD = 512
"""Bytes from which a record counts against the bytes of a batch; the number of calls bounds others.
"""


class Plan:
    """One call of one operation with one arrangement of arguments and results."""

    __slots__ = (
        *("allocates", "heavy", "keywords", "limits", "metas"),
        *("name", "nodes", "outputs", "packer", "prompt", "wire"),
    )

    def __init__(
        self, name: str, nodes: Any, keywords: Any, layout: str, metas: tuple[Any, ...]
    ) -> None:
        self.name = name
        self.nodes = nodes
        self.keywords = keywords
        self.metas = metas
        self.outputs = len(metas)
        # Bytes of new memory that the results need.
        self.allocates = 0
        if name not in _VIEWS:
            self.allocates = sum(meta.nbytes for meta in metas if isinstance(meta, Meta))
        self.packer = struct.Struct("<Q" + layout)
        # Whether more than the number of calls counts for the batch that it is in.
        self.prompt = self.allocates >= PROMPT_MIN or wire.META_OBJECT in metas
        self.heavy = self.prompt or self.packer.size > LONG_RECORD
        # What a Python integer among the arguments may be, for ufuncs.
        self.limits: tuple[int, int] = (-(1 << 63), (1 << 63) - 1)
        # The session's epoch and this plan's prefix there, replaced as one object so that two
        # threads with two sessions never mix them.
        self.wire: tuple[object, bytes] = (None, b"")


class UnsupportedArgumentError(TypeError):
    """An argument cannot be sent: CuPy would not take it either."""


def _integer(value: int, values: list[Any], layout: list[str]) -> Any:
    if -(1 << 63) <= value < 1 << 63:
        values.append(value)
        layout.append("q")
        return "i"
    if 0 <= value < 1 << 64:
        return value
    raise OverflowError(f"Python integer {value} does not fit in 64 bits")


def flatten(value: Any, session: Any, values: list[Any], layout: list[str]) -> Any:
    """Return the hashable arrangement of ``value``; its varying leaves go to ``values``.

    Handles, integers, floats, complex numbers and NumPy scalars vary from call to call and are
    packed; everything else is part of the arrangement and travels once.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return _integer(value, values, layout)
    if kind is float:
        values.append(value)
        layout.append("d")
        return "f"
    if kind is str:
        return ("q", value)
    if isinstance(value, Remote):
        if value._gp_session is not session:
            session.refuse(value)
        values.append(value._gp_handle)
        layout.append("Q")
        return "h"
    if len(values) > LEAVES_MAX:
        raise ValueError("too many arguments in one call")
    return _flatten_rest(value, kind, session, values, layout)


def _flatten_rest(value: Any, kind: Any, session: Any, values: list[Any], layout: list[str]) -> Any:
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return ("s", *(flatten(_index(part), session, values, layout) for part in parts))
    if isinstance(value, (tuple, list)):
        items: Any = value
        code = "l" if isinstance(value, list) else "t"
        return (code, *(flatten(item, session, values, layout) for item in items))
    if value is Ellipsis:
        return "e"
    if isinstance(value, np.generic):
        return _scalar(value, values, layout)
    if isinstance(value, complex):
        values += (value.real, value.imag)
        layout.append("dd")
        return "c"
    if isinstance(value, (int, float)):  # subclasses, such as an IntEnum
        return flatten(
            int(value) if isinstance(value, int) else float(value), session, values, layout
        )
    if isinstance(value, np.dtype):
        return ("d", dtypes.told(value))
    if isinstance(value, type) and (value in _DTYPE_TYPES or issubclass(value, np.generic)):
        return ("d", dtypes.told(np.dtype(value)))
    if isinstance(value, bytes):
        return ("b", value)
    if isinstance(value, dict):
        pairs: Any = value
        return (
            "m",
            *((str(key), flatten(item, session, values, layout)) for key, item in pairs.items()),
        )
    whole = (
        value.shape == () and value.dtype.kind in "iu" if isinstance(value, np.ndarray) else True
    )
    if not whole or not hasattr(kind, "__index__"):
        raise UnsupportedArgumentError(f"Unsupported type {kind}")
    return _integer(value.__index__(), values, layout)


def _index(part: Any) -> Any:
    return part if part is None else part.__index__()


def _scalar(value: Any, values: list[Any], layout: list[str]) -> Any:
    if not dtypes.is_kept(value.dtype):
        raise UnsupportedArgumentError(f"Unsupported dtype {value.dtype}")
    if value.dtype.itemsize > SCALAR_MAX:
        raise ValueError(f"a scalar of {value.dtype.itemsize} bytes: make it an array first")
    values.append(value.tobytes())
    layout.append(f"{value.dtype.itemsize}s")
    return ("n", dtypes.told(value.dtype))


def plan_of(
    cache: dict[Any, Plan],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    metas: tuple[Meta | int, ...],
    session: Any,
) -> tuple[Plan, list[Any]]:
    """Return the plan of one call and the values to pack into its record."""
    values: list[Any] = []
    layout: list[str] = []
    nodes = tuple([flatten(arg, session, values, layout) for arg in args])
    keywords = (
        tuple([(key, flatten(value, session, values, layout)) for key, value in kwargs.items()])
        if kwargs
        else ()
    )
    key = (name, nodes, keywords, metas)
    plan = cache.get(key)
    if plan is None:
        if len(cache) >= wire.MAX_TEMPLATES:
            cache.clear()
        plan = cache[key] = Plan(name, nodes, keywords, "".join(layout), metas)
    return plan, values
