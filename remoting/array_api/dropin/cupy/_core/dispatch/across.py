"""Copies between devices of different servers: from worker to worker where they can meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cupy._core.dispatch import make, transfers
from cupy._door import peers, pool, state
from cupy._door.meta import Meta, fresh

if TYPE_CHECKING:
    from cupy._core.array import ndarray


def copy_here(source: Any, order: str, meta: Meta) -> ndarray:
    """Return a copy on the current device that looks like ``meta``, wherever ``source`` is."""
    session = pool.current()
    if source._gp_session is session:
        return make.forward("ndarray.copy", (source, order), {}, meta)
    if not meta.nbytes:
        return make.forward("door.empty", (meta.shape, meta.dtype, "C"), {}, meta)
    view = _in_memory_order(source, meta)
    handle = next(session.handles)
    device = peers.move(view, session, handle, meta, existing=False)
    if device is None:
        flat = transfers.download(view).reshape(-1).view("u1")
        device = session.put(handle, meta, transfers.host_bytes(flat))
    return make.result(session, handle, meta, device)


def bring(source: Any, target: Any) -> ndarray:
    """Return a copy on the device of ``target``."""
    with state.on(target._gp_device):
        return copy_here(source, "C", fresh(source.dtype, source.shape))


def fill(target: Any, source: Any) -> bool:
    """Overwrite a dense array by one of another server; False where only `bring` can do it."""
    meta: Meta = target._gp_meta
    if not any(meta.contiguity) or meta.shape != source.shape or meta.dtype != source.dtype:
        return False
    if not meta.nbytes:
        return True
    view = _in_memory_order(source, meta)
    with state.on(target._gp_device):
        moved = peers.move(view, target._gp_session, target._gp_handle, meta, existing=True)
    return moved is not None


def _in_memory_order(source: ndarray, meta: Meta) -> ndarray:
    """Return a view with axes in the memory order of ``meta``."""
    axes = tuple(sorted(range(meta.ndim), key=lambda axis: -meta.strides[axis]))
    return source if axes == tuple(range(meta.ndim)) else source.transpose(axes)
