"""Cooperative groups of `cupyx.jit`: the threads of a block, and those of the grid.

What a group says of itself follows from the thread's place, so it needs no header of CUDA. Only a
barrier of the whole grid does, and a real GPU, which must hold all blocks at once. A copy by
`memcpy_async` is made by the threads of the group themselves, and a wait for it is a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cupy._door import absent as _absent

from cupyx.jit import _functions
from cupyx.jit._kinds import BOOL as _BOOL
from cupyx.jit._kinds import UINT32 as _UINT32
from cupyx.jit._kinds import UINT64 as _UINT64
from cupyx.jit._kinds import VOID as _VOID
from cupyx.jit._kinds import Array as _Array
from cupyx.jit._kinds import Const as _Const
from cupyx.jit._kinds import Kind as _Kind
from cupyx.jit._kinds import Pointer as _Pointer
from cupyx.jit._kinds import Value as _Value
from cupyx.jit._kinds import cast as _cast

__all__ = ["memcpy_async", "sync", "this_grid", "this_thread_block", "wait", "wait_prior"]

_THREADS = "(blockDim.x * blockDim.y * blockDim.z)"
_LONG = "static_cast<unsigned long long>"
_BLOCKS = f"({_LONG}(gridDim.x) * gridDim.y * gridDim.z)"
_BLOCK = f"(({_LONG}(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x)"

_OF_BLOCK: dict[str, _Value] = {
    "sync": _Value("__syncthreads()", _VOID),
    "thread_rank": _Value(_functions.RANK, _UINT32),
    "num_threads": _Value(_THREADS, _UINT32),
    "size": _Value(_THREADS, _UINT32),
    "group_index": _functions.triple("blockIdx"),
    "thread_index": _functions.triple("threadIdx"),
    "dim_threads": _functions.triple("blockDim"),
    "group_dim": _functions.triple("blockDim"),
}
_OF_GRID: dict[str, _Value] = {
    "sync": _Value("cooperative_groups::this_grid().sync()", _VOID),
    "is_valid": _Value("(GPJIT_COOPERATIVE != 0)", _BOOL),
    "thread_rank": _Value(f"({_BLOCK} * {_THREADS} + {_functions.RANK})", _UINT64),
    "block_rank": _Value(_BLOCK, _UINT64),
    "num_threads": _Value(f"({_BLOCKS} * {_THREADS})", _UINT64),
    "size": _Value(f"({_BLOCKS} * {_THREADS})", _UINT64),
    "num_blocks": _Value(_BLOCKS, _UINT64),
    "dim_blocks": _functions.triple("gridDim"),
    "group_dim": _functions.triple("gridDim"),
    "block_index": _functions.triple("blockIdx"),
}


class _Method(_functions.Builtin):
    """A method of a group, which has no arguments."""

    def __init__(self, name: str, value: _Value, cooperative: bool) -> None:
        self.name = name
        self._value = value
        self._cooperative = cooperative

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> _Value:
        """Return what the method gives."""
        _functions.bound(self.name, "", args, kwargs)
        if self._cooperative:
            unit.unit.cooperative = True
        return self._value


@dataclass(frozen=True)
class _Group(_Kind):
    """A group of threads; it is a name, and has no variable in C++."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def c(self) -> str:
        """Raise: a group is not passed and not kept."""
        raise TypeError("a group of threads can only be a variable of the kernel that makes it")

    def method(self, name: str) -> _Method | None:
        """Return a method."""
        found = (_OF_GRID if self.name == "this_grid" else _OF_BLOCK).get(name)
        if found is None:
            return None
        return _Method(name, found, self.name == "this_grid" and name == "sync")


class _Function(_functions.Builtin):
    """A function of a group."""

    def __init__(self, name: str, called: Callable[..., _Value], names: str) -> None:
        self.name = f"cg.{name}"
        self._called = called
        self._names = names

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> _Value:
        """Return the call."""
        given = _functions.bound(self.name, self._names, args, kwargs)
        if "group" in given and not isinstance(getattr(given["group"], "kind", None), _Group):
            raise ValueError("this is no group of threads")
        return self._called(unit, **given)


def _synced(unit: Any, group: _Value) -> _Value:
    assert isinstance(group.kind, _Group)
    method = group.kind.method("sync")
    assert method is not None
    return method.call(unit, [], {})


def _of_block(group: _Value) -> None:
    if group.kind != _Group("this_thread_block"):
        raise NotImplementedError("copies are for the threads of a block: see this_thread_block")


def _waited(unit: Any, group: _Value, step: Any = None) -> _Value:
    del unit
    _of_block(group)
    if step is not None and not isinstance(step, _Const):
        raise ValueError("the step must be a constant")
    return _Value("__syncthreads()", _VOID)


def _copied(
    unit: Any,
    group: _Value,
    dst: Any,
    dst_idx: Any,
    src: Any,
    src_idx: Any,
    size: Any,
    aligned_size: Any = None,
) -> _Value:
    _of_block(group)
    if aligned_size is not None and not isinstance(aligned_size, _Const):
        raise ValueError("aligned_size must be a constant")
    places: list[str] = []
    for array, index in ((dst, dst_idx), (src, src_idx)):
        if not isinstance(getattr(array, "kind", None), (_Array, _Pointer)):
            raise TypeError("memory is copied between arrays")
        place = _functions.indexed(array, index, unit.mode).place
        if not place:
            raise TypeError("the index must be that of an element")
        places.append(f"&{place}")
    count = _cast(size, _UINT32, "same_kind", unit.mode).code
    to = f"reinterpret_cast<char *>({places[0]})"
    source = f"reinterpret_cast<const char *>({places[1]})"
    code = f"gpjit::copied({to}, {source}, {count}, {_functions.RANK}, {_THREADS})"
    return _Value(code, _VOID)


def _made(name: str) -> _Function:
    return _Function(name, lambda unit: _Value("", _Group(name)), "")


this_grid = _made("this_grid")
this_thread_block = _made("this_thread_block")
sync = _Function("sync", _synced, "group")
wait = _Function("wait", _waited, "group")
wait_prior = _Function("wait_prior", _waited, "group step")
memcpy_async = _Function(
    "memcpy_async", _copied, "group dst dst_idx src src_idx size | aligned_size"
)

__getattr__ = _absent.lookup(__name__)
