"""Frames from and to the connected peers of one node; a frame holds one message.

Each frame carries the sender's boot, its connection and a number that counts up, so that a frame
that arrives twice, late, or from an earlier connection is dropped. One exception: the ``hello`` of
a new connection is read with any boot, because a server that presents an old one must be noticed,
not ignored. It need not come first: what waited for the other server's disk was made for the
connection before, and is sent over the new one (seed 720587).

Messages wait here until ``take``, which the node calls after the journal's sync; those that rest
on nothing unsynced may leave before, by ``take_early``.
"""

from collections.abc import Callable

from gpupool.consensus.protocol.raft_messages import (
    FrameReader,
    FrameWriter,
    Message,
    decode_message,
    encode_message,
)
from gpupool.pool.model.ids import ServerId


class PeerFrames:
    """The connections of one node, with the messages that wait to leave by them."""

    def __init__(self, boot: int) -> None:
        """Begin without connections; ``boot`` is larger than at every earlier start."""
        self._boot = boot
        self._connection_count = 0
        self._writers: dict[ServerId, FrameWriter] = {}
        self._readers: dict[ServerId, FrameReader] = {}
        self._fresh: set[ServerId] = set()  # nothing of this connection was read yet
        self._outbox: list[tuple[ServerId, Message]] = []

    @property
    def waiting(self) -> bool:
        """True while messages wait to leave."""
        return bool(self._outbox)

    def connected(self) -> set[ServerId]:
        """Return the peers with a connection."""
        return set(self._writers)

    def __contains__(self, peer: ServerId) -> bool:
        """Tell whether there is a connection with ``peer``."""
        return peer in self._writers

    def __bool__(self) -> bool:
        """Tell whether there is a connection with anyone."""
        return bool(self._writers)

    def connect(self, peer: ServerId) -> None:
        """Begin a connection: everything that waits for an older one is dropped."""
        self._connection_count += 1
        self._writers[peer] = FrameWriter((self._boot << 32) | self._connection_count)
        self._fresh.add(peer)
        self._outbox = [item for item in self._outbox if item[0] != peer]
        if (reader := self._readers.get(peer)) is not None:
            reader.begin_connection()

    def disconnect(self, peer: ServerId) -> None:
        """End a connection."""
        self._writers.pop(peer, None)

    def read(self, peer: ServerId, frame: bytes) -> Message | None:
        """Return the message in a frame, None when it was seen before.

        Raises:
            RemoteProtocolError: when it is no frame or no message of ours.
        """
        reader = self._readers.setdefault(peer, FrameReader())
        body = reader.body(frame)
        if body is None and peer in self._fresh:
            again = FrameReader()
            first = again.body(frame)
            if first is not None and decode_message(first)["type"] == "hello":
                self._readers[peer], body = again, first
        if body is None:
            return None
        self._fresh.discard(peer)
        return decode_message(body)

    def send(self, peer: ServerId, message: Message) -> None:
        """Queue one message until ``take``; without a connection it is dropped."""
        if peer in self._writers:
            self._outbox.append((peer, message))

    def take_early(self, may_leave: Callable[[Message], bool]) -> list[tuple[ServerId, bytes]]:
        """Return the frames that may leave before the sync, in order.

        A message that waits holds up all that come behind it, to the same peer: a connection
        carries messages in the order in which they were made.
        """
        held: set[ServerId] = set()
        early: list[tuple[ServerId, Message]] = []
        rest: list[tuple[ServerId, Message]] = []
        for peer, message in self._outbox:
            if peer in held or not may_leave(message):
                held.add(peer)
                rest.append((peer, message))
            else:
                early.append((peer, message))
        self._outbox = early
        frames = self.take()
        self._outbox = rest
        return frames

    def take(self) -> list[tuple[ServerId, bytes]]:
        """Return all that waits as frames, in order."""
        frames: list[tuple[ServerId, bytes]] = []
        encoded: Message | None = None
        body = b""
        for peer, message in self._outbox:
            if (writer := self._writers.get(peer)) is not None:
                if message is not encoded:
                    encoded, body = message, encode_message(message)
                frames.append((peer, writer.frame(body)))
        self._outbox = []
        return frames
