"""How arrays come to be: results of calls, uploads, and what is accepted as an operand."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import struct
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._door import pool, state, wire
from cupy._door.calls import Plan, Remote, plan_of
from cupy._door.meta import Meta, fresh, intern, keep_order
from cupy._door.receiver import Reply
from cupy._door.session import INLINE_MAX, Session

SUPPORTED = frozenset(wire.DTYPES)
SHARED_MIN = 256 << 10
"""Bytes from which shared memory is faster than the socket that announces it."""
HANDLES = struct.Struct("<QQ").pack
PAIR = struct.Struct("<QQQ").pack
"""Pack the handles of a result and of the arrays that it is made from."""

_new = object.__new__
_PYTHON_NUMBERS = (bool, int, float, complex)
_MEMO_MAX = 1 << 14


def result(
    session: Session,
    handle: int,
    meta: Meta | None,
    device: int,
    kind: Any = None,
    base: Any = None,
    source: Any = None,
) -> Any:
    """Return the array for a handle; ``meta`` is None while only the worker knows it."""
    array: Any = _new(kind or classes.ndarray)
    array._handle = handle
    array._session = session
    array._known = meta
    array._device = device
    array._base = base
    if kind is None or kind is classes.ndarray:
        return array
    array.__array_finalize__(base if source is None else source)
    return array


class classes:
    """The array class, which imports this module."""

    ndarray: Any = None


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """Return a dtype that devices compute with.

    Raises:
        ValueError: objects, text, dates and structures stay on the host.
    """
    made = np.dtype(dtype)
    if made.char not in SUPPORTED:
        raise ValueError(f"Unsupported dtype {made}")
    return made if made.isnative else made.newbyteorder("=")


def session_of(*values: Any) -> Session:
    """Return the session of the first remote argument, or of the current device."""
    for value in values:
        if isinstance(value, Remote):
            return value._session  # pyright: ignore[reportPrivateUsage]
        if type(value) in (tuple, list):
            for item in value:
                if isinstance(item, Remote):
                    return item._session  # pyright: ignore[reportPrivateUsage]
    return pool.current()


def forward(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Meta) -> Any:
    """Send a call whose result is one new array of known looks."""
    session = session_of(*args, *kwargs.values())
    handle, device = session.call(name, args, kwargs, meta)
    return result(session, handle, meta, device)


def forward_many(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], metas: tuple[Meta, ...]
) -> tuple[Any, ...]:
    """Send a call whose result is several new arrays of known looks."""
    session = session_of(*args, *kwargs.values())
    first, device = session.call(name, args, kwargs, *metas)
    return tuple([result(session, first + index, meta, device) for index, meta in enumerate(metas)])


def lazy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Send a call whose result is one array that only the worker can describe."""
    session = session_of(*args, *kwargs.values())
    array = result(session, 0, None, 0)
    session.call_unknown(name, args, kwargs, array)
    return array


