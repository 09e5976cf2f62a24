"""Executable graphs: made, changed, launched; and the memory that their nodes allocate.

CUDA takes the memory of allocation nodes at a launch, where nobody can be told that the partition
is full. So it is reserved when the graph becomes executable, for as long as it is.
"""

import contextlib
import ctypes
import struct
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import INVALID_VALUE, NOT_SUPPORTED, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.graphs.early_pieces import EarlyPieces, Host
from gpupool.remoting.driver_api.executor.graphs.graphs import Allocation, Graphs
from gpupool.remoting.driver_api.executor.graphs.node_params import (
    ALLOCATE,
    FREE,
    HOST,
    HOST_DATA,
    KERNEL,
    PARAMS_SIZE,
    WORD,
    Translator,
)
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.memory.slots import Slots
from gpupool.remoting.driver_api.schema.records import NUMBERS

INSTANTIATE = struct.Struct("<QQQi4x")
"""CUDA_GRAPH_INSTANTIATE_PARAMS: flags, stream, node of an error, result."""

FOR_KERNELS = 4
"""CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH."""

UPDATE = struct.Struct("<i4xQQ")
"""CUgraphExecUpdateResultInfo: result, node, node that an edge comes from."""


HOST_NODE = struct.Struct("<2Q")
"""CUDA_HOST_NODE_PARAMS: function and data."""


@dataclass(slots=True)
class Executable:
    """State of an executable graph beside CUDA's handle."""

    graph: int
    allocations: list[Allocation] = field(default_factory=list[Allocation])
    left: list[Allocation] = field(default_factory=list[Allocation])  # that it does not free
    foreign: list[int] = field(default_factory=list[int])  # addresses of others that it frees
    hosts: Sequence[Host] = ()  # host nodes that come behind copies to the client


