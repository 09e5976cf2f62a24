"""Snapshots of one node: taken of its own table, sent to peers, and received from them.

A peer whose next entries are gone here gets the newest snapshot in pieces: the next piece leaves
when the one before is acknowledged, and again after ``chunk_retry_s`` without an answer. The
receiver keeps pieces in order only, and installs the snapshot once it is complete and intact.

Two kinds of sender use it. A leader sends to a voter (``leading``), and learns from the answer
that the voter has the log up to there. Any other voter answers a pull with it, and the receiver
goes on pulling afterwards.

What is never true: that a snapshot is installed over entries that are committed here beyond it;
that a piece counts for another snapshot than the one it was cut from.
"""

import logging
from typing import Protocol

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.storage.snapshot import Snapshot, SnapshotReceiver, SnapshotSender
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import StateMachine

_log = logging.getLogger(__name__)


class PullingEnd(Protocol):
    """What is needed of ``followers.Puller``."""

    def takes_from(self, peer: ServerId) -> bool:
        """Tell whether an answer of ``peer`` is waited for."""
        ...

    def snapshot_piece_arrived(self) -> None:
        """Give the source time for the next piece."""
        ...

    def pull(self, peer: ServerId) -> None:
        """Ask ``peer`` for what is behind this server's commit index."""
        ...


class SnapshotTransfer:
    """The snapshots of one node; stepped by ``RaftNode`` only."""

    def __init__(self, context: NodeContext, machine: StateMachine, puller: PullingEnd) -> None:
        """Begin with the storage's newest snapshot, which ``machine`` has been restored from."""
        self._context = context
        self._machine = machine
        self._puller = puller
        latest = context.storage.snapshots.latest
        self._index = latest.index if latest else 1
        self._log_mark = context.storage.journal.bytes_since_rewrite
        self._senders: dict[ServerId, SnapshotSender] = {}
        self._receiving: SnapshotReceiver | None = None

    # --- of this server's own table ----------------------------------------------------------

    def take_if_due(self) -> None:
        """Take a snapshot once enough was applied or written since the last one."""
        context, settings = self._context, self._context.settings
        core, journal = context.core, context.storage.journal
        entries = core.applied_index - self._index
        written = journal.bytes_since_rewrite - self._log_mark
        if entries < settings.snapshot_entries and (
            entries <= 0 or written < settings.snapshot_log_bytes
        ):
            return
        index = core.applied_index
        term = journal.term_at(index)
        assert term is not None, "what is applied is in the log"
        voters = core.configurations.at(index).voters
        context.storage.take(
            Snapshot(index, term, voters, self._machine.snapshot()),
            drop_entries_min=settings.snapshots_per_rewrite * settings.snapshot_entries,
            drop_bytes_min=settings.snapshots_per_rewrite * settings.snapshot_log_bytes,
        )
        self._index = index
        self._log_mark = journal.bytes_since_rewrite

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
        if not leading and not self._puller.takes_from(peer):
            return
        self._puller.snapshot_piece_arrived()
        if index <= core.commit_index:
            self._receiving = None
            self._have_all_up_to(peer, index, leading=leading)
            return
        receiving = self._receiving
        key = (peer, index, message["total"])
        if receiving is None or key != (receiving.peer, receiving.index, receiving.total):
            receiving = self._receiving = SnapshotReceiver(peer, index, message["total"])
        receiving.add(message["offset"], message["data"])
        try:
            snapshot = receiving.complete()
        except ValueError as error:
            _log.warning("a snapshot from %s is damaged, and asked for again: %s", peer, error)
            receiving = self._receiving = SnapshotReceiver(peer, index, message["total"])
            snapshot = None
        if snapshot is not None and snapshot.index == index:
            self._receiving = None
            self._install(snapshot)
            self._have_all_up_to(peer, index, leading=leading)
            return
        answer: Message = {
            "type": "snapshot_ack",
            "term": core.term,
            "index": index,
            "received": receiving.received,
        }
        context.frames.send(peer, answer)

    def disconnected(self, peer: ServerId) -> None:
        """Drop both directions of what was under way by a connection that is gone."""
        self._senders.pop(peer, None)
        if self._receiving is not None and self._receiving.peer == peer:
            self._receiving = None

    def _have_all_up_to(self, peer: ServerId, index: int, *, leading: bool) -> None:
        if leading:
            self._context.core.acknowledge_snapshot(peer, index)
        else:
            self._puller.pull(peer)

    def _install(self, snapshot: Snapshot) -> None:
        storage = self._context.storage
        storage.install(snapshot)
        self._machine.restore(snapshot.state)
        self._context.core.installed(snapshot.index, snapshot.voters)
        self._index = snapshot.index
        self._log_mark = storage.journal.bytes_since_rewrite
