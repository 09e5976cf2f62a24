"""Comparison of the tables: every server hashes its applied entries, and tells its peers.

Raft gives all servers the same commands. A fault of one machine, or a build that applies a command
in another way, makes its table another one all the same, and grants then rest on two truths. So
each server hashes index, command and result of each ``compare_entries`` entries of the log, from
and to indexes that are the same everywhere, and sends the hash to all that it is connected to. A
server that has not applied a run from its beginning, since it started or got a snapshot meanwhile,
skips that run.

What flipped in memory shows in results only once a command depends on it. So servers hash their
whole tables too, after the same commands, which the table itself names (``HashedStateMachine``). A
table of that moment is kept, which costs nothing, since later commands make new ones; it is read a
piece at a time, whenever the server gets round to it.

    this server differs from a majority of the voters    it stops: ``DivergedError``
    another one differs from a majority                  it is named in the health, and in the log
    voters differ, and none of them is a majority        each of them says so

A peer of an older build drops the message, since its kind is unknown there.
"""

import hashlib
import logging

from gpupool.consensus.core.library import NEVER
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import HashedStateMachine, Hashing, StateMachine

RUNS_KEPT = 4
"""Runs that are compared at a time: a slow server's hash may come this much later. The same number
of whole tables."""

HASH_BYTES = 16

PIECE_PAUSE_S = 0.02
"""Between two pieces of a whole table, each of 0.1 to 0.2 ms: one percent of a core."""

_RESULTS = 0
"""The shape of the hashes of runs, which are no tables."""

LEAVE_S = 0.2
"""From a server's finding that it differs to its end; it serves nobody meanwhile."""

_log = logging.getLogger(__name__)


class ApplyError(GpupoolError):
    """A committed command could not be carried out here; the server stops.

    Its table would differ from those of the others otherwise.
    """

    code = "apply-failed"

    def __init__(self, index: int, error: BaseException) -> None:
        text = f": {error}" if str(error) else ""
        super().__init__(
            f"entry {index} of the pool's log could not be applied",
            why=f"{type(error).__name__}{text}",
            hint="nothing is lost: start the server again, with more memory if that was short; if "
            "it happens again, or on every server, it is a bug of gpupool: install a newer version",
        )


class DivergedError(GpupoolError):
    """The table here is another one than that of most voters; the server stops."""

    code = "table-diverged"

    def __init__(self, index: int, *, whole: bool = False) -> None:
        rows = f"after entry {index} of the log, rows of it were not the same as theirs"
        results = f"of the entries of the log up to {index}, they have applied one in another way"
        super().__init__(
            "this server's table differs from that of a majority of the pool's servers",
            why=rows if whole else results,
            hint="its memory, its disk or its gpupool is faulty: check these, then let it join "
            "anew with an empty --state-dir (gpupool rejoin), or restore the pool from a backup",
        )


