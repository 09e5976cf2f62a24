"""Each safeguard taken away in turn: the seeds of faults must notice, or they prove nothing."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from test_cluster_under_faults import run_seed

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.core.raft_log import RaftLog, Stored
from gpupool.consensus.protocol.raft_messages import FrameReader
from gpupool.consensus.storage.journal import Entry, Journal
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

Patch = Callable[[pytest.MonkeyPatch], None]


def no_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: SimulatedDisk, name: str) -> None:
        return

    patch.setattr(SimulatedDisk, "sync", sync)


def votes_forgotten(patch: pytest.MonkeyPatch) -> None:
    def set_vote(self: Journal, term: int, vote: str | None) -> None:
        self.term, self.vote = term, vote

    patch.setattr(Journal, "set_vote", set_vote)


def unconditional_truncation(patch: pytest.MonkeyPatch) -> None:
    real = RaftLog.store

    def store(
        self: RaftLog, previous: int, term: int, entries: list[Entry], *, commit_index: int
    ) -> Stored:
        known = self.journal.term_at(previous)
        if known == term and previous < self.journal.last_index:
            self.journal.truncate(previous + 1)
        return real(self, previous, term, entries, commit_index=commit_index)

    patch.setattr(RaftLog, "store", store)


def old_frames_taken(patch: pytest.MonkeyPatch) -> None:
    def body(self: FrameReader, frame: bytes) -> bytes:
        return frame[17:]

    patch.setattr(FrameReader, "body", body)


def two_changes_at_once(patch: pytest.MonkeyPatch) -> None:
    def settled(self: RaftCore) -> bool:
        return self.state == LEADER

    patch.setattr(RaftCore, "settled", property(settled))


def covered_commands_called_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("gpupool.consensus.core.raft_core._COVERED", -2)
    real = RaftCore.installed

    def installed(self: RaftCore, index: int, voters: Any) -> None:
        waiting: Any = getattr(self, "_SyncObj__commandsWaitingCommit")  # noqa: B009
        for position in [p for p in waiting if p <= index]:
            for _, resolve in waiting.pop(position):
                resolve(None, 3)
        real(self, index, voters)

    patch.setattr(RaftCore, "installed", installed)


def own_log_counts_unsynced(patch: pytest.MonkeyPatch) -> None:
    def synced_index(self: RaftCore) -> int:
        return self._journal.last_index  # pyright: ignore[reportPrivateUsage]

    def ignore(_self: RaftCore, _index: int) -> None:
        return

    patch.setattr(RaftCore, "synced_index", property(synced_index, ignore), raising=False)


def everything_leaves_early(patch: pytest.MonkeyPatch) -> None:
    def may_leave_early(self: RaftCore, message: object) -> bool:
        return True

    patch.setattr(RaftCore, "may_leave_early", may_leave_early)


SAFEGUARDS: dict[str, tuple[Patch, str, Sequence[int]]] = {
    "sync before send": (no_sync, "power", range(3)),
    "own log counts once synced": (own_log_counts_unsynced, "one voter", range(5)),
    "promises wait for the sync": (everything_leaves_early, "slow disks", range(5)),
    "votes are kept": (votes_forgotten, "elections", range(3)),
    "truncate on conflict only": (unconditional_truncation, "hostile", range(3)),
    "drop old frames": (old_frames_taken, "hostile", range(3)),
    # Nine of forty seeds notice it.
    "one change of voters": (two_changes_at_once, "everything", range(40)),
    "covered is not refused": (covered_commands_called_refused, "everything", range(9)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", list(SAFEGUARDS))
def test_a_missing_safeguard_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, profile, seeds = SAFEGUARDS[name]
    patch(monkeypatch)
    logging.disable(logging.CRITICAL)
    try:
        for seed in seeds:
            try:
                run_seed(profile, seed)
            except Exception:  # noqa: BLE001 - whichever check notices first.
                return
    finally:
        logging.disable(logging.NOTSET)
    pytest.fail(f"{len(seeds)} seeds of {profile} did not notice")
