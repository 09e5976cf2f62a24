"""Broken builds: persisted votes, sizes, sends before the sync, answers of a cut-off server.

Each function returns a patch that is in force while it is entered; ``newer_builds`` names the
checker that must notice.
"""

# pyright: reportPrivateUsage=false
# A broken build replaces private functions.

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tests.simulations.mutations.patching import patched

from gpupool.consensus import persisted_votes, recovery
from gpupool.consensus.core.raft_log import RaftLog
from gpupool.consensus.peer_frames import PeerFrames
from gpupool.consensus.persisted_votes import PersistedVotes
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.storage.peer_memory import PeerMemory
from gpupool.consensus.storage.snapshot import SnapshotSender
from gpupool.consensus.storage.store import Storage
from gpupool.consensus.table_comparison import TableComparison
from gpupool.pool import table_clock
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.state import with_changes
from gpupool.remoting.server import lease_service, service_context
from gpupool.remoting.server.actions import Action
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.service_context import Client
from gpupool.simulations.cluster.watched_tables import WatchedMachine

INFINITE = float("inf")


@contextmanager
def _all(*patches: AbstractContextManager[None]) -> Generator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


# --- service --------------------------------------------------------------------------------------


def revoked_stays_connected() -> AbstractContextManager[None]:
    """Let servers keep the connections of a token that is revoked."""
    original = Controller._follow_client

    def follow_client(self: Controller, client: Client, members: Any) -> None:
        token = self.context.state.tokens.get(client.token)
        if token is None or not token.revoked_at:
            original(self, client, members)

    return patched(Controller, "_follow_client", follow_client)


def majority_not_required() -> AbstractContextManager[None]:
    """Let servers that are cut off go on offering GPUs and opening sessions."""
    return _all(
        patched(lease_service, "MAJORITY_FRESH_S", INFINITE),
        patched(service_context, "MAJORITY_FRESH_S", INFINITE),
    )


def hangs_up_on_clients() -> AbstractContextManager[None]:
    """Let servers close connections of clients, which ends the clients' leases."""
    original = Controller.poll
    polls: dict[Controller, int] = {}

    def poll(self: Controller) -> list[Action]:
        actions = original(self)
        polls[self] = polls.get(self, 0) + 1
        clients = self.context.clients.welcomed()
        if polls[self] % 40 == 0 and clients:
            client = clients[0]
            self.context.hang_up(client.connection, "there are too many")
            self._forget(client.connection)
            actions += self._take()
        return actions

    return patched(Controller, "poll", poll)


# --- sizes ----------------------------------------------------------------------------------------


def batches_without_bound() -> AbstractContextManager[None]:
    """Let a server send all that another one lacks in one message."""
    original = RaftLog.encoded

    def encoded(self: RaftLog, first: int, last: int, bytes_max: int) -> tuple[int, bytes]:
        return original(self, first, last, bytes_max and 1 << 40)

    return patched(RaftLog, "encoded", encoded)


def snapshot_in_one_piece() -> AbstractContextManager[None]:
    """Let a server send a whole snapshot in one message."""

    def piece(self: SnapshotSender, now: float) -> bytes:
        self.sent_at = now
        return self._data[self.offset :]

    return patched(SnapshotSender, "piece", piece)


# --- promises -------------------------------------------------------------------------------------


def clone_not_noticed() -> AbstractContextManager[None]:
    """Let servers welcome each start of a server, without regard to the starts heard of before."""

    def on_hello(self: PersistedVotes, peer: ServerId, message: Message) -> None:
        if message["repairing"]:
            self._help(peer)
        else:
            self._repairing.discard(peer)

    return patched(PersistedVotes, "on_hello", on_hello)


def no_probation() -> AbstractContextManager[None]:
    """Let a start count at once that takes the place of a connection that lives."""
    return patched(persisted_votes, "PROBATION_S", 0.0)


