"""Copies of whole arrays between this machine and a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core.dispatch import make
from cupy._core.dispatch.arguments import dtype_of
from cupy._door import pool, state
from cupy._door.errors import nonsense
from cupy._door.meta import Meta, fresh
from cupy._door.session import INLINE_MAX, Session
from cupy._door.transport.receiver import Reply

if TYPE_CHECKING:
    from cupy._core.array import ndarray

SHARED_MIN = 256 << 10
"""Bytes from which shared memory is faster than the socket that announces it."""


def upload(array: np.ndarray, session: Session | None = None, order: str | None = None) -> ndarray:
    """Send a host array, in an order if one is named; nothing waits for its arrival."""
    session = session or pool.current()
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    kind = dtype_of(array.dtype)
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        array = np.ascontiguousarray(array)
    if order is None:
        order = _order(array, kind)
    meta = fresh(kind, array.shape, order)
    flat = array.reshape(-1, order=order).view(np.uint8)  # type: ignore[call-overload]
    if session.shared is not None and flat.nbytes >= SHARED_MIN:
        made = make.empty(array.shape, kind, session, order)
        session.shared.upload(made, flat)
        return made
    handle = next(session.handles)
    device = session.put(handle, meta, host_bytes(flat))
    return make.result(session, handle, meta, device)


def _order(array: np.ndarray, kind: np.dtype) -> str:
    """Return the order of a dense host array."""
    order = "C" if array.flags.c_contiguous else "F"
    if array.flags.f_contiguous and array.strides == fresh(kind, array.shape, "F").strides:
        order = "F"  # both, but for axes of length 1, whose strides programs can see
    if order == "F" and fresh(kind, array.shape) is fresh(kind, array.shape, "F"):
        order = "C"
    return order


def download(source: ndarray, order: str = "C", out: np.ndarray | None = None) -> np.ndarray:
    """Fetch an array's elements; the one place where bulk bytes come in."""
    if not state.local.may_wait:
        state.waits()
    if source._gp_device == state.local.context[0]:
        return _download(source, order, out)
    with state.on(source._gp_device):
        return _download(source, order, out)


def _download(source: Any, order: str, out: np.ndarray | None) -> np.ndarray:
    session: Session = source._gp_session
    made: list[np.ndarray] = []
    known: Meta | None = source._gp_known
    letter = "C"
    if out is not None:
        letter = "C" if out.flags.c_contiguous else "F"
    elif order == "F" or (order == "A" and source._gp_meta.contiguity == (False, True)):
        letter = "F"

    def host(_: object = None) -> np.ndarray:
        meta: Meta = source._gp_known
        target = out if out is not None else np.empty(meta.shape, meta.dtype, order=letter)  # type: ignore[call-overload]
        made.append(target)
        return target

    def sink(_body: object, _nbytes: int) -> memoryview:
        flat = host().reshape(-1, order=letter)  # type: ignore[call-overload]
        return host_bytes(flat.view(np.uint8))

    if known is not None and known.nbytes >= SHARED_MIN and session.shared is not None:
        dense = source
        if not known.contiguity[1 if letter == "F" else 0]:
            looks = fresh(known.dtype, known.shape, letter)
            dense = make.forward("ndarray.copy", (source, letter), {}, looks)
        session.shared.download(dense, np.frombuffer(sink(None, known.nbytes), np.uint8))
    elif known is None or known.nbytes:
        reply = session.ask("door.get", (source, letter), sink=sink)
        assert isinstance(reply, Reply)
    if not made:  # an empty array has no bytes to send
        if source._gp_meta.nbytes:
            wrong = ValueError("an answer without the bytes that were asked for")
            raise session.lose(nonsense(wrong))
        host()
    return made[0]


def refill(target: ndarray, host: np.ndarray) -> bool:
    """Send a host array into a dense array of the same shape and type; False if it is not dense."""
    meta: Meta = target._gp_meta
    c, f = meta.contiguity
    if not (c or f) or meta.nbytes <= INLINE_MAX or host.dtype != meta.dtype:
        return False
    dense = np.asarray(host, order="C" if c else "F")
    flat = dense.reshape(-1, order="C" if c else "F").view(np.uint8)
    session: Session = target._gp_session
    with state.on(target._gp_device):
        if session.shared is not None and flat.nbytes >= SHARED_MIN:
            session.shared.upload(target, flat)
        else:
            session.put(target._gp_handle, meta, host_bytes(flat), existing=True)
    return True


def host_bytes(flat: Any) -> memoryview:
    """Return the memory of a contiguous array of bytes."""
    return memoryview(flat).cast("B") if flat.size else memoryview(b"")
