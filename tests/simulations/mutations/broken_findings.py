"""Faults that fresh seeds found in November 2026, put back: the seed that found one catches it.

They are rare, so a search of a few seeds does not meet them. When these seeds ran, no server said
that it has the CA's key, and for most here none does: each command more moves all that follows.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.simulations.mutations.mutation import Broken, Mutation
from tests.simulations.mutations.patching import patched

from gpupool.consensus.promises import Promises
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.snapshot_transfer import SnapshotTransfer
from gpupool.consensus.storage.superblock import Floor, Superblock
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.server.reconciler import Reconciler
from gpupool.simulations.kernel.swarm_options import Options, swarm


def _as_drawn(options: Options) -> Options:
    """Return the run that found it, with all kinds of faults."""
    return swarm(options.seed)


def _unsaid(*_: object) -> bool:
    return False


@contextmanager
def _as_then(broken: Broken) -> Generator[None]:
    """Put a fault back into the servers of that time."""
    with patched(Reconciler, "_says_keys", _unsaid), broken():
        yield


def _finding(name: str, checker: str, rule: str, broken: Broken) -> Mutation:
    return Mutation(name, checker, rule, partial(_as_then, broken), tune=_as_drawn)


@contextmanager
def one_snapshot_at_a_time() -> Generator[None]:
    """Keep the pieces of one snapshot, whoever sends them."""
    of = SnapshotTransfer._received_of  # pyright: ignore[reportPrivateUsage]

    def broken(self: Any, peer: ServerId, index: int, total: int) -> Any:
        receiving = of(self, peer, index, total)
        self._receiving = {peer: receiving}
        return receiving

    with patched(SnapshotTransfer, "_received_of", broken):
        yield


@contextmanager
def repair_ends_by_an_index() -> Generator[None]:
    """Let a repair end where the newest of what others remember ends; some know no entry."""

    def lose(self: Any, floor: Floor) -> None:
        known = self.floor or floor
        lost(self, max(known, floor, key=lambda each: (each.term, each.index)))
        self.floor = max(known, floor, key=lambda each: (each.term, each.index))

    def broken(self: Any, message: Message) -> None:
        floor, core = self._superblock.floor, self._context.core
        if floor is None or message["term"] != core.term:
            return
        match, commit, term = core.matched_index, message["commit_index"], core.term
        whole = term >= floor.term and match >= floor.index > 0
        later = term > floor.term and commit <= match
        if whole or (later and self._context.storage.journal.term_at(commit) == term):
            self._repaired = True

    lost = Superblock.lose
    with patched(Superblock, "lose", lose), patched(Promises, "_check_repair", broken):
        yield


FINDINGS = (
    _finding(
        "one-snapshot-at-a-time",
        "converges",
        "a server keeps the pieces of one snapshot, whoever sends them",
        one_snapshot_at_a_time,
    ),
)
"""Broken builds of single seeds."""