class GraphLaunches(HandlerGroup):
    """The executable graphs of a client process."""

    def __init__(
        self, client: Client, direct: Direct, graphs: Graphs, memory: Memory, slots: Slots,
        translator: Translator, early: EarlyPieces,
    ) -> None:  # fmt: skip
        super().__init__(client)
        self._direct = direct
        self._graphs = graphs
        self._memory = memory
        self._slots = slots
        self._translator = translator
        self._early = early
        self._executables: dict[int, Executable] = {}
        client.failed_launches.append(self._failed)
        self.methods = {
            "GRAPH_EARLY": self._announce,
            "GRAPH_SET": self._set,
            "GRAPH_SET_CHILD": self._set_child,
            "GRAPH_ENABLE": self._enable,
            "GRAPH_LAUNCH": self._launch,
            "GRAPH_EXEC_DESTROY": self._destroy,
            "GRAPH_INSTANTIATE": self._instantiate,
            "GRAPH_UPDATE": self._update,
            "GRAPH_GET_MEMORY": self._get_memory,
            "GRAPH_SET_MEMORY": self._set_memory,
            "GRAPH_TRIM": self._trim,
        }

    def _handle(self, number: int) -> int:
        return self.objects["x"][number]

    # --- making -----------------------------------------------------------------------------------

    def _announce(self, executable: int, _count: int, pairs: memoryview) -> None:
        self._early.announce(executable, WORDS[2].iter_unpack(pairs))

    def _instantiate(self, number: int, graph: int, flags: int, stream: int) -> bytes | None:
        hosts = self._early.announced(number)
        if self.client.take_failure():
            return None  # of what built the graph, most likely
        handle = self._graphs.handle(graph)
        made = self._described(graph)
        made.hosts = hosts
        on = self.streams[stream] if stream else 0
        request = self.client.record.request
        if not made.allocations:
            return self._make(number, handle, made, flags, on, request)
        return self._memory.once_freed(
            lambda: self._make(number, handle, made, flags, on, 0) or b""
        )

    def _described(self, graph: int) -> Executable:
        """Return an executable graph as it will be, by the memory of its nodes."""
        made = Executable(graph)
        made.allocations, freeing = self._graphs.memory_of(self._graphs.handle(graph))
        freed = Counter(freeing)
        for allocation in made.allocations:  # what comes behind a free may lie where that was
            if freed[allocation.address]:
                freed[allocation.address] -= 1
            else:
                made.left.append(allocation)
        made.foreign = sorted(freed.elements())
        return made

    def _make(
        self, number: int, handle: int, made: Executable, flags: int, stream: int, request: int
    ) -> bytes | None:
        """Make a graph executable; say of ``request``, unless it is 0, why it cannot be."""
        self._reserve(made)
        params = ctypes.create_string_buffer(
            INSTANTIATE.pack(flags, stream, 0, 1), INSTANTIATE.size
        )
        found = ctypes.c_uint64(0)
        try:
            if made.hosts:
                self._early.keep(number, made.hosts)
            with self._naming(number, made.hosts) as use:
                status = self._direct.status("cuGraphInstantiateWithParams", found, handle, params)
                if not status:
                    use()
        except (*self.api.errors, KeyError):
            self._early.forget(number)
            self._release(made.allocations)
            raise
        _, _, node, result = INSTANTIATE.unpack(params.raw)
        if status:
            self._early.forget(number)
            self._release(made.allocations)
            if not request:
                raise CudaError(status, "cuGraphInstantiateWithParams")
            bad = self._graphs.number(made.graph, node)
            self.session.reply(request, status, WORDS[2].pack(result, bad))
            return None
        self.client.keep("x", number, found.value)
        self._executables[number] = made
        self._issue(number)
        # A kernel that launches it must be given this very handle.
        return WORDS[2].pack(0, found.value if flags & FOR_KERNELS else 0)

    @contextlib.contextmanager
    def _naming(self, executable: int, hosts: Sequence[Host]) -> Generator[Callable[[], None]]:
        """Name a graph's host functions for an executable that is instantiated in the block.

        What this gives is to be called if it was.
        """
        names: dict[int, int] = {}
        used = False

        def use() -> None:
            nonlocal used
            used = True
            if names:
                self._early.use(executable, names)

        before: list[tuple[int, bytes]] = []
        try:
            for place, host in enumerate(hosts):
                node = self._graphs.nodes[host.node].handle
                params = (ctypes.c_char * HOST_NODE.size)()
                self._direct.call("cuGraphHostNodeGetParams", node, params)
                function, number = HOST_NODE.unpack(params.raw)
                names[place] = self._early.name(executable, place, number)
                named = HOST_NODE.pack(function, names[place])
                self._direct.call("cuGraphHostNodeSetParams", node, named)
                before.append((node, params.raw))
            yield use
        finally:
            if not used:
                self._early.drop(names.values())
            for node, params in before:
                self._direct.call("cuGraphHostNodeSetParams", node, params)

    def _reserve(self, made: Executable) -> None:
        done: list[Allocation] = []
        try:
            for one in made.allocations:
                self._memory.reserve(one.device, charged(one.size))
                done.append(one)
        except self.api.errors:
            self._release(done)
            raise

    def _release(self, allocations: list[Allocation]) -> None:
        for one in allocations:
            self.client.budget.release(one.device, charged(one.size))

    def _destroy(self, number: int) -> None:
        handle = self.objects["x"].pop(number)
        made = self._executables.pop(number)
        self.client.end_issuing("x", number)
        self._slots.forget(number)
        self._early.forget(number)
        self._direct.call("cuGraphExecDestroy", handle)
        gone: list[Allocation] = []
        for one in made.allocations:
            # What a launch has left allocated is charged until the program frees it.
            left = any(one is each for each in made.left)
            if left and one.address in self.client.allocations:
                self.client.allocations[one.address] = (one.device, charged(one.size))
                self._memory.of_graphs.add(one.address)
            else:
                gone.append(one)
        if gone:
            self._give_back(gone)

    def _give_back(self, gone: list[Allocation]) -> None:
        """Trim the memory that CUDA keeps for graphs, and then count it as free.

        A launch may still run, and has its memory until it is over.
        """
        for device in {one.device for one in gone}:
            self.waiter.freeing.begin()
            own = [one for one in gone if one.device == device]
            self.waiter.start(device, partial(self._give_back_now, device, own))

    def _give_back_now(self, device: int, gone: list[Allocation]) -> None:
        try:
            self.api.runtime.deviceSynchronize()
            self._memory.pools.trim_graphs(device)
            self._release(gone)
        except self.api.errors as error:
            self.client.fail(NUMBERS["GRAPH_EXEC_DESTROY"], self.api.status_of(error))
        finally:
            self.waiter.freeing.end()

    # --- launching --------------------------------------------------------------------------------

    def _launch(self, number: int, stream: int) -> None:
        self.waiter.freeing.wait_for_calls()  # it may have host functions
        made = self._executables[number]
        try:
            self.api.call("cuGraphLaunch", self._handle(number), self.streams[stream])
        except (*self.api.errors, KeyError):
            self._failed(number)
            raise
        if number in self._slots.failed:
            self._slots.failed.discard(number)
            self._issue(number)
        if made.hosts:
            self._early.launched(number)
        if made.left or made.foreign:
            self._note(made, self.streams[stream])

    def _failed(self, number: int) -> None:
        """Mark the slots of an executable graph as holding data of an earlier launch."""
        self._slots.failed.add(number)
        if self.client.launcher is not None:
            self.client.launcher.end("x", number)  # the next launch, which may not fail, is noted

    def _issue(self, number: int) -> None:
        """Register an executable graph with the launcher if its launches need no bookkeeping."""
        made, launcher = self._executables[number], self.client.launcher
        if launcher is None:
            return
        if made.left or made.foreign or made.hosts:
            launcher.end("x", number)
        else:
            launcher.keep("x", number, self._handle(number))

    def _note(self, made: Executable, stream: int) -> None:
        allocations = self.client.allocations
        for one in made.left:
            allocations.setdefault(one.address, (one.device, 0))
        for address in made.foreign:
            if address not in allocations:
                continue
            freed = self._memory.take(address)[1]
            if freed is not None:
                self._memory.when_reached(stream, NUMBERS["GRAPH_LAUNCH"], freed)

    # --- changing ---------------------------------------------------------------------------------

    def _set(self, node: int, executable: int, _size: int, given: memoryview) -> None:
        rest = bytes(given)
        params = self._translator.to_cuda(rest[:PARAMS_SIZE], rest[PARAMS_SIZE:])
        handle, pointer = self._graphs.nodes[node].handle, params.pointer()
        if params.kind in (ALLOCATE, FREE):  # as CUDA says; their memory has been counted
            raise CudaError(INVALID_VALUE, "cuGraphNodeSetParams")
        if executable:
            name = "cuGraphExecNodeSetParams"
            place = self._early.place(executable, node) if params.kind == HOST else -1
            names: dict[int, int] = {}
            if place >= 0:
                names[place] = self._early.name(executable, place, params.word(HOST_DATA))
                WORD.pack_into(params.bytes, HOST_DATA, names[place])
            try:
                self._direct.call(name, self._handle(executable), handle, pointer)
            except (*self.api.errors, KeyError):
                self._early.drop(names.values())
                raise
            if names:
                self._early.use(executable, names)
            if params.kind == KERNEL:
                self._graphs.issue(node)
        else:
            self._direct.call("cuGraphNodeSetParams", handle, pointer)

    def _set_child(self, executable: int, node: int, graph: int) -> None:
        handles = self._graphs.nodes[node].handle, self._graphs.handle(graph)
        if self._graphs.memory_of(handles[1])[0]:
            raise CudaError(NOT_SUPPORTED, "cuGraphExecChildGraphNodeSetParams")
        name = "cuGraphExecChildGraphNodeSetParams"
        self._direct.call(name, self._handle(executable), *handles)

    def _enable(self, executable: int, node: int, enabled: int) -> None:
        handle = self._graphs.nodes[node].handle
        self._direct.call("cuGraphNodeSetEnabled", self._handle(executable), handle, enabled)

    def _update(self, executable: int, graph: int) -> bytes | None:
        hosts = self._early.announced(executable)
        if self.client.take_failure():
            return None
        info = (ctypes.c_char * UPDATE.size)()
        handles = self._handle(executable), self._graphs.handle(graph)
        made, now = self._executables[executable], self._described(graph)
        if [host.copies for host in hosts] != [host.copies for host in made.hosts]:
            raise CudaError(INVALID_VALUE, "cuGraphExecUpdate")
        self._reserve(now)
        with self._naming(executable, hosts) as use:
            status = self._direct.status("cuGraphExecUpdate_v2", *handles, info)
            if not status:
                use()
        self._release((now if status else made).allocations)
        if not status:
            made.allocations, made.left, made.foreign = now.allocations, now.left, now.foreign
            self._issue(executable)
        result, node, other = UPDATE.unpack(info.raw)
        numbers = [self._graphs.number(graph, handle) for handle in (node, other)]
        body = WORDS[3].pack(result & 0xFFFFFFFF, *numbers)
        self.session.reply(self.client.record.request, status, body)
        return None

    # --- memory of graphs -------------------------------------------------------------------------

    def _ordinal(self, device: int) -> int:
        return self.client.ordinals[self.client.index(device)]

    def _get_memory(self, device: int, attribute: int) -> bytes:
        value: Any = ctypes.c_uint64(0)
        name = "cuDeviceGetGraphMemAttribute"
        self._direct.call(name, self._ordinal(device), attribute, value)
        return WORDS[1].pack(value.value)

    def _set_memory(self, device: int, attribute: int, value: int) -> bytes:
        if attribute > 3:
            raise RemoteProtocolError("malformed record")
        name = "cuDeviceSetGraphMemAttribute"
        self._direct.call(name, self._ordinal(device), attribute, ctypes.c_uint64(value))
        return b""

    def _trim(self, device: int) -> bytes:
        self._direct.call("cuDeviceGraphMemTrim", self._ordinal(device))
        return b""
