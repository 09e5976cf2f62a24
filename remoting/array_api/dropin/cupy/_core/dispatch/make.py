"""Arrays as results of calls: the record that is sent, and the array object for the result."""

from __future__ import annotations

import struct
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from cupy._core.dispatch.arguments import dtype_of, integers, shape_of
from cupy._door import dtypes, pool
from cupy._door.arrays import classes as classes
from cupy._door.arrays import plain as plain
from cupy._door.arrays import result as result
from cupy._door.calls import Plan, Remote, plan_of
from cupy._door.meta import Meta, fresh, intern
from cupy._door.session import Session

if TYPE_CHECKING:
    from cupy._core.array import ndarray

ONE = struct.Struct("<Q").pack
"""Pack the handle of a result that is made from no array."""

HANDLES = struct.Struct("<QQ").pack
PAIR = struct.Struct("<QQQ").pack
"""Pack the handles of a result and of the arrays that it is made from."""

_new = object.__new__
_MEMO_MAX = 1 << 14


def is_subclassed(item: object) -> bool:
    """Say whether it is an array of a class that a program derived, which results then have."""
    return isinstance(item, Remote) and type(item) is not classes.ndarray


def session_of(*values: Any) -> Session:
    """Return the session of the first remote argument, or of the current device."""
    for value in values:
        if isinstance(value, Remote):
            return value._gp_session
        if type(value) in (tuple, list):
            for item in value:
                if isinstance(item, Remote):
                    return item._gp_session
    return pool.current()


def forward(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Meta) -> ndarray:
    """Send a call that returns one new array of known dtype and shape."""
    session = session_of(*args, *kwargs.values())
    handle, device = session.call(name, args, kwargs, meta)
    return result(session, handle, meta, device)


def lazy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ndarray:
    """Send a call that returns one array; only the worker can describe it."""
    session = session_of(*args, *kwargs.values())
    array = result(session, 0, None, 0)
    session.call_unknown(name, args, kwargs, array)
    return array


