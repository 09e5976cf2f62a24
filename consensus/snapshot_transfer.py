"""Snapshots of one node: taken of its table, sent to peers, and received from them.

A peer whose next entries are gone here gets the newest snapshot in pieces: the next piece leaves
when the one before is acknowledged, and again after ``chunk_retry_s`` without an answer. The
receiver keeps pieces in order only, and installs the snapshot once it is complete and intact.

Two kinds of sender use it. A leader sends to a voter (``leading``), and learns from the answer
that the voter has the log up to there. Any other voter answers a pull with it, and the receiver
goes on pulling afterwards. A server that does not know yet that it has a vote gets both at once. It
keeps the pieces of both, else each would begin the other anew, for ever (seed 10003254).

A snapshot for which the disk has no room is not taken, and one of a peer is written again when its
last piece comes again.

What is never true: that a snapshot is installed over entries that are committed here beyond it;
that a piece counts for another snapshot than the one it was cut from.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.storage.snapshot import (
    Snapshot,
    SnapshotReceiver,
    SnapshotSender,
    SnapshotStore,
    decode_in_pieces,
    decode_snapshot,
    encode_in_pieces,
    encode_snapshot,
)
from gpupool.pool.errors import NoRoomError
from gpupool.pool.model.codec import CodecError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import SlicedStateMachine, StateMachine

if TYPE_CHECKING:
    from gpupool.consensus.followers import Puller

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Work:
    """Something that takes too long for the loop.

    ``steps`` may run on another thread, and pauses after a millisecond or so each time; it touches
    nothing that a node changes. ``finish`` is called once they are through, as an event of the
    node. One work at a time is under way.
    """

    steps: Iterator[None]
    finish: Callable[[], None]


RunWork = Callable[[Work], None]


def run_at_once(work: Work) -> None:
    """Run a work here and now."""
    for _ in work.steps:
        pass
    work.finish()


class SnapshotTransfer:
    """The snapshots of one node; stepped by ``RaftNode`` only."""

    def __init__(
        self, context: NodeContext, machine: StateMachine, puller: "Puller", run_work: RunWork
    ) -> None:
        """Begin with the storage's newest snapshot, which ``machine`` has been restored from."""
        self._context = context
        self._machine = machine
        self._puller = puller
        self._run_work = run_work
        latest = context.storage.snapshots.latest
        self._index = latest.index if latest else 1
        self._log_mark = context.storage.journal.bytes_since_rewrite
        self._senders: dict[ServerId, SnapshotSender] = {}
        self._receiving: dict[ServerId, SnapshotReceiver] = {}
        self._works = False
        self._installs = False

    # --- of this server's own table ----------------------------------------------------------

    def take_if_due(self) -> None:
        """Take a snapshot once enough was applied or written since the last one."""
        if self._works or not self._is_due():
            return
        context = self._context
        core, journal, snapshots = context.core, context.storage.journal, context.storage.snapshots
        index = core.applied_index
        term = journal.term_at(index)
        assert term is not None, "what is applied is in the log"
        snapshot = Snapshot(index, term, core.configurations.at(index).voters, None)
        encoding = _encoding(snapshot, self._machine)
        data = b""

        def steps() -> Iterator[None]:
            nonlocal data
            encoded = yield from encoding
            if _written(snapshots, index, encoded):
                data = encoded

        def finish() -> None:
            self._works = False
            if not data:
                return  # the next one is due after as many entries
            snapshots.saved(snapshot, data)
            settings = context.settings
            context.storage.taken(
                drop_entries_min=settings.snapshots_per_rewrite * settings.snapshot_entries,
                drop_bytes_min=settings.snapshots_per_rewrite * settings.snapshot_log_bytes,
            )

        self._works = True
        self._index = index
        self._log_mark = journal.bytes_since_rewrite
        self._run_work(Work(steps(), finish))

    def _is_due(self) -> bool:
        """Return whether a snapshot is to be taken: each server at its own time.

        The voters all apply the same entries, and would all be slower at the same moment.
        """
        context, settings = self._context, self._context.settings
        entries = context.core.applied_index - self._index
        every = settings.snapshot_entries
        soonest = self._index + (every + 1) // 2
        written = context.storage.journal.bytes_since_rewrite - self._log_mark
        is_early = context.core.applied_index < soonest and written < settings.snapshot_log_bytes
        if entries <= 0 or is_early:
            return False
        turn = self._turn()
        if written >= settings.snapshot_log_bytes * (1 + turn / 2):
            return True
        return context.core.applied_index >= soonest + (int(turn * every) + 1 - soonest) % every

    def _turn(self) -> float:
        """Return when this server's turn is among all that take snapshots: 0 to 1."""
        voters, me = self._context.core.voters, self._context.server_id
        if me in voters:
            return sorted(voters).index(me) / len(voters)
        return crc32(me.encode()) / 2**32

    # --- to a peer ---------------------------------------------------------------------------

    def send(self, peer: ServerId, *, leading: bool) -> None:
        """Send the next piece of the newest snapshot, if the last one is answered or lost."""
        context, snapshots = self._context, self._context.storage.snapshots
        sender = self._senders.get(peer)
        if sender is not None and sender.index < context.storage.journal.base_index:
            sender = None  # The entries behind that snapshot are gone by now.
        if sender is None or (sender.sent_at is None and sender.offset == sender.total):
            if snapshots.latest is None:
                _log.error("%s needs a snapshot, and there is none", peer)
                return
            sender = SnapshotSender(snapshots.latest, snapshots.encoded_latest())
            self._senders[peer] = sender
        recently = context.now - context.settings.chunk_retry_s
        if sender.sent_at is not None and sender.sent_at > recently:
            return
        message: Message = {
            "type": "snapshot",
            "term": context.core.term,
            "leading": leading,
            "index": sender.index,
            "total": sender.total,
            "offset": sender.offset,
            "data": sender.piece(context.now),
        }
        context.frames.send(peer, message)

    def on_snapshot_ack(self, peer: ServerId, message: Message) -> None:
        """Send the piece after the one that arrived."""
        core = self._context.core
        sender = self._senders.get(peer)
        if sender is not None and sender.acknowledged(message["index"], message["received"]):
            self.send(peer, leading=core.state == LEADER and peer in core.voters)

    def not_needed_by(self, peer: ServerId) -> None:
        """Stop sending to a voter that has the leader's log."""
        self._senders.pop(peer, None)

    # --- from a peer -------------------------------------------------------------------------

    def on_snapshot(self, peer: ServerId, message: Message) -> None:
        """Take one piece; install the snapshot when it is the last one.

        Raises:
            StorageError: when a snapshot that is complete cannot be stored.
        """
        context, leading, index = self._context, message["leading"], message["index"]
        core = context.core
        if leading and not core.follow(peer, message):
            return
        if not leading and message["offset"] == 0:
            self._puller.answered(peer)
        if not leading and not self._puller.takes_from(peer):
            return
        self._puller.snapshot_piece_arrived()
        if self._installs:
            return
        if index <= core.commit_index:
            self._receiving.pop(peer, None)
            self._have_all_up_to(peer, index, leading=leading)
            return
        receiving = self._received_of(peer, index, message["total"])
        receiving.add(message["offset"], message["data"])
        data = receiving.complete()
        if data is None:
            self._ask_on(receiving)
        elif not self._works:  # else the last piece comes again
            self._install(receiving, data, leading=leading)

    def _received_of(self, peer: ServerId, index: int, total: int) -> SnapshotReceiver:
        """Return a peer's snapshot receiver; drop those of peers that are no leader or source."""
        core, puller = self._context.core, self._puller
        receiving = self._receiving.get(peer)
        if receiving is None or (index, total) != (receiving.index, receiving.total):
            receiving = SnapshotReceiver(peer, index, total)
        senders = [p for p in self._receiving if p == core.leader or puller.takes_from(p)]
        self._receiving = {p: self._receiving[p] for p in senders} | {peer: receiving}
        return receiving

    def _ask_on(self, receiving: SnapshotReceiver) -> None:
        answer: Message = {
            "type": "snapshot_ack",
            "term": self._context.core.term,
            "index": receiving.index,
            "received": receiving.received,
        }
        self._context.frames.send(receiving.peer, answer)

    def disconnected(self, peer: ServerId) -> None:
        """Drop both directions of a snapshot transfer over a closed connection."""
        self._senders.pop(peer, None)
        self._receiving.pop(peer, None)

    def _have_all_up_to(self, peer: ServerId, index: int, *, leading: bool) -> None:
        if leading:
            self._context.core.acknowledge_snapshot(peer, index)
        else:
            self._puller.pull(peer)

    def _install(self, receiving: SnapshotReceiver, data: bytes, *, leading: bool) -> None:
        """Install a snapshot that is all here, once it is decoded and written."""
        peer, index = receiving.peer, receiving.index
        storage, machine = self._context.storage, self._machine
        decoded: tuple[Snapshot, Callable[[], None]] | None = None
        written = True

        def steps() -> Iterator[None]:
            nonlocal decoded, written
            try:
                decoded = yield from _decoding(data, machine)
            except CodecError:
                raise
            except ValueError as error:
                _log.warning("a snapshot from %s is damaged, and asked for again: %s", peer, error)
                return
            if decoded[0].index == index:
                written = _written(storage.snapshots, index, data)

        def finish() -> None:
            self._works = self._installs = False
            if not written:
                return
            self._receiving.pop(peer, None)
            if decoded is None or decoded[0].index != index:
                self._ask_on(self._received_of(peer, index, receiving.total))
                return
            snapshot, restore = decoded
            if index <= self._context.core.commit_index:
                storage.snapshots.saved(snapshot, data)  # entries were quicker
            else:
                storage.installed(snapshot, data)
                restore()
                self._context.core.installed(index, snapshot.voters)
                self._index = index
                self._log_mark = storage.journal.bytes_since_rewrite
            self._have_all_up_to(peer, index, leading=leading)

        self._works = self._installs = True
        self._run_work(Work(steps(), finish))


def _written(snapshots: SnapshotStore, index: int, data: bytes) -> bool:
    try:
        snapshots.write(index, data)
    except NoRoomError as error:
        _log.warning("%s: %s", error.what, error.why)
        return False
    return True


def _encoding(snapshot: Snapshot, machine: StateMachine) -> Generator[None, None, bytes]:
    """Return the steps that encode the state of this moment."""
    if isinstance(machine, SlicedStateMachine):
        fields = machine.snapshot_fields()
        return encode_in_pieces(snapshot.index, snapshot.term, snapshot.voters, fields)
    return _encoding_whole(replace(snapshot, state=machine.snapshot()))


def _encoding_whole(snapshot: Snapshot) -> Generator[None, None, bytes]:
    yield
    return encode_snapshot(snapshot)


def _decoding(
    data: bytes, machine: StateMachine
) -> Generator[None, None, tuple[Snapshot, Callable[[], None]]]:
    """Return a snapshot without its state, and a function that restores the state."""
    if isinstance(machine, SlicedStateMachine):
        snapshot, state = yield from decode_in_pieces(data, machine.restoring())
        return snapshot, partial(machine.adopt, state)
    yield
    snapshot = decode_snapshot(data)
    return snapshot, partial(machine.restore, snapshot.state)