class TableComparison:
    """One server's hashes and those that it was told."""

    def __init__(self, context: NodeContext, machine: StateMachine) -> None:
        """Begin with the run after the applied entries."""
        self._context = context
        self._machine = machine if isinstance(machine, HashedStateMachine) else None
        self._every = context.settings.compare_entries
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES)
        self._hashes: dict[tuple[int, int], dict[ServerId, bytes]] = {}  # by shape and index
        self._differing: dict[ServerId, int] = {}  # up to which entry, as far as is known
        self._same: dict[ServerId, int] = {}  # after which entry a whole table was the majority's
        self._leaving: DivergedError | None = None
        self._leave_at = NEVER
        self._changed: set[tuple[int, int]] = set()  # of ``_hashes``, since the last judgement
        self._hashing: tuple[int, Hashing] | None = None  # after which entry
        self._piece_at = NEVER
        self._mark = 0
        self._shape = _RESULTS if self._machine is None else self._machine.hashing().shape
        self.begin(context.core.applied_index)

    @property
    def differing(self) -> tuple[ServerId, ...]:
        """Servers of the pool with a differing table; all voters if no majority agrees."""
        context = self._context
        known = {context.server_id, *context.servers, *context.core.voters}
        return tuple(sorted(known & self._differing.keys()))

    @property
    def is_leaving(self) -> bool:
        """True once this server is known to differ: it serves nobody, and ends soon."""
        return self._leaving is not None

    def due_at(self) -> float:
        """Return the instant at which ``judge`` has something to do."""
        return min(self._leave_at, self._piece_at)

    def begin(self, applied_index: int) -> None:
        """Skip the run that ``applied_index`` is in: its beginning was applied elsewhere."""
        self._run = applied_index // self._every + 1
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES)
        if self._machine is not None:
            self._mark = self._machine.hash_mark()

    def applied(self, index: int, command: bytes, result: Plain) -> None:
        """Take one entry; tell the peers once a run is complete."""
        self._look_for_mark(index)
        run = index // self._every
        if run < self._run:
            return
        if run > self._run:
            self._complete(self._run * self._every + self._every)
            self._run, self._hash = run, hashlib.blake2b(digest_size=HASH_BYTES)
        outcome = closed_cbor.encode(result)
        for part in (index.to_bytes(8, "little"), command, outcome):
            self._hash.update(len(part).to_bytes(4, "little") + part)

    def on_table_hash(self, peer: ServerId, message: Message) -> None:
        """Take the hash of a run of a peer."""
        if message["index"] % self._every == 0:
            self._note(_RESULTS, message["index"], peer, message["hash"])

    def on_whole_hash(self, peer: ServerId, message: Message) -> None:
        """Take the hash of a whole table of a peer."""
        if message["shape"] == self._shape != _RESULTS:
            self._note(self._shape, message["index"], peer, message["hash"])

    def judge(self) -> None:
        """Hash a piece if it is time, and compare new hashes.

        Raises:
            DivergedError: ``LEAVE_S`` after this server was found to differ, so that the others
                have got its hash.
        """
        if self._leaving is not None and self._context.now >= self._leave_at:
            raise self._leaving
        if self._context.now >= self._piece_at:
            self._hash_piece()
        while self._changed:
            shape, index = key = min(self._changed)
            self._changed.remove(key)
            if key in self._hashes:
                self._judge(shape, index, self._hashes[key])

    def _complete(self, index: int) -> None:
        digest = self._hash.digest()
        self._note(_RESULTS, index, self._context.server_id, digest)
        self._tell({"type": "table_hash", "index": index, "hash": digest})

    def _look_for_mark(self, index: int) -> None:
        """Begin to hash the table after entry ``index``, if all servers do."""
        machine = self._machine
        if machine is not None and (mark := machine.hash_mark()) != self._mark:
            self._mark = mark
            # One that is under way is too old by now: a server that lags applies many at once.
            self._hashing = (index, machine.hashing())
            self._piece_at = self._context.now

    def _hash_piece(self) -> None:
        assert self._hashing is not None, "a piece is due"
        index, hashing = self._hashing
        self._piece_at = self._context.now + PIECE_PAUSE_S
        if (digest := hashing.step()) is not None:
            self._hashing, self._piece_at = None, NEVER
            self._note(hashing.shape, index, self._context.server_id, digest)
            said = {"type": "whole_hash", "index": index, "shape": hashing.shape}
            self._tell({**said, "hash": digest})

    def _tell(self, message: Message) -> None:
        for peer in sorted(self._context.frames.connected()):
            self._context.frames.send(peer, message)

    def _note(self, shape: int, index: int, server: ServerId, digest: bytes) -> None:
        known = self._context.core.commit_index + RUNS_KEPT * self._every
        kept = sorted(each for each in self._hashes if each[0] == shape)[-RUNS_KEPT:]
        too_old = len(kept) == RUNS_KEPT and (shape, index) < kept[0]
        if len(digest) != HASH_BYTES or too_old or index > known:
            return
        self._hashes.setdefault((shape, index), {})[server] = digest
        self._changed.add((shape, index))
        for old in sorted(each for each in self._hashes if each[0] == shape)[:-RUNS_KEPT]:
            del self._hashes[old]

    def _judge(self, shape: int, index: int, hashes: dict[ServerId, bytes]) -> None:
        context = self._context
        voters = [voter for voter in context.core.voters if voter in hashes]
        if not voters:
            return
        digests = [hashes[voter] for voter in voters]
        digest = max(digests, key=digests.count)
        others = {server for server, its in hashes.items() if its != digest}
        if digests.count(digest) > len(context.core.voters) // 2:
            if shape != _RESULTS:
                self._are_same(index, hashes.keys() - others)
            others = {server for server in others if self._same.get(server, 0) < index}
            if context.server_id in others and self._leaving is None:
                self._leaving = DivergedError(index, whole=shape != _RESULTS)
                self._leave_at = context.now + LEAVE_S
            self._differ(index, others, "another table than a majority of the voters has")
        elif len(voters) == len(context.core.voters):
            self._differ(index, set(voters), "not one table, and no majority has the same")

    def _are_same(self, index: int, servers: set[ServerId]) -> None:
        """Take note of whole tables that are right: a server may have started again since."""
        for server in servers:
            self._same[server] = max(index, self._same.get(server, 0))
            if self._differing.get(server, index + 1) <= index:
                del self._differing[server]

    def _differ(self, index: int, servers: set[ServerId], what: str) -> None:
        if servers and not servers <= self._differing.keys():
            _log.error(
                "server %s: %s, of entries up to %d", ", ".join(sorted(servers)), what, index
            )
        for server in servers:
            self._differing[server] = max(index, self._differing.get(server, 0))