def in_place(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Send a call that changes its arguments and has no result."""
    session_of(*args, *kwargs.values()).call(name, args, kwargs)


def ask(name: str, *args: object, **kwargs: object) -> Any:
    """Run a call and wait for its result, of any structure."""
    return session_of(*args, *kwargs.values()).ask(name, args, kwargs)


def view(source: Any, name: str, args: tuple[Any, ...], meta: Meta, kind: Any = None) -> Any:
    """Send a call that returns a view of the memory of ``source``."""
    session: Session = source._gp_session
    handle, device = session.call(name, (source, *args), {}, meta)
    base = source if source._gp_base is None else source._gp_base
    del device  # a view is where its base is
    return result(session, handle, meta, source._gp_device, kind or type(source), base, source)


def send(source: ndarray, plan: Plan, tail: bytes, frame: object) -> ndarray:
    """Send a planned call on ``source`` and packed constants; return the new array."""
    session: Session = source._gp_session
    handle = next(session.handles)
    device = session.emit(plan, HANDLES(handle, source._gp_handle) + tail, frame)
    return plain(session, handle, plan.metas[0], device)


def send_pair(a: ndarray, b: ndarray, plan: Plan, frame: object) -> ndarray:
    """Send a planned call on two arrays; return the new array."""
    session: Session = a._gp_session
    if b._gp_session is not session:
        session.refuse(b)
    handle = next(session.handles)
    device = session.emit(plan, PAIR(handle, a._gp_handle, b._gp_handle), frame)
    return plain(session, handle, plan.metas[0], device)


def looks(args: tuple[Any, ...]) -> tuple[object, ...]:
    """Return the key of a memo for the plan of a call on arrays and floats."""
    ndarray = classes.ndarray
    return tuple([arg._gp_known if type(arg) is ndarray else type(arg) for arg in args])


def send_mixed(args: tuple[Any, ...], plan: Plan, frame: object) -> ndarray:
    """Send a planned call on arrays and floats; return the new array."""
    session = session_of(*args)
    values: list[Any] = []
    for arg in args:
        if type(arg) is float:
            values.append(arg)
        else:
            if arg._gp_session is not session:
                session.refuse(arg)
            values.append(arg._gp_handle)
    handle = next(session.handles)
    device = session.emit(plan, plan.packer.pack(handle, *values), frame)
    return plain(session, handle, plan.metas[0], device)


def forward_planned(memo: dict[Any, Plan], name: str, args: tuple[Any, ...], meta: Meta) -> ndarray:
    """Send a call, and keep its plan in ``memo`` for `send_mixed` if all arguments allow that."""
    session = session_of(*args)
    plan, values = plan_of(session.plans, name, args, {}, (meta,), session)
    ndarray = classes.ndarray
    if all(type(arg) is float or type(arg) is ndarray for arg in args):
        for arg in args:
            if type(arg) is ndarray:
                arg._gp_meta  # noqa: B018 - asked for now, so that the key has it
        remember(memo, looks(args), plan)
    handle = next(session.handles)
    return result(session, handle, meta, session.emit(plan, plan.packer.pack(handle, *values)))


def send_view(source: Any, plan: Plan, tail: bytes, frame: Any) -> ndarray:
    """Send a planned call that returns a view of ``source``; ``tail`` is packed."""
    session: Session = source._gp_session
    handle = next(session.handles)
    session.emit(plan, HANDLES(handle, source._gp_handle) + tail, frame)
    kind = type(source)
    array = _new(kind)
    array._gp_handle = handle
    array._gp_session = session
    array._gp_known = plan.metas[0]
    array._gp_device = source._gp_device  # a view is where its base is
    base = source._gp_base
    array._gp_base = source if base is None else base
    if kind is not classes.ndarray:
        array.__array_finalize__(source)
    return array


def remember(memo: dict[Any, Any], key: object, value: object) -> Any:
    """Keep ``value`` for the next call of the same looks, in a memo of bounded size."""
    if len(memo) >= _MEMO_MAX:
        memo.clear()
    memo[key] = value
    return value


def planned(
    source: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Meta
) -> tuple[Plan, bytes]:
    """Return the plan of a call on ``source`` and constants, and those constants, packed."""
    session: Session = source._gp_session
    plan, values = plan_of(session.plans, name, (source, *args), kwargs, (meta,), session)
    return plan, plan.packer.pack(0, *values)[16:]


# --- creation -------------------------------------------------------------------------------------


_made: dict[Any, tuple[Plan, bytes]] = {}


def new(
    name: str, shape: tuple[int, ...], dtype: object, order: str = "C", session: Any = None
) -> ndarray:
    """Return a new array on the current device, by an operation that needs only its looks."""
    session = session or pool.current()
    key = (name, shape, dtype, order)
    try:
        found = _made.get(key)
    except TypeError:  # a list of fields has no hash
        key, found = (name, shape, dtype_of(dtype), order), None
    if found is None:
        kind = dtype_of(dtype)
        meta = fresh(kind, shape, order)
        plan, values = plan_of(session.plans, name, (shape, kind, order), {}, (meta,), session)
        found = remember(_made, key, (plan, plan.packer.pack(0, *values)[8:]))
    plan, tail = found
    handle = next(session.handles)
    device = session.emit(plan, ONE(handle) + tail)
    return plain(session, handle, plan.metas[0], device)


def empty(
    shape: tuple[int, ...], dtype: object, session: Session | None = None, order: str = "C"
) -> ndarray:
    """Return a new uninitialised array on the current device."""
    return new("door.empty", shape, dtype, order, session)


def full(shape: tuple[int, ...], value: object, dtype: object, order: str = "C") -> ndarray:
    """Return a new array of one value."""
    kind = dtype_of(dtype)
    dtypes.check_kernel(kind)
    meta = fresh(kind, shape, order)
    session = pool.current()
    handle, device = session.call("full", (shape, value, kind, order), {}, meta)
    return result(session, handle, meta, device)


def as_strided(x: ndarray, shape: object = None, strides: object = None) -> ndarray:
    """Return a view with any shape and strides; they are not checked."""
    meta: Meta = x._gp_meta
    lengths = meta.shape if shape is None else shape_of(shape)
    steps = meta.strides if strides is None else integers(strides)
    return view(x, "ndarray.as_strided", (lengths, steps), intern(meta.dtype, lengths, steps))


def public(module: dict[str, object]) -> dict[str, Any]:
    """Return the functions that a module defines for programs, by their own names."""
    return {
        name: value
        for name, value in module.items()
        if name[0] != "_" and isfunction(value) and value.__module__ == module["__name__"]
    }
