"""One control connection as a state machine over bytes: the messages allowed in each phase.

Rule 1: everything that decides whether a message is allowed lives here. Rule 2: nothing here
knows what a message means; the controller and the client do.

    CONNECTING --opening--> GREETING --Welcome--> OPEN --closed()--> CLOSED
                                     --CaCertificate, Refused----->  CLOSED

Both ends walk through the same states. Limits grow at ``OPEN``: before it a stranger gets
``UNAUTHENTICATED_SIZE_MAX`` bytes and one message.
"""

from collections.abc import Iterator
from enum import Enum

from gpupool.pool.errors import LocalProtocolError, RemoteProtocolError
from gpupool.remoting.protocol import messages
from gpupool.remoting.protocol.framing import (
    ANSWER_SIZE_MAX,
    REQUEST_SIZE_MAX,
    UNAUTHENTICATED_SIZE_MAX,
    FrameReader,
)
from gpupool.remoting.protocol.messages import Message, Outgoing


class End(Enum):
    """The end of a connection: client or server."""

    CLIENT = "client"
    SERVER = "server"


class Phase(Enum):
    """How far the connection is."""

    CONNECTING = "connecting"  # the client has to open
    GREETING = "greeting"  # the server has to answer the opening
    OPEN = "open"
    CLOSED = "closed"


_GREETINGS = (messages.Welcome, messages.CaCertificate, messages.Refused)


def may_send(end: End, phase: Phase, kind: type[Message]) -> bool:
    """Return whether this end may send such a message in this phase; it may send nothing else."""
    match end, phase:
        case End.CLIENT, Phase.CONNECTING:
            return issubclass(kind, messages.Opening)
        case End.SERVER, Phase.GREETING:
            return kind in _GREETINGS
        case End.CLIENT, Phase.OPEN:
            return issubclass(kind, messages.Call)
        case End.SERVER, Phase.OPEN if issubclass(kind, messages.Answer):
            return kind not in (messages.Welcome, messages.CaCertificate)
        case End.SERVER, Phase.OPEN:
            return issubclass(kind, messages.Push)
        case _:
            return False


class Connection:
    """Both directions of one control connection, without I/O."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.phase = Phase.CONNECTING
        other = End.SERVER if end is End.CLIENT else End.CLIENT
        self._other = other
        first = UNAUTHENTICATED_SIZE_MAX if other is End.CLIENT else REQUEST_SIZE_MAX
        self._reader = FrameReader(first)

    def send(self, call: int, message: Outgoing) -> bytes:
        """Return the bytes of ``message``, after checking that it may be sent now.

        Raises:
            LocalProtocolError: when it may not; nothing has changed then.
        """
        kind = messages.type_of(message)
        if not may_send(self.end, self.phase, kind):
            raise LocalProtocolError(
                f"{kind.__name__} cannot be sent", why=f"connection is {self.phase.value}"
            )
        if (call == 0) is not issubclass(kind, messages.Push):
            raise LocalProtocolError("only pushes have call number 0")
        size_max = ANSWER_SIZE_MAX
        if self.end is End.CLIENT:
            greeted = self.phase is Phase.OPEN
            size_max = REQUEST_SIZE_MAX if greeted else UNAUTHENTICATED_SIZE_MAX
        if call == 0 and self.end is End.SERVER:
            data = messages.push_frame(message, size_max=size_max)
        else:
            data = messages.to_frame(call, message, size_max=size_max)
        self._advance(kind)
        return data

    def receive(self, data: bytes) -> Iterator[tuple[int, Message]]:
        """Take received bytes, and yield each whole message with its call number.

        Raises:
            RemoteProtocolError: for a message that is malformed, too large or out of turn. The
                connection is closed then.
        """
        self._reader.feed(data)
        try:
            # One at a time: a frame may change what is allowed for the frame after it.
            while self.phase is not Phase.CLOSED and (frame := self._reader.next()) is not None:
                if self._may_be_newer(frame.kind) and messages.kind_of(frame.kind) is None:
                    continue
                # Whoever shows a text of a server need not think of what is in it.
                client = self.end is End.CLIENT
                call, message = messages.from_body(frame.kind, frame.body, clean=client)
                if not may_send(self._other, self.phase, type(message)):
                    raise RemoteProtocolError(
                        f"{type(message).__name__} out of turn",
                        why=f"connection is {self.phase.value}",
                    )
                if (call == 0) is not isinstance(message, messages.Push):
                    raise RemoteProtocolError("only pushes have call number 0")
                self._advance(type(message))
                yield call, message
        except RemoteProtocolError:
            self.phase = Phase.CLOSED
            raise

    def closed(self) -> None:
        """Say that the transport is gone."""
        self.phase = Phase.CLOSED

    def _may_be_newer(self, kind: int) -> bool:
        """Return whether a frame may be a push that only newer clients know."""
        return self.end is End.CLIENT and self.phase is Phase.OPEN and kind >= messages.PUSH_MIN

    def _advance(self, kind: type[Message]) -> None:
        if self.phase is Phase.CONNECTING:
            self.phase = Phase.GREETING
        elif self.phase is Phase.GREETING:
            if kind is messages.Welcome:
                self.phase = Phase.OPEN
                is_server = self.end is End.SERVER
                self._reader.size_max = REQUEST_SIZE_MAX if is_server else ANSWER_SIZE_MAX
            else:
                self.phase = Phase.CLOSED
