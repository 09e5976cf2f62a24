"""Comparison of the tables: every server hashes what it applied, and tells its peers.

Raft gives all servers the same commands. A fault of one machine, or a build that applies a command
in another way, makes its table another one all the same, and grants then rest on two truths. So
each server hashes index, command and result of each ``compare_entries`` entries of the log, from
and to indexes that are the same everywhere, and sends the hash to all that it is connected to. A
server that has not applied a run from its beginning, since it started or got a snapshot meanwhile,
skips that run.

    this server differs from a majority of the voters    it stops: ``DivergedError``
    another one differs from a majority                  it is named in the health, and in the log
    voters differ, and none of them is a majority        each of them says so

A peer of an older build drops the message, since its kind is unknown there.
"""

import hashlib
import logging
from collections import Counter

from gpupool.consensus.core.library import NEVER
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import Plain, ServerId

RUNS_KEPT = 4
"""Runs that are compared at a time: a slow server's hash may come this much later."""

HASH_BYTES = 16

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

    def __init__(self, index: int) -> None:
        super().__init__(
            "this server's table differs from that of a majority of the pool's servers",
            why=f"of the entries of the log up to {index}, they have applied one in another way",
            hint="its memory, its disk or its gpupool is faulty: check these, then let it join "
            "anew with an empty --state-dir (gpupool rejoin), or restore the pool from a backup",
        )


class TableComparison:
    """One server's hashes and those that it was told."""

    def __init__(self, context: NodeContext) -> None:
        """Begin with the run after what is applied already."""
        self._context = context
        self._every = context.settings.compare_entries
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES)
        self._hashes: dict[int, dict[ServerId, bytes]] = {}  # by the index behind the run
        self._differing: dict[ServerId, int] = {}  # up to which entry, as far as is known
        self._leaving: int | None = None
        self._leave_at = NEVER
        self._changed = False
        self.begin(context.core.applied_index)

    @property
    def differing(self) -> tuple[ServerId, ...]:
        """The servers of the pool whose table differs, or of which one does."""
        context = self._context
        known = {context.server_id, *context.servers, *context.core.voters}
        return tuple(sorted(known & self._differing.keys()))

    @property
    def is_leaving(self) -> bool:
        """True once this server is known to differ: it serves nobody, and ends soon."""
        return self._leaving is not None

    def due_at(self) -> float:
        """Return the instant at which ``judge`` ends this server."""
        return NEVER if self._leaving is None else self._leave_at

    def begin(self, applied_index: int) -> None:
        """Skip the run that ``applied_index`` is in: its beginning was applied elsewhere."""
        self._run = applied_index // self._every + 1
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES)

    def applied(self, index: int, command: bytes, result: Plain) -> None:
        """Take one entry; tell the peers once a run is complete."""
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
        """Take the hash of a peer."""
        if len(message["hash"]) == HASH_BYTES and message["index"] % self._every == 0:
            self._note(message["index"], peer, message["hash"])

    def judge(self) -> None:
        """Compare what is new.

        Raises:
            DivergedError: ``LEAVE_S`` after this server was found to differ, so that the others
                have got its hash.
        """
        if self._leaving is not None and self._context.now >= self._leave_at:
            raise DivergedError(self._leaving)
        if self._changed:
            self._changed = False
            for index, hashes in self._hashes.items():
                self._judge(index, hashes)

    def _complete(self, index: int) -> None:
        digest = self._hash.digest()
        self._note(index, self._context.server_id, digest)
        message: Message = {"type": "table_hash", "index": index, "hash": digest}
        for peer in sorted(self._context.frames.connected()):
            self._context.frames.send(peer, message)

    def _note(self, index: int, server: ServerId, digest: bytes) -> None:
        newest = max(self._hashes, default=0)
        known = self._context.core.commit_index + RUNS_KEPT * self._every
        if newest - index >= RUNS_KEPT * self._every or index > known:
            return
        self._hashes.setdefault(index, {})[server] = digest
        self._changed = True
        for old in sorted(self._hashes)[:-RUNS_KEPT]:
            del self._hashes[old]

    def _judge(self, index: int, hashes: dict[ServerId, bytes]) -> None:
        context = self._context
        voters = [voter for voter in context.core.voters if voter in hashes]
        if not voters or len({*hashes.values()}) == 1:
            return
        digest, count = Counter(hashes[voter] for voter in voters).most_common(1)[0]
        others = {server for server, its in hashes.items() if its != digest}
        if count > len(context.core.voters) // 2:
            if context.server_id in others and self._leaving is None:
                self._leaving, self._leave_at = index, context.now + LEAVE_S
            self._differ(index, others, "another table than a majority of the voters has")
        elif len(voters) == len(context.core.voters):
            self._differ(index, set(voters), "not one table, and no majority has the same")

    def _differ(self, index: int, servers: set[ServerId], what: str) -> None:
        if not servers <= self._differing.keys():
            _log.error(
                "server %s: %s, of entries up to %d", ", ".join(sorted(servers)), what, index
            )
        for server in servers:
            self._differing[server] = max(index, self._differing.get(server, 0))
