"""Broken builds of consensus, and one of a server that never becomes idle.

Each function returns a patch that is in force while it is entered; ``catalogue`` names the checker
that must notice.
"""

# pyright: reportPrivateUsage=false
# A broken build replaces private functions.

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.simulations.mutations.patching import patched

from gpupool.consensus.core.library import CANDIDATE, LEADER, NEVER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.core.raft_log import RaftLog, Stored
from gpupool.consensus.driver import DiskRoom
from gpupool.consensus.followers import PullResponder
from gpupool.consensus.protocol import membership
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.storage.journal import JOURNAL, JOURNAL_NEW, Entry, Journal
from gpupool.pool.errors import NoRoomError, StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Outcome, Unknown
from gpupool.remoting.server.actions import Action
from gpupool.remoting.server.controller import Controller
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk


def vote_not_persisted() -> AbstractContextManager[None]:
    """Let servers remember their votes in memory only."""

    def set_vote(self: Journal, term: int, vote: str | None) -> None:
        self.term, self.vote = term, vote

    return patched(Journal, "set_vote", set_vote)


def not_synced() -> AbstractContextManager[None]:
    """Let the journal be written, and never synced."""
    original = SimulatedDisk.sync

    def sync(self: SimulatedDisk, name: str) -> None:
        if name != JOURNAL:
            original(self, name)

    return patched(SimulatedDisk, "sync", sync)


def full_disk_ends() -> AbstractContextManager[None]:
    """Let a server end at a full disk, as at one that is broken."""

    def refused(_self: DiskRoom, error: NoRoomError) -> None:
        raise error

    return patched(DiskRoom, "refused", refused)


def votes_count_twice() -> AbstractContextManager[None]:
    """Let each vote count twice, in the round before the election as well."""
    original = RaftCore.library_receives
    original_prevote = RaftCore._on_response_prevote

    def library_receives(self: RaftCore, node: Any, message: Message) -> None:
        original(self, node, message)
        if message["type"] == "response_vote" and self.state == CANDIDATE:
            original(self, node, message)

    def on_response_prevote(self: RaftCore, node: Any, message: Message) -> None:
        original_prevote(self, node, message)
        asked = message["term"] == self._prevote_term == self.term + 1
        if asked and message["granted"] and 2 * len(self._prevotes) + 1 > len(self.voters) // 2:
            self._prevote_term, self._election_won = 0, True
            self._SyncObj__raftElectionDeadline = -NEVER

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(RaftCore, "library_receives", library_receives),
            patched(RaftCore, "_on_response_prevote", on_response_prevote),
        ):
            yield

    return broken()


def truncates_blindly() -> AbstractContextManager[None]:
    """Let followers cut their logs behind a leader's entries, conflict or not."""
    original = RaftLog.store

    def store(
        self: RaftLog,
        previous_index: int,
        previous_term: int,
        entries: list[Entry],
        *,
        commit_index: int,
    ) -> Stored:
        stored = original(self, previous_index, previous_term, entries, commit_index=commit_index)
        if stored.match is not None and self.journal.last_index > stored.match:
            self.journal.truncate(max(stored.match, self.journal.base_index) + 1)
        return stored

    return patched(RaftLog, "store", store)


def commits_alone() -> AbstractContextManager[None]:
    """Let leaders commit their entries, with or without a majority."""
    original = RaftCore.tick

    def tick(self: RaftCore) -> None:
        if self.state == LEADER:
            self.commit_to(self._journal.last_index)
        original(self)

    return patched(RaftCore, "tick", tick)


def votes_for_anybody() -> AbstractContextManager[None]:
    """Let voters vote for servers with logs that lack committed entries."""
    original = RaftCore._on_request_vote

    def may_vote_for(self: RaftCore, node: Any, message: Message) -> bool:
        del self, node, message
        return True

    def on_request_vote(self: RaftCore, node: Any, message: Message) -> None:
        newest = {"last_log_term": 1 << 30, "last_log_index": 1 << 30}
        original(self, node, message | newest)

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(RaftCore, "_may_vote_for", may_vote_for),
            patched(RaftCore, "_on_request_vote", on_request_vote),
        ):
            yield

    return broken()


def torn_tail_refused() -> AbstractContextManager[None]:
    """Let a journal with its last batch torn by a crash pass for damaged."""

    def check_torn(self: Journal, data: bytes, offset: int, end: int) -> None:
        del self, data, end
        raise StorageError(f"the journal is damaged at byte {offset}")

    return patched(Journal, "_check_torn", check_torn)


def nobody_gets_a_vote() -> AbstractContextManager[None]:
    """Let the first server remain the only voter."""

    def next_step(*_arguments: object, **_options: object) -> None:
        return None

    return patched(membership, "next_step", next_step)


def unknown_outcome_crashes() -> AbstractContextManager[None]:
    """Let servers end when nobody can say whether a command was committed."""
    original = Controller.decided

    def decided(self: Controller, number: int, outcome: Outcome) -> list[Action]:
        if isinstance(outcome, Unknown):
            raise KeyError(number)
        return original(self, number, outcome)

    return patched(Controller, "decided", decided)


def never_rests() -> AbstractContextManager[None]:
    """Let servers look again and again at once."""

    def wake_at(self: Controller) -> float:
        del self
        return 0.0

    return patched(Controller, "wake_at", wake_at)


def commits_old_terms() -> AbstractContextManager[None]:
    """Let leaders count the copies of entries of earlier terms, as in figure 8 of the paper."""
    original = RaftCore.tick

    def tick(self: RaftCore) -> None:
        if self.state == LEADER:
            self.commit_to(max(self.commit_index, self._durable_on_majority()))
        original(self)

    return patched(RaftCore, "tick", tick)


def commits_one_ahead() -> AbstractContextManager[None]:
    original = RaftCore.tick

    def tick(self: RaftCore) -> None:
        original(self)
        if self.state == LEADER and self.commit_index < self._journal.last_index:
            self.commit_to(self.commit_index + 1)

    return patched(RaftCore, "tick", tick)


def pull_gives_uncommitted() -> AbstractContextManager[None]:
    original = PullResponder._answer_one

    def answer_one(self: PullResponder, peer: ServerId, next_index: int) -> None:
        core: Any = self._context.core
        committed = core._SyncObj__raftCommitIndex
        core._SyncObj__raftCommitIndex = self._context.storage.journal.last_index
        try:
            original(self, peer, next_index)
        finally:
            core._SyncObj__raftCommitIndex = committed

    return patched(PullResponder, "_answer_one", answer_one)


def vote_lost_term_kept() -> AbstractContextManager[None]:
    original = Journal._recover

    def recover(self: Journal, data: bytes) -> None:
        original(self, data)
        self.vote = None

    return patched(Journal, "_recover", recover)


def directory_not_synced() -> AbstractContextManager[None]:
    def sync_directory(self: SimulatedDisk) -> None:
        del self

    return patched(SimulatedDisk, "sync_directory", sync_directory)


def new_journal_not_synced() -> AbstractContextManager[None]:
    original = SimulatedDisk.sync

    def sync(self: SimulatedDisk, name: str) -> None:
        if name != JOURNAL_NEW:
            original(self, name)

    return patched(SimulatedDisk, "sync", sync)