def refusal_ignored() -> AbstractContextManager[None]:
    """Let a server go on that the others refuse."""

    def on_refused(self: PersistedVotes, peer: ServerId, message: Message) -> None:
        del self, peer, message

    return patched(PersistedVotes, "on_refused", on_refused)


def original_refused() -> AbstractContextManager[None]:
    """Let servers take the former of two starts for the clone."""
    original = PersistedVotes.on_hello

    def on_hello(self: PersistedVotes, peer: ServerId, message: Message) -> None:
        newest = self._unproven.get(peer, self._memory.of(peer).start)
        if message["boot"] < newest.boot:
            self._refuse(peer, "its state directory is an old copy", message["boot"])
            return
        original(self, peer, message)

    return patched(PersistedVotes, "on_hello", on_hello)


def recover_fences_nobody() -> AbstractContextManager[None]:
    """Let the servers return that a recovered pool went on without."""

    def fence(self: PeerMemory, servers: Sequence[ServerId], why: str) -> None:
        del self, servers, why

    return patched(PeerMemory, "fence", fence)


def told_and_hung_up() -> AbstractContextManager[None]:
    """Let a server close the connection before the notice has left by it."""
    original = PersistedVotes._refuse

    def refuse(self: PersistedVotes, peer: ServerId, reason: str, boot: int) -> None:
        original(self, peer, reason, boot)
        if peer in self._memory.fenced:
            self._memory.fenced[peer] = True

    return patched(PersistedVotes, "_refuse", refuse)


def recover_drops_the_end() -> AbstractContextManager[None]:
    """Let the survivor go on without the newest entries of its log."""
    original = recovery.recover

    def recover(
        storage: Storage, server_id: ServerId, commands: Sequence[Plain], **options: Any
    ) -> None:
        journal = storage.journal
        journal.truncate(max(journal.base_index + 1, journal.last_index - 5))
        original(storage, server_id, commands, **options)

    return patched(recovery, "recover", recover)


# --- newer mechanisms -----------------------------------------------------------------------------


def latest_clock_believed() -> AbstractContextManager[None]:
    """Let the table's time follow the clock that is furthest ahead."""

    def majority_time(walls: Sequence[int], voter_count: int) -> int | None:
        return max(walls) if len(walls) >= voter_count // 2 + 1 else None

    return patched(table_clock, "majority_time", majority_time)


def row_flips_in_memory() -> AbstractContextManager[None]:
    """Let a bit of the second server's table flip, which nobody is told of."""
    original = WatchedMachine.apply

    def apply(self: WatchedMachine, index: int, command: Plain) -> Plain:
        result = original(self, index, command)
        if self._server == "s2" and index % 40 == 0:
            acts = self.state.acts
            first = replace(acts[0], text="flipped")
            self.state = with_changes(self.state, acts=(first, *acts[1:]))
        return result

    return patched(WatchedMachine, "apply", apply)


def whole_tables_not_compared() -> AbstractContextManager[None]:
    """Let servers pass over the hashes of each other's tables."""

    def on_whole_hash(self: TableComparison, peer: ServerId, message: Message) -> None:
        pass

    return patched(TableComparison, "on_whole_hash", on_whole_hash)


def acknowledges_before_sync() -> AbstractContextManager[None]:
    """Let all messages of a server leave while its disk works, votes and answers too."""
    original = PeerFrames.take_early

    def take_early(
        self: PeerFrames, may_leave: Callable[[Message], bool]
    ) -> list[tuple[ServerId, bytes]]:
        del may_leave
        return original(self, lambda _message: True)

    return patched(PeerFrames, "take_early", take_early)


def hash_not_begun_anew() -> AbstractContextManager[None]:
    """Let a server that got a snapshot hash the rest of a run as the whole of it."""
    original = TableComparison.begin

    def begin(self: TableComparison, applied_index: int) -> None:
        original(self, applied_index)
        self._run = applied_index // self._every

    return patched(TableComparison, "begin", begin)
