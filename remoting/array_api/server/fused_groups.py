"""Groups: the calls of one function of `cupy.fuse`, computed by as few kernels as can be.

A GROUP record says that the bytes behind it are one function's records. It is a hint: whatever is
not understood here runs call by call, because the records say all. A kernel of several operations
may round otherwise than they do one by one, as it may natively.

Runs
    Calls that follow each other, work element by element and give results of one shape are a run.
    A run of two or more becomes one function, which `Backend.fuse` makes a kernel of: `cupy.fuse`
    of the worker's CuPy. The other calls of the group run as they are. A result of a run is
    stored if the client keeps it, or if a call outside the run uses it. Those that are freed
    within the group are never stored: they need no memory. All others that are freed in it go
    with the last run that uses them, so that a group needs no more memory than its calls.

Plans
    The records of a function are the same in each call of it, but for handles and numbers. So
    handles are numbered as they come, and what is left is the key of a plan: the runs, and their
    functions. While CuPy follows a function for the first time, the type of each step is compared
    with the one that the client inferred, and nothing is computed yet. A run that CuPy cannot
    follow is remembered as one of single calls.

Order
    A kernel reads the elements of a place, and writes those of that place only. So a run that
    writes into arrays of the client, and whose arrays share memory, runs call by call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_results import DependsOnFailureError, Meta
from gpupool.remoting.array_api.server.session_calls import Calls
from gpupool.remoting.array_api.server.templates import Template
from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.operation_names import UFUNCS

CALLS_MAX = 256
"""Calls of a group; a client sends 64 at most."""

FREED_MAX = 4096
"""Handles that a group frees; one of more runs call by call."""

PLANS_MAX = 256
"""Plans that a session keeps. With the next one, all are made anew."""

_ELEMENTWISE = frozenset((*UFUNCS, "where", "ndarray.astype"))
_U32 = struct.Struct("<I")

Program = Callable[..., Any]


class _Call(NamedTuple):
    """One record."""

    template: Template
    values: tuple[Any, ...]
    meta: Meta | None  # of its one result


class _Group(NamedTuple):
    """The records of a group, its handles in the order in which they come, and those freed."""

    calls: list[_Call]
    handles: list[int]
    freed: list[int]
    key: Any


class _Step(NamedTuple):
    """One operation of a run."""

    function: Callable[..., Any]
    operands: tuple[tuple[Any, bool], ...]  # each a value's name, or a constant
    out: int  # the handle that it makes, or writes into
    dtype: np.dtype[Any] | None  # of its result, where it makes one


@dataclass(slots=True)
class _Run:
    """Calls that are computed together, or one after the other."""

    first: int
    last: int  # of the group's calls, exclusive
    program: Program | None = None
    arrays: tuple[int, ...] = ()  # numbers of handles
    numbers: tuple[tuple[int, int], ...] = ()  # a call, and a place among its values
    kept: tuple[int, ...] = ()  # calls whose results are stored
    writes: bool = False
    frees: tuple[int, ...] = ()  # numbers of handles that nobody uses after it


class Groups:
    """Runs the groups of one session."""

    def __init__(self, executor: Calls) -> None:
        self._executor = executor
        self._plans: dict[Any, tuple[list[_Call], list[_Run]]] = {}

    def run(self, body: memoryview, position: int) -> int:
        """Run the group of the record at ``position``, or nothing of it; return where to go on.

        Raises:
            RemoteProtocolError: a record is cut short, or uses a handle that nothing has made.
            struct.error: the last record of the group goes beyond the frame.
        """
        _, length = array_wire.SIZED_RECORD.unpack_from(body, position)
        start = position + array_wire.SIZED_RECORD.size
        if start + length > len(body):
            raise RemoteProtocolError("malformed record", why="cut short")
        executor = self._executor
        group = self._read(body, start, start + length)
        if group is None:
            return start
        runs = self._plan(group)
        if all(run.program is None for run in runs):
            return start
        for handle in set(group.freed).difference(group.handles):
            executor.free(handle)
        for run in runs:
            if run.program is None or not self._computes(run, run.program, group):
                for template, values, _ in group.calls[run.first : run.last]:
                    executor.sequence += 1
                    executor.call(template, values)
            for number in run.frees:
                executor.free(group.handles[number])
        return start + length

    def _read(self, body: memoryview, position: int, end: int) -> _Group | None:
        """Return the calls and the freed handles; None if there is anything else."""
        executor = self._executor
        calls: list[_Call] = []
        freed: list[int] = []
        numbers: dict[int, int] = {}
        key: list[Any] = []
        while position < end:
            code = _U32.unpack_from(body, position)[0]
            if code == array_wire.FREE:
                handle = array_wire.FREE_RECORD.unpack_from(body, position)[1]
                freed.append(handle)
                position += array_wire.FREE_RECORD.size
                continue
            template = executor.templates.get(code)
            if template is None or len(calls) == CALLS_MAX or len(freed) > FREED_MAX:
                return None
            values = template.layout.unpack_from(body, position)
            position += template.layout.size
            outputs = template.outputs
            meta = executor.metas.get(values[1]) if outputs == 1 else None
            key += (id(template), id(meta))
            for place in template.handles:
                key.append(numbers.setdefault(values[place], len(numbers)))
            if template.keywords and template.name in _ELEMENTWISE:
                # What it writes into may be an array from outside, of any shape.
                found = executor.objects.get(
                    values[template.handles[-1]] if template.handles else 0
                )
                key.append(getattr(found, "shape", None))
            first = values[1 + outputs]
            for handle in range(first, first + outputs):
                numbers.setdefault(handle, len(numbers))
            calls.append(_Call(template, values, meta))
        if position != end:
            return None
        key.append(None)
        key += [numbers[handle] for handle in freed if handle in numbers]
        return _Group(calls, list(numbers), freed, tuple(key))

    # --- plans ----------------------------------------------------------------------------------

    def _plan(self, group: _Group) -> list[_Run]:
        found = self._plans.get(group.key)
        if found is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            # The calls are kept with it, so that no other template gets the number of one.
            found = self._plans[group.key] = (group.calls, self._made_plan(group))
        return found[1]

    def _made_plan(self, group: _Group) -> list[_Run]:
        shapes = self._shapes(group.calls)
        runs: list[_Run] = []
        first = 0
        while first < len(shapes):
            last = first + 1
            while (
                shapes[first] is not None and last < len(shapes) and shapes[last] == shapes[first]
            ):
                last += 1
            run = _Run(first, last)
            if last - first > 1:
                self._make_program(run, group)
            runs.append(run)
            first = last
        _free_early(runs, group)
        return runs

    def _shapes(self, calls: Sequence[_Call]) -> list[tuple[int, ...] | None]:
        """Return the shape of each call's result; None if it does not work element by element."""
        shapes: list[tuple[int, ...] | None] = []
        made: dict[int, tuple[int, ...]] = {}
        for template, values, meta in calls:
            shape: tuple[int, ...] | None = None
            if template.name in _ELEMENTWISE and template.plain is not None:
                if template.outputs == 1 and not template.keywords:
                    shape = None if meta is None else meta.shape
                elif not template.outputs and _writes(template):
                    out = values[template.handles[-1]]
                    array = self._executor.objects.get(out)
                    shape = made.get(out, getattr(array, "shape", None))
            if meta is not None:
                made[values[1 + template.outputs]] = meta.shape
            shapes.append(shape)
        return shapes

    def _make_program(self, run: _Run, group: _Group) -> None:
        """Determine a run's inputs, operations and results, and make a kernel of it."""
        calls = group.calls[run.first : run.last]
        others = [*group.calls[: run.first], *group.calls[run.last :]]
        results = {_result(call): at for at, call in enumerate(calls) if call.template.outputs}
        wanted = set(results) - set(group.freed)
        wanted |= {values[place] for template, values, _ in others for place in template.handles}
        kept = [handle for handle in results if handle in wanted]
        used = [values[place] for template, values, _ in calls for place in template.handles]
        arrays = list(dict.fromkeys(handle for handle in used if handle not in results))
        numbers: list[tuple[int, int]] = []
        steps: list[_Step] = []
        for at, call in enumerate(calls, run.first):
            template, values, meta = call
            operands: list[tuple[Any, bool]] = []
            for each in template.plain or ():
                constant: Any = each
                if type(each) is tuple:
                    operands.append((constant[0], True))
                elif each in template.handles:
                    operands.append((values[each], False))
                else:
                    numbers.append((at, each))
                    operands.append((numbers[-1], False))
            out = values[template.handles[-1]] if template.keywords else _result(call)
            function = _astype if template.name == "ndarray.astype" else template.function
            steps.append(_Step(function, tuple(operands), out, meta and meta.dtype))
        at_of = {handle: at for at, handle in enumerate(group.handles)}
        run.arrays = tuple([at_of[handle] for handle in arrays])
        run.numbers = tuple(numbers)
        run.kept = tuple([run.first + results[handle] for handle in kept])
        run.writes = any(step.dtype is None for step in steps)
        run.program = self._executor.backend.fuse(_function([*arrays, *numbers], steps, kept))

    # --- a run ----------------------------------------------------------------------------------

    def _computes(self, run: _Run, program: Program, group: _Group) -> bool:
        """Compute a run as a whole; False, and nothing done, if that is not possible."""
        executor = self._executor
        calls = group.calls
        try:
            inputs = [executor.find(group.handles[number]) for number in run.arrays]
        except DependsOnFailureError:
            return False
        if not self._is_safe(inputs, writes=run.writes):
            return False
        inputs += [calls[at].values[place] for at, place in run.numbers]
        try:
            results: Any = executor.retried(program, inputs, {}) or ()
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - the calls one by one have the error, if any
            if not executor.backend.is_out_of_memory(error):
                run.program = None
            return False
        kept = [calls[at] for at in run.kept]
        if not run.writes and not all(map(_fits, results, kept)):
            run.program = None
            return False
        executor.sequence += run.last - run.first
        try:
            for call, value in zip(kept, results, strict=True):
                name, number = call.template.name, call.values[1]
                executor.keep(name, _result(call), number, call.meta, value)
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - every failure is reported to the client
            handles = [_result(call) for call in kept]
            executor.fail("fuse", [each for each in handles if each not in executor.objects], error)
        return True

    def _is_safe(self, arrays: Sequence[Any], *, writes: bool) -> bool:
        """Return whether all are arrays, in separate memories if one is written into."""
        backend = self._executor.backend
        if not arrays or not all(backend.is_array(array) and array.size for array in arrays):
            return False
        if len(arrays) == 1 or not writes:
            return True
        try:
            return len({backend.memory_of(array)[0] for array in arrays}) == len(arrays)
        except UnsupportedError:
            return False