def in_place(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Send a call that changes its arguments and has no result."""
    session_of(*args, *kwargs.values()).call(name, args, kwargs)


def ask(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run a call and wait for its result, whatever its structure."""
    return session_of(*args, *kwargs.values()).ask(name, args, kwargs)


def view(source: Any, name: str, args: tuple[Any, ...], meta: Meta, kind: Any = None) -> Any:
    """Send a call whose result shares the memory of ``source``."""
    session: Session = source._session
    handle, device = session.call(name, (source, *args), {}, meta)
    base = source if source._base is None else source._base
    del device  # a view is where its base is
    return result(session, handle, meta, source._device, kind or type(source), base, source)


def send(source: Any, plan: Plan, tail: bytes, frame: Any) -> Any:
    """Send a planned call on ``source`` and packed constants; return the new array."""
    session: Session = source._session
    handle = next(session.handles)
    device = session.emit(plan, HANDLES(handle, source._handle) + tail, frame)
    return result(session, handle, plan.metas[0], device)


def send_pair(a: Any, b: Any, plan: Plan, frame: Any) -> Any:
    """Send a planned call on two arrays; return the new array."""
    session: Session = a._session
    if b._session is not session:
        session.refuse(b)
    handle = next(session.handles)
    device = session.emit(plan, PAIR(handle, a._handle, b._handle), frame)
    return result(session, handle, plan.metas[0], device)


def looks(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what the plan of a call on arrays and floats depends on, as a key of a memo."""
    ndarray = classes.ndarray
    return tuple([arg._known if type(arg) is ndarray else type(arg) for arg in args])


def send_mixed(args: tuple[Any, ...], plan: Plan, frame: Any) -> Any:
    """Send a planned call on arrays and floats; return the new array."""
    session = session_of(*args)
    values: list[Any] = []
    for arg in args:
        if type(arg) is float:
            values.append(arg)
        else:
            if arg._session is not session:
                session.refuse(arg)
            values.append(arg._handle)
    handle = next(session.handles)
    device = session.emit(plan, plan.packer.pack(handle, *values), frame)
    return result(session, handle, plan.metas[0], device)


def forward_planned(memo: dict[Any, Plan], name: str, args: tuple[Any, ...], meta: Meta) -> Any:
    """Send a call, and keep its plan in ``memo`` for `send_mixed` if all arguments allow that."""
    session = session_of(*args)
    plan, values = plan_of(session.plans, name, args, {}, (meta,), session)
    ndarray = classes.ndarray
    if all(type(arg) is float or type(arg) is ndarray for arg in args):
        for arg in args:
            if type(arg) is ndarray:
                arg._meta  # noqa: B018 - asked for now, so that the key has it
        remember(memo, looks(args), plan)
    handle = next(session.handles)
    return result(session, handle, meta, session.emit(plan, plan.packer.pack(handle, *values)))


def send_view(source: Any, plan: Plan, tail: bytes, frame: Any) -> Any:
    """Send a planned call whose result shares the memory of ``source``; ``tail`` is packed."""
    session: Session = source._session
    handle = next(session.handles)
    session.emit(plan, HANDLES(handle, source._handle) + tail, frame)
    kind = type(source)
    array: Any = _new(kind)
    array._handle = handle
    array._session = session
    array._known = plan.metas[0]
    array._device = source._device  # a view is where its base is
    base = source._base
    array._base = source if base is None else base
    if kind is not classes.ndarray:
        array.__array_finalize__(source)
    return array


def remember(memo: dict[Any, Any], key: Any, value: Any) -> Any:
    """Keep ``value`` for the next call of the same looks, in a memo of bounded size."""
    if len(memo) >= _MEMO_MAX:
        memo.clear()
    memo[key] = value
    return value


def planned(
    source: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Meta
) -> tuple[Plan, bytes]:
    """Return the plan of a call on ``source`` and constants, and those constants, packed."""
    session: Session = source._session
    plan, values = plan_of(session.plans, name, (source, *args), kwargs, (meta,), session)
    return plan, plan.packer.pack(0, *values)[16:]


# --- operands -------------------------------------------------------------------------------------


def is_scalar(value: Any) -> bool:
    """Say whether a value is a number or text of the host; `numpy.isscalar` without its guard."""
    return bool(np.isscalar(value))


def operand(value: Any) -> Any:
    """Return ``value`` as an array or scalar that a kernel takes; TypeError for host arrays.

    CuPy never uploads operands by itself (cupy#589): the cost would be hidden.
    """
    if isinstance(value, (Remote, *_PYTHON_NUMBERS)):
        return value
    if isinstance(value, np.generic) and value.dtype.char in SUPPORTED:
        return value
    convert = getattr(value, "__cupy_get_ndarray__", None)
    if convert is not None:
        return convert()
    raise TypeError(f"Unsupported type {type(value)}")


def operand_type(value: Any) -> Any:
    """Return an operand's dtype, or int, float, complex for a Python number."""
    if isinstance(value, Remote):
        return value._meta.dtype  # type: ignore[attr-defined]
    if isinstance(value, np.generic):
        return value.dtype
    if isinstance(value, bool):
        return np.dtype(np.bool_)
    return int if isinstance(value, int) else float if isinstance(value, float) else complex


def check_cast(source: np.dtype[Any], target: np.dtype[Any], casting: str) -> None:
    """Raise as a ufunc does for an output that cannot take the result."""
    if casting != "unsafe" and not np.can_cast(source, target, casting):  # type: ignore[arg-type]
        raise TypeError(
            f"output operand requires a reduction from type {source!r} to {target!r}, but "
            f"casting it is not allowed according to casting rule {casting!r}: "
            f"Cannot cast output from {source!r} to {target!r}"
        )


def axis_of(axis: Any, ndim: int) -> int:
    """Return a non-negative axis; AxisError if there is none such."""
    made = axis.__index__()
    if not -ndim <= made < ndim:
        raise np.exceptions.AxisError(made, ndim)
    return made + ndim if made < 0 else made


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return non-negative axes, all of them for None; ValueError for duplicates."""
    if axis is None:
        return tuple(range(ndim))
    made = tuple(
        axis_of(item, ndim) for item in (axis if isinstance(axis, (tuple, list)) else (axis,))
    )
    if len(set(made)) != len(made):
        raise ValueError("duplicate value in 'axis'")
    return made


def shape_of(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of non-negative ints."""
    if type(shape) is tuple:
        made = tuple([length.__index__() for length in shape])
    else:
        try:
            made = (shape.__index__(),)
        except (AttributeError, TypeError):
            made = tuple([length.__index__() for length in shape])
    if any(length < 0 for length in made):
        raise ValueError("Negative dimensions are not allowed")
    return made


# --- creation -------------------------------------------------------------------------------------


def empty(
    shape: tuple[int, ...], dtype: Any, session: Session | None = None, order: str = "C"
) -> Any:
    """Return a new uninitialised array on the current device."""
    session = session or pool.current()
    kind = dtype_of(dtype)
    meta = fresh(kind, shape, order)
    handle, device = session.call("door.empty", (shape, kind, order), {}, meta)
    return result(session, handle, meta, device)


def upload(array: np.ndarray[Any, Any], session: Session | None = None) -> Any:
    """Send a host array; nothing waits for its arrival."""
    session = session or pool.current()
    kind = dtype_of(array.dtype)
    if array.dtype != kind:
        array = array.astype(kind)
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        array = np.ascontiguousarray(array)
    order = "C" if array.flags.c_contiguous else "F"
    meta = fresh(kind, array.shape, order)
    flat = array.reshape(-1, order=order).view(np.uint8)  # type: ignore[call-overload]
    if session.shared is not None and flat.nbytes >= SHARED_MIN:
        made = empty(array.shape, kind, session, order)
        session.shared.upload(made, flat)
        return made
    handle = next(session.handles)
    device = session.put(handle, meta, host_bytes(flat))
    return result(session, handle, meta, device)


def download(
    source: Any, order: str = "C", out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Fetch an array's elements; the one place where bulk bytes come in."""
    if source._device == state.local.context[0]:
        return _download(source, order, out)
    with state.on(source._device):
        return _download(source, order, out)


def _download(source: Any, order: str, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    session: Session = source._session
    made: list[np.ndarray[Any, Any]] = []
    known: Meta | None = source._known
    letter = "C"
    if out is not None:
        letter = "C" if out.flags.c_contiguous else "F"
    elif order == "F" or (order == "A" and source._meta.contiguity == (False, True)):
        letter = "F"

    def host(_: Any = None) -> np.ndarray[Any, Any]:
        meta: Meta = source._known
        target = out if out is not None else np.empty(meta.shape, meta.dtype, order=letter)  # type: ignore[call-overload]
        made.append(target)
        return target

    def sink(_body: Any, _nbytes: int) -> memoryview:
        flat = host().reshape(-1, order=letter)  # type: ignore[call-overload]
        return host_bytes(flat.view(np.uint8))

    if known is not None and known.nbytes >= SHARED_MIN and session.shared is not None:
        dense = source
        if not known.contiguity[1 if letter == "F" else 0]:
            looks = fresh(known.dtype, known.shape, letter)
            dense = forward("ndarray.copy", (source, letter), {}, looks)
        session.shared.download(dense, np.frombuffer(sink(None, known.nbytes), np.uint8))
    elif known is None or known.nbytes:
        reply: Any = session.ask("door.get", (source, letter), sink=sink)
        assert isinstance(reply, Reply)
    if not made:
        host(source._meta)
    return made[0]


def refill(target: Any, host: np.ndarray[Any, Any]) -> bool:
    """Send a host array into a dense array of the same shape and type; False if it is not dense."""
    meta: Meta = target._meta
    c, f = meta.contiguity
    if not (c or f) or meta.nbytes <= INLINE_MAX or host.dtype != meta.dtype:
        return False
    dense = np.asarray(host, order="C" if c else "F")
    flat = dense.reshape(-1, order="C" if c else "F").view(np.uint8)
    session: Session = target._session
    with state.on(target._device):
        if session.shared is not None and flat.nbytes >= SHARED_MIN:
            session.shared.upload(target, flat)
        else:
            session.put(target._handle, meta, host_bytes(flat), existing=True)
    return True


def host_bytes(flat: Any) -> memoryview:
    """Return the memory of a contiguous array of bytes."""
    return memoryview(flat).cast("B") if flat.size else memoryview(b"")


def asarray(value: Any) -> Any:
    """Return ``value`` as an array on the device, uploading it if it is none yet."""
    ndarray: Any = state.hooks["ndarray"]
    return value if isinstance(value, ndarray) else array(value)


def array(
    obj: Any,
    dtype: Any = None,
    copy: Any = True,
    order: str | None = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> Any:
    """Return a new array on the current device; see `cupy.array`."""
    if subok:
        raise NotImplementedError("subok=True is not supported")
    order = order or "K"
    ndarray: Any = state.hooks["ndarray"]
    convert = getattr(obj, "__cupy_get_ndarray__", None)
    if convert is not None:
        obj = convert()
    if isinstance(obj, ndarray):
        made = _from_device(obj, dtype, copy, order, ndmin)
    elif isinstance(obj, (list, tuple)) and _has_device_leaf(obj):
        made = _from_nested(obj, dtype, order, ndmin)
    else:
        made = _from_host(obj, dtype, copy, order, ndmin)
    if blocking:
        made._session.synchronize()
    return made


def _from_host(obj: Any, dtype: Any, copy: Any, order: str, ndmin: int) -> Any:
    if copy is False:
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    letter = order if order in ("C", "F") else "K" if isinstance(obj, np.ndarray) else "C"
    host = np.array(obj, dtype=dtype, copy=None if _COPY_NONE else False, order=letter, ndmin=ndmin)  # type: ignore[call-overload]
    dtype_of(host.dtype)
    if order == "A":
        flags = host.flags
        host = np.asarray(host, order="F" if flags.f_contiguous and not flags.c_contiguous else "C")
    return upload(host)


_COPY_NONE = int(np.__version__.split(".")[0]) >= 2


def _has_device_leaf(obj: Any) -> bool:
    """Say whether a nested sequence holds device arrays; the first leaf of each branch tells."""
    items: Any = obj
    if not isinstance(obj, (list, tuple)):
        return isinstance(obj, Remote)
    return bool(items) and (
        (isinstance(items[0], (list, tuple)) and any(map(_has_device_leaf, items)))
        or any(isinstance(item, Remote) for item in items)
    )


def _from_nested(obj: Any, dtype: Any, order: str, ndmin: int) -> Any:
    def build(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            items: Any = value
            parts = [build(item) for item in items]
            return state.hooks["stack"](parts)
        if not isinstance(value, Remote):
            raise TypeError(f"Unsupported type {type(value)}")
        return value

    made = build(obj)
    kind = made.dtype if dtype is None else dtype_of(dtype)
    made = made.astype(kind, order="F" if order == "F" else "C", copy=False)
    return made.reshape((1,) * (ndmin - made.ndim) + made.shape) if made.ndim < ndmin else made


def _from_device(obj: Any, dtype: Any, copy: Any, order: str, ndmin: int) -> Any:
    kind = obj.dtype if dtype is None else dtype_of(dtype)
    here = state.local.context[0]
    if obj._device != here:
        made = obj.copy(order)
        if made.dtype != kind:
            made = made.astype(kind, order=order)
    else:
        made = astype(obj, kind, order, copy)
    if ndmin > made.ndim:
        if made is obj:
            made = made.view()
        made = made.reshape((1,) * (ndmin - made.ndim) + made.shape)
    return made


_casts: dict[Any, tuple[Plan, bytes]] = {}


def astype(source: Any, dtype: Any, order: str | None, copy: Any) -> Any:
    """Return a converted copy, or the array itself where ``copy`` allows and nothing changes.

    ``copy``: True always, None if needed, False never (ValueError if it would be needed).
    """
    plain = copy is True and type(dtype) is type
    found = _casts.get((source._known, dtype, order)) if plain else None
    if found is not None:
        return send(source, found[0], found[1], None)
    kind = dtype_of(dtype)
    meta: Meta = source._meta
    c, f = meta.contiguity
    key = (meta, dtype, order) if plain else None
    order = normalize_order(order)
    same = (
        order == "K" or (order == "A" and (c or f)) or (order == "C" and c) or (order == "F" and f)
    )
    if kind == meta.dtype and not copy and same:
        return source
    if copy is False:
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    if order == "A":
        order = "F" if f and not c else "C"
    if meta.dtype.kind == "c" and kind.kind not in "bc":
        warnings.warn(
            "Casting complex values to real discards the imaginary part",
            np.exceptions.ComplexWarning,
            stacklevel=3,
        )
        key = None  # each time with its warning
    made = keep_order(meta, kind) if order == "K" else fresh(kind, meta.shape, order)
    if key is not None:
        remember(_casts, key, planned(source, "ndarray.astype", (kind, order), {}, made))
    return forward("ndarray.astype", (source, kind, order), {}, made)


def normalize_order(order: str | None) -> str:
    """Return one of C, F, A, K; ValueError for anything else."""
    letter = "K" if order is None else order[:1].upper()
    if letter not in ("C", "F", "A", "K") or not letter:
        raise ValueError(f"order not understood. order={order}")
    return letter


def adopt(
    session: Session,
    handle: int,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    device: int,
) -> Any:
    """Return the array that an answer of the worker contains."""
    meta = intern(np.dtype(dtype), shape, strides)
    return result(session, handle, meta, session.first_device + device)


def describe(target: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Fill in what an array looks like, once the worker has told."""
    target._known = intern(np.dtype(dtype), shape, strides)


state.hooks["adopt"] = adopt
state.hooks["describe"] = describe
Call = Callable[..., Any]


def full(shape: tuple[int, ...], value: Any, dtype: Any, order: str = "C") -> Any:
    """Return a new array of one value."""
    kind = dtype_of(dtype)
    meta = fresh(kind, shape, order)
    session = pool.current()
    handle, device = session.call("full", (shape, value, kind, order), {}, meta)
    return result(session, handle, meta, device)
