"""Executes the records of one client process, in their order.

At the end of its lease's turn on a GPU it waits for all work of the client process.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.devices.base import Budget, DeviceSpec
from gpupool.remoting.driver_api.executor.api import INVALID_HANDLE, INVALID_VALUE, Api, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.contexts import Contexts
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.generic import Generic
from gpupool.remoting.driver_api.executor.graphs.early_pieces import EarlyPieces
from gpupool.remoting.driver_api.executor.graphs.graph_launches import GraphLaunches
from gpupool.remoting.driver_api.executor.graphs.graphs import Graphs
from gpupool.remoting.driver_api.executor.graphs.node_params import Translator
from gpupool.remoting.driver_api.executor.host_functions import HostFunctions
from gpupool.remoting.driver_api.executor.lanes import Lanes
from gpupool.remoting.driver_api.executor.memory.cuda_arrays import Arrays
from gpupool.remoting.driver_api.executor.memory.ipc import Ipc
from gpupool.remoting.driver_api.executor.memory.ipc_tokens import Tokens
from gpupool.remoting.driver_api.executor.memory.managed import Managed
from gpupool.remoting.driver_api.executor.memory.mapped import Mapped
from gpupool.remoting.driver_api.executor.memory.memory import Memory
from gpupool.remoting.driver_api.executor.memory.memory_pools import Pools
from gpupool.remoting.driver_api.executor.memory.server_copies import PeerCopies
from gpupool.remoting.driver_api.executor.memory.shared_pools import SharedPools
from gpupool.remoting.driver_api.executor.memory.slots import Slots
from gpupool.remoting.driver_api.executor.memory.transfers import Transfers
from gpupool.remoting.driver_api.executor.memory.virtual_addresses import Addresses
from gpupool.remoting.driver_api.executor.memory.virtual_memory import Virtual
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.executor.modules.kernels import Kernels
from gpupool.remoting.driver_api.executor.modules.launcher import ISSUED, WAITED, Launcher
from gpupool.remoting.driver_api.executor.modules.modules import Modules
from gpupool.remoting.driver_api.executor.modules.shared_state import OVER
from gpupool.remoting.driver_api.executor.out_of_band import OutOfBandReplies
from gpupool.remoting.driver_api.executor.rare.collectives import Collectives
from gpupool.remoting.driver_api.executor.rare.green_contexts import GreenContexts
from gpupool.remoting.driver_api.executor.rare.queries import Queries, Tensors
from gpupool.remoting.driver_api.executor.rare.texture_references import References
from gpupool.remoting.driver_api.executor.streams import Streams
from gpupool.remoting.driver_api.schema.decoding import Decoder, decoder
from gpupool.remoting.driver_api.schema.layout import HEADER, Record
from gpupool.remoting.driver_api.schema.records import BY_NAME, NUMBERS
from gpupool.remoting.worker import launch_gate
from gpupool.remoting.worker.launch_gate import LaunchGate
from gpupool.remoting.worker.peer_links import Links


class TurnEnd:
    """Waits for the work of a device, on a thread of the gate."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._api = client.api

    def follow(self, gate: LaunchGate) -> None:
        """Let the launch gate drain pending work through this object."""
        gate.drain = self._drain
        gate.is_awaited = lambda: bool(self._client.session.began)

    def _drain(self, device: int) -> None:
        """Wait for all that was issued; a failure is the program's, which hears of it itself."""
        client, runtime = self._client, self._api.runtime
        runtime.setDevice(client.ordinals[device])
        # To wait for a context, or for the legacy stream, would spoil the captures of its streams.
        with client.captures.lock:
            if not client.captures.streams:
                runtime.deviceSynchronize()
                return
        for stream in list(client.streams.values()):
            try:
                if stream and not int(self._api.call("cuStreamIsCapturing", stream)):
                    runtime.streamSynchronize(stream)
            except CudaError:
                continue  # it has ended meanwhile


LAUNCH = BY_NAME["LAUNCH"].struct


