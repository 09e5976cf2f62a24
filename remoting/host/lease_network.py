"""Connections of a lease's workers to its other servers, which the host makes or has a hand in.

A worker has no network of its own. For a copy it asks the host for a connection to another server
of its lease. Where an operator allows NCCL between servers, its sockets of TCP are made here and
held to the lease's servers (``isolation.held_sockets``).
"""

import contextlib
import os
import socket
from collections.abc import Callable, Collection, Sequence

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.host.isolation import held_sockets
from gpupool.remoting.host.isolation.confinement import HELD, LEASE_ADDRESSES
from gpupool.remoting.host.isolation.held_sockets import Network
from gpupool.remoting.host.privileged_helper import PrivilegedHelper
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.host.worker_handle import WorkerHandle
from gpupool.remoting.protocol import worker_messages
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.helper_messages import LoadFilter
from gpupool.remoting.transport.descriptor_passing import receive_packet

PEER_TIMEOUT_S = 4.0
"""For a connection to another server, or its name's addresses; as for a client's connection."""


class LeaseNetwork:
    """The connections of the workers of this host."""

    def __init__(
        self,
        helper: PrivilegedHelper,
        wanted: Collection[str],
        address_of: Callable[[ServerId], str | None],
        networks: Sequence[Network],
        log: Callable[[str], None],
    ) -> None:
        """Prepare; ``run`` starts it.

        Args:
            helper: loads filters of packets.
            wanted: of ``confinement.PROPERTIES``.
            address_of: where another server of the pool listens; None when it is not known.
            networks: those with which NCCL may speak beside the servers' addresses.
            log: takes one line.
        """
        self._address_of, self._networks, self._log = address_of, networks, log
        self._nursery: trio.Nursery | None = None
        self._helper, self._wanted = helper, wanted
        self._program = held_sockets.CLASSIC
        self.holds: tuple[str, ...] = ()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled."""
        try:
            if HELD in self._wanted:
                await self._prepare()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            if self._program >= 0:
                os.close(self._program)
                self._program = held_sockets.CLASSIC

    async def _prepare(self) -> None:
        with contextlib.suppress(GpupoolError, OSError):
            self._program = (await self._helper.ask_for(LoadFilter(None)))[1]
        if held_sockets.can_hold(self._program):
            self.holds = (HELD,)

    def hold(self, connection: held_sockets.Socket) -> None:
        """Hold a connection to its other end, where that can be done.

        Raises:
            OSError: when it cannot be done with this one.
        """
        if self.holds:
            held_sockets.hold(connection, self._program)

    def dial(self, worker: WorkerHandle, server: ServerId) -> None:
        """Connect a worker to another server of its lease; it hears of it by ``Dialled``."""
        worker.session.dialling = True
        if self._nursery is not None:
            self._nursery.start_soon(self._dial, worker, server)

    async def make_sockets(self, worker: WorkerHandle) -> None:
        """Make the sockets of a worker from now on, if that is how it is to have any.

        Called before the worker hears of its lease.

        Raises:
            WorkerFailedError: when it does not take the message.
        """
        addresses, peers = list[str](), worker.session.peers
        if not peers or LEASE_ADDRESSES not in worker.confinement or self._nursery is None:
            return
        for server in sorted(peers):
            try:
                addresses += await self._addresses(server)
            except (OSError, GpupoolError, trio.TooSlowError) as error:
                why = str(error) or "no answer in time"
                self._log(f"{worker.label}: NCCL in it does not reach server {server}: {why}")
        allowed = (*self._networks, *held_sockets.of_addresses(addresses))
        program = await self._load(allowed)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                worker.send(worker_messages.SendListener(), theirs.fileno())
            except WorkerFailedError:
                ours.close()
                os.close(program)
                raise
        self._nursery.start_soon(self._make_sockets, worker, ours, program)

    async def _load(self, allowed: Sequence[Network]) -> int:
        try:
            wanted = LoadFilter(tuple(str(each) for each in allowed))
            return (await self._helper.ask_for(wanted))[1]
        except OSError as error:
            raise WorkerFailedError("no session can be opened", why=str(error)) from error

    async def _addresses(self, server: ServerId) -> list[str]:
        address = self._address_of(server)
        if address is None:
            raise GpupoolError("its address is not known")
        target = parse_address(address)
        with trio.fail_after(PEER_TIMEOUT_S):
            found = await trio.socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        return [str(where[0]) for *_, where in found]

    async def _make_sockets(self, worker: WorkerHandle, line: socket.socket, program: int) -> None:
        descriptors: list[int] = []
        try:
            _data, descriptors = await receive_packet(line, 1, 1)
            line.close()
            if descriptors:
                await held_sockets.serve(descriptors[0], program)
        except OSError as error:
            worker.kill(f"its sockets cannot be made: {error}")
        finally:
            line.close()
            for descriptor in (*descriptors, program):
                os.close(descriptor)

    async def _dial(self, worker: WorkerHandle, server: ServerId) -> None:
        """Connect a worker to another server of its lease, which is all that it may reach."""
        address = self._address_of(server) if server in worker.session.peers else None
        reason = f"server {server[:32]} is none of this lease" if address is None else ""
        connection: trio.SocketStream | None = None
        try:
            if address is not None:
                target = parse_address(address)
                with trio.fail_after(PEER_TIMEOUT_S):
                    connection = await trio.open_tcp_stream(target.host, target.port)
                self.hold(connection.socket)
        except (OSError, GpupoolError, trio.TooSlowError) as error:
            reason = worker_messages.shortened(str(error) or "no answer in time")
        worker.session.dialling = False
        try:
            descriptor = None if reason or connection is None else connection.socket.fileno()
            worker.send(worker_messages.Dialled(reason), descriptor)
        except WorkerFailedError as error:
            worker.kill(str(error))
        finally:
            if connection is not None:
                connection.socket.close()