def _free_early(runs: Sequence[_Run], group: _Group) -> None:
    """Note after which run each handle is freed that the group both names and frees."""
    number_of = {handle: at for at, handle in enumerate(group.handles)}
    latest: dict[int, _Run] = {}
    for run in runs:
        for template, values, _ in group.calls[run.first : run.last]:
            first = values[1 + template.outputs]
            made = range(first, first + template.outputs)
            latest |= dict.fromkeys([*(values[place] for place in template.handles), *made], run)
    for handle in dict.fromkeys(group.freed):
        if handle in latest:
            latest[handle].frees += (number_of[handle],)


def _writes(template: Template) -> bool:
    """Say whether a call of plain arguments writes into one array more, its last handle."""
    arrays = [each for each in template.plain or () if each in template.handles]
    return template.keywords == ("out",) and len(arrays) == len(template.handles) - 1


def _result(call: _Call) -> int:
    """Return the handle of a call's first result."""
    return call.values[1 + call.template.outputs]


def _fits(value: Any, call: _Call) -> bool:
    assert call.meta is not None
    return value.dtype == call.meta.dtype and value.shape == call.meta.shape


def _function(names: Sequence[Any], steps: Sequence[_Step], returned: Sequence[int]) -> Program:
    """Return the function of the named arrays and numbers that a run is."""

    def fused(*inputs: Any) -> Any:
        values = dict(zip(names, inputs, strict=True))
        for function, operands, out, dtype in steps:
            given = [each if constant else values[each] for each, constant in operands]
            if dtype is None:
                function(*given, out=values[out])
                continue
            value = values[out] = function(*given)
            if value.dtype != dtype:
                raise TypeError(f"{function} gives {value.dtype} in a kernel, not {dtype}")
        return tuple([values[handle] for handle in returned]) if returned else None

    return fused


def _astype(value: Any, dtype: Any, order: Any = "K") -> Any:
    """Convert; within a kernel there is no order, and `keep` makes the one of the client."""
    del order
    return value.astype(dtype)