def handler_groups(client: Client, images: Images, links: Links | None) -> list[HandlerGroup]:
    """Return the areas that execute the records of a client; no two of them share a record."""
    direct, early, tokens = Direct(), EarlyPieces(), Tokens(client)
    slots = Slots(client, early)
    out_of_band_replies = OutOfBandReplies(client.session.reader, client.waiter)
    pools = Pools(client, direct, tokens)
    hosts = HostFunctions(client, direct, out_of_band_replies, early)
    memory, transfers = Memory(client, pools, tokens), Transfers(client)
    kernels = Kernels(client, direct)
    arrays = Arrays(client, direct, memory)
    translator = Translator(client, direct, slots, arrays, hosts)
    graphs = Graphs(client, direct, translator)
    addresses = Addresses(client.api)
    virtual = Virtual(client, memory, addresses)
    modules = Modules(client, direct, kernels, memory, images)
    return [
        Contexts(client, memory, images),
        memory,
        pools,
        virtual,
        Ipc(client, direct, tokens, virtual.virtual),
        SharedPools(client, direct, tokens, pools),
        transfers,
        PeerCopies(client, links),
        Lanes(client, links),
        Mapped(client, out_of_band_replies, tokens),
        Managed(client, memory, transfers, addresses),
        kernels,
        modules,
        References(client, direct, modules, arrays),
        Tensors(client, direct),
        Queries(client, direct),
        GreenContexts(client, direct),
        Collectives(client, out_of_band_replies),
        arrays,
        Streams(client, direct),
        hosts,
        slots,
        graphs,
        GraphLaunches(client, direct, graphs, memory, slots, translator, early),
        Generic(client, direct, transfers.replaced() | kernels.replaced()),
    ]


