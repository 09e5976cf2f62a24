"""How a server leaves: it stops, it is removed, or it comes back as another member."""

import logging
from collections.abc import Callable

import trio

from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.commands import Command, DrainServer, EndLease, RemoveServer
from gpupool.pool.model.ids import Incarnation, LeaseId
from gpupool.pool.model.state import PartStatus
from gpupool.pool.reconcile import STOPPING, is_drained_by_stop
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.daemon.state_dir import StateDir
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.server.committer import Committer
from gpupool.remoting.transport.peer_transport import PeerTransport

HAND_OVER_S = 1.0
LAST_COMMANDS_S = 2.0
WORKER_POLL_S = 0.1


class Leaving:
    """The commands with which one server leaves its pool, for a while or for good."""

    def __init__(
        self,
        state: StateDir,
        machine: PoolMachine,
        committer: Committer,
        log: logging.Logger,
    ) -> None:
        assert state.identity is not None
        self._state = state
        self._identity = state.identity
        self._machine = machine
        self._committer = committer
        self._log = log

    async def _commit(self, command: Command) -> None:
        await self._committer.commit(command, timeout_s=LAST_COMMANDS_S)

    def _held_here(self) -> list[LeaseId]:
        me = self._identity.server
        return [
            lease.id
            for lease in self._machine.state.leases.values()
            if lease.parts.get(me, PartStatus.FREED) is not PartStatus.FREED
        ]

    async def undo_stopping(self, mine: Incarnation) -> None:
        """Take back the drain with which this server's former process ended."""
        while True:
            server = self._machine.state.servers.get(self._identity.server)
            drained = is_drained_by_stop(server, mine)
            if drained is False:
                return
            if server is not None and drained:
                command = DrainServer(server.id, None, "the server itself")
                await self._commit(command)
            await trio.sleep(0.5)

    async def remove_former(self) -> None:
        """Take the member that this machine was before ``gpupool rejoin`` out of the pool."""
        former, me = self._identity.former, self._identity.server
        if former is None:
            return
        while former not in self._machine.state.removed:
            if me in self._machine.state.servers:
                by = f"{self._identity.name}, by gpupool rejoin"
                await self._commit(RemoveServer(former, by))
                if me in self._machine.state.servers and former not in self._machine.state.servers:
                    break
            await trio.sleep(0.5)
        self._state.forget_former()

    async def stop_when_removed(self, links: PeerTransport, storage: Storage) -> None:
        """End this server once it is no longer in the pool; its workers end with it.

        That is written down: with its old directory it must not form a pool with others like it.

        Raises:
            GpupoolError: then.
        """
        me = self._identity.server
        # Removal is for good and peers are authenticated, so the word of one is enough: a server
        # that was away cannot read the table any more.
        await _until(lambda: me in self._machine.state.removed or bool(links.removed_by), 0.5)
        what = f"{self._identity.name} was removed from pool {self._identity.pool}"
        storage.forget(what)
        raise GpupoolError(
            what,
            hint='to come back: "gpupool rejoin" with a token of "gpupool token create --server"',
        )

    async def wind_down(
        self, replicated_log: RaftDriver, host: HostSupervisor, drain_timeout_s: float
    ) -> None:
        """Let programs end, then end their leases, then let another server lead."""
        me = self._identity.server
        if self._held_here():
            await self._commit(DrainServer(me, STOPPING, "the server itself"))
            count = len(self._held_here())
            self._log.info("%d leases are held here; they have %.0f s", count, drain_timeout_s)
            with trio.move_on_after(drain_timeout_s):
                await _until(lambda: not self._held_here())
            for lease in self._held_here():
                self._log.warning("lease %04x is ended: the server stops", lease)
                await self._commit(EndLease(lease, "the server stops"))
            with trio.move_on_after(LAST_COMMANDS_S):
                workers = host.worker_pool.count_by_lease
                await _until(lambda: not self._held_here() and not workers())
        if len(self._machine.state.voters()) > 1:
            await replicated_log.hand_over(timeout_s=HAND_OVER_S)


async def _until(done: Callable[[], bool], every_s: float = WORKER_POLL_S) -> None:
    """Wait until the table and the workers, which share no event, look as they should."""
    while not done():  # noqa: ASYNC110
        await trio.sleep(every_s)