class Executor:
    """Decodes frames and calls the method that executes each of their records."""

    def __init__(
        self,
        api: Api,
        session: Any,
        devices: Sequence[DeviceSpec],
        budget: Budget,
        log: Callable[[str], None],
        images: Images,
        links: Links | None = None,
    ) -> None:
        self.client = client = Client(api, session, devices, budget, log)
        self.buffer = bytearray()
        self.buffer_address = 0
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.asked: set[int] = set()  # records that somebody waits for
        for area in handler_groups(client, images, links):
            for name, executes in area.methods.items():
                self._add(NUMBERS[name], BY_NAME[name], executes)
            for op, (record, executes) in area.calls.items():
                self._add(op, record, executes)
        self.gate = launch_gate.of_worker()
        TurnEnd(client).follow(self.gate)
        api.runtime.setDevice(client.ordinals[0])

    def _add(self, op: int, record: Record, method: Callable[..., Any]) -> None:
        if op in self.handlers:
            raise ValueError(f"two areas execute record {op}")
        self.handlers[op] = self._handler(record, method)
        if record.asked:
            self.asked.add(op)

    def execute(self, buffer: bytearray, view: memoryview, start: int, end: int, bulk: int) -> None:
        """Execute the records of one frame; ``bulk`` bytes of the stream belong to the last.

        Raises:
            ProtocolError: when a record is malformed.
        """
        if buffer is not self.buffer:
            self.buffer_address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
            self.buffer = buffer
        client = self.client
        record = client.record
        record.buffer, record.view, record.bulk = buffer, view, 0
        launcher, count, launch, errors = client.launcher, 0, client.api.launch, client.api.errors
        alone = not (bulk or client.session.reader.has_more())
        unpack, unpack_launch = HEADER.unpack_from, LAUNCH.unpack_from
        functions, streams, handlers = client.functions, client.streams, self.handlers
        plain_launch, least = NUMBERS["LAUNCH"], HEADER.size
        while start < end:
            if end - start < least:
                raise RemoteProtocolError("malformed record")
            op, flags, size = unpack(buffer, start)
            if size < least or size & 7 or size > end - start:
                raise RemoteProtocolError("malformed record")
            if client.awaited is not None and not client.goes_on(op, start, size):
                client.settle()
            ready = client.awaited is None
            if ready and launcher is not None and op in (WAITED if flags & 1 else ISSUED):
                at = self._issue(launcher, start, end, alone=alone)
                if at > start:
                    start = at
                    continue
            if op not in self.asked and not self._pass():
                continue
            try:
                if op == plain_launch and flags == 0:
                    if size < 56:
                        raise RemoteProtocolError("malformed launch")
                    number, stream, gx, gy, gz, bx, by, bz, shared, length = unpack_launch(
                        buffer, start + 8
                    )
                    function = functions[number]
                    if length != function.size or length > size - 56:
                        raise RemoteProtocolError("malformed launch")
                    if length:
                        function.view[:] = view[start + 56 : start + 56 + length]
                    launch(
                        function.handle, gx, gy, gz, bx, by, bz, shared, streams[stream],
                        function.pointers, 0,
                    )  # fmt: skip
                else:
                    record.record_start, record.record_end = start, start + size
                    if start + size == end:
                        record.bulk, bulk = bulk, 0
                    handler = handlers.get(op)
                    if handler is None:
                        raise RemoteProtocolError("unknown record", why=str(op))
                    handler(flags)
            except errors as error:
                client.skip_bulk()  # which a handler that failed has not read
                client.fail(op, client.api.status_of(error))
            except (OverflowError, KeyError) as error:
                # A number that no parameter of CUDA holds; a handle that never was, or is no more.
                client.skip_bulk()
                no_number = isinstance(error, OverflowError)
                client.fail(op, INVALID_VALUE if no_number else INVALID_HANDLE)
            start += size
            count += 1
        if bulk or record.bulk:
            raise RemoteProtocolError("bytes behind a frame that nobody asked for")
        client.session.stream.calls += count

    def _pass(self) -> bool:
        """Return whether the lease has the turn; if not, once it has it again."""
        gate = self.gate.gates[self.client.device]
        if gate.closed:
            self.gate.wait(self.client.device)
            return False
        gate.passed += 1
        return True

    def _issue(self, launcher: Launcher, start: int, end: int, *, alone: bool) -> int:
        """Issue records by the launcher; return the offset of the first record left."""
        at = launcher.run(self.buffer_address, start, end, alone=alone)
        client, outcome = self.client, launcher.outcome
        client.session.stream.calls += outcome.issued
        if outcome.ended == OVER:
            client.waiter.end(outcome)
        elif outcome.status:
            op, _, size = HEADER.unpack_from(self.buffer, at)
            if op == NUMBERS["GRAPH_LAUNCH"]:
                (executable,) = WORDS[1].unpack_from(self.buffer, at + HEADER.size)
                for tell in client.failed_launches:
                    tell(executable)
            client.fail(op, outcome.status)
            at += size
        return at

    def _handler(self, record: Record, method: Callable[..., Any]) -> Callable[[int], None]:
        decode = decoder(self.client.record, record)
        if record.asked:
            return self._asked(decode, method)

        def run(_flags: int) -> None:
            method(*decode())

        return run

    def _asked(self, decode: Decoder, method: Callable[..., bytes | None]) -> Callable[[int], None]:
        client = self.client
        began, now_ns = client.session.began, time.perf_counter_ns

        def run(flags: int) -> None:
            if not flags & 1:
                raise RemoteProtocolError("a call that waits came without a request")
            request, *values = decode()
            client.record.request = request
            began[request] = now_ns()
            try:
                body = method(*values)
            except client.api.errors as error:
                client.skip_bulk()
                status = client.api.status_of(error)
                client.session.reply(request, status)
                client.waiter.heard(status)
            except KeyError:
                client.skip_bulk()
                client.session.reply(request, INVALID_HANDLE)
            except OverflowError:
                client.skip_bulk()
                client.session.reply(request, INVALID_VALUE)
            else:
                if body is not None:
                    client.session.reply(request, 0, body)

        return run
