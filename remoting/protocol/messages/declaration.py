"""The declaration of a message: number, kind, answer, rights; and its frame, which has the number.

All of the declaration stands at the class of the message, in one decorator::

    @message(33, answered_by=TelemetryNow, rights=Rights.USER)
    class GetTelemetry(Call): ...

The tables of numbers, the server's check of rights and the auditors' table of rights follow it.
A frame's body is the CBOR array ``[call number, fields]``.
"""

import importlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, dataclass_transform

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.remoting.protocol.framing import dump, frame_bytes, load
from gpupool.remoting.protocol.shown_text import clean_line, clean_lines, clean_plain

CALL_NUMBER_MAX = 2**32 - 1

ARRAY_OF_2 = b"\x82"
"""The head of a body in CBOR."""


class Message:
    """One message of the control protocol."""

    __slots__ = ()


class Opening(Message):
    """The first message of a client."""

    __slots__ = ()


class Call(Message):
    """A client's call; it gets one answer, of the declared kind or ``Refused``."""

    __slots__ = ()


class Answer(Message):
    """The answer of a server to a call or to an opening."""

    __slots__ = ()


class Push(Message):
    """A message that a server sends unasked."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Encoded:
    """A message to be sent of which the fields are CBOR already: those of a large one take long."""

    kind: type[Message]
    fields: bytes

    def decoded(self) -> Message:
        """Return the message."""
        return decode(self.kind, load(self.fields))


Outgoing = Message | Encoded


class Rights(Enum):
    """The token that a call takes, in the words of the auditors' table."""

    VIEWER = "every user, a viewer"
    USER = "every user"
    OWNER = "its user"
    OWNER_OR_OPERATOR = "its user, an operator"
    OPERATOR = "an operator"
    SERVER = "a server token"


@dataclass(frozen=True, slots=True)
class CallDeclaration:
    """The part of a declaration that only calls have."""

    answered_by: type[Answer]
    rights: Rights


#: The numbers of each kind on the wire. Kinds from 192 on are pushes, also those of newer servers.
PUSH_MIN = 192
RANGES: dict[type[Message], range] = {
    Opening: range(1, 16),
    Call: range(16, 128),
    Answer: range(128, PUSH_MIN),
    Push: range(PUSH_MIN, 256),
}

#: Every declared message by its number, and the number of each.
BY_NUMBER: dict[int, type[Message]] = {}
NUMBERS: dict[type[Message], int] = {}

#: Messages whose texts may have several lines.
WITH_LINES: set[type[Message]] = set()

#: The declaration of every call.
CALL_DECLARATIONS: dict[type[Call], CallDeclaration] = {}

#: Modules of this package that are imported when one of their messages is first needed. A program's
#: start waits for what its client imports, and most clients only ask for GPUs.
LATER = (
    "admin_messages",
    "account_orders",
    "backup_messages",
    "lease_orders",
    "membership_messages",
    "orders",
    "policy_messages",
)

M = TypeVar("M", bound=Message)


def declare_all() -> None:
    """Import the modules of all messages, so that the tables above are whole."""
    for name in LATER:
        importlib.import_module(f"{__package__}.{name}")


def kind_of(number: int) -> type[Message] | None:
    """Return the message with this number, or None: there is none."""
    if number not in BY_NUMBER:
        declare_all()
    return BY_NUMBER.get(number)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(
    number: int,
    *,
    answered_by: type[Answer] | None = None,
    rights: Rights | None = None,
    lines: bool = False,
) -> Callable[[type[M]], type[M]]:
    """Make a class a message: a frozen dataclass with this number, which is never used again.

    Args:
        number: of the message on the wire, in the range of its kind.
        answered_by: the answer to a call.
        rights: the token that a call takes.
        lines: its texts may have several lines, which a client keeps.
    """

    def declare(given: type[M]) -> type[M]:
        kind = dataclass(frozen=True, slots=True)(given)
        assert number not in BY_NUMBER, f"{kind.__name__} has the number of another message"
        (numbers,) = (numbers for base, numbers in RANGES.items() if issubclass(kind, base))
        assert number in numbers, f"{kind.__name__} has a number of another kind"
        assert issubclass(kind, Call) == (answered_by is not None and rights is not None)
        BY_NUMBER[number] = kind
        NUMBERS[kind] = number
        if lines:
            WITH_LINES.add(kind)
        if issubclass(kind, Call) and answered_by is not None and rights is not None:
            CALL_DECLARATIONS[kind] = CallDeclaration(answered_by, rights)
        return kind

    return declare


def answer_of(call: type[Call]) -> type[Answer]:
    """Return the declared answer to a call."""
    return CALL_DECLARATIONS[call].answered_by


def type_of(message: Outgoing) -> type[Message]:
    """Return the class of a message, encoded or not."""
    return message.kind if isinstance(message, Encoded) else type(message)


def to_frame(call: int, message: Outgoing, *, size_max: int) -> bytes:
    """Return ``message`` as one frame, as call number ``call`` or an answer to it."""
    number = NUMBERS[type_of(message)]
    if isinstance(message, Encoded):
        return frame_bytes(number, ARRAY_OF_2, dump(call), message.fields, size_max=size_max)
    return frame_bytes(number, dump([call, encode(message)]), size_max=size_max)


_push_frames: dict[int, tuple[weakref.ref[Outgoing], bytes]] = {}


def push_frame(message: Outgoing, *, size_max: int) -> bytes:
    """Return a push as one frame; one that goes to many connections is encoded once.

    Its frame is kept for as long as anybody has the message.
    """
    key = id(message)
    if (kept := _push_frames.get(key)) is not None and kept[0]() is message:
        return kept[1]
    frame = to_frame(0, message, size_max=size_max)
    _push_frames[key] = weakref.ref(message, lambda _: _push_frames.pop(key, None)), frame
    return frame


def from_body(kind: int, body: bytes, *, clean: bool = False) -> tuple[int, Message]:
    """Return the call number and the message of a frame.

    Args:
        kind: the number of the message.
        body: of the frame.
        clean: replace what no text may have that is shown, as a client does with a server's.

    Raises:
        RemoteProtocolError: for an unknown kind, or a body that is not exactly its message.
    """
    expected = kind_of(kind)
    if expected is None:
        raise RemoteProtocolError("unknown message", why=f"kind {kind}")
    plain = load(body)
    if not isinstance(plain, list) or len(plain) != 2:
        raise RemoteProtocolError("malformed message", why="not a pair of number and fields")
    call, fields = plain
    if type(call) is not int or not 0 <= call <= CALL_NUMBER_MAX:
        raise RemoteProtocolError("malformed message", why="call number out of range")
    if clean:
        clean_plain(fields, clean_lines if expected in WITH_LINES else clean_line)
    try:
        return call, decode(expected, fields, unknown_fields=not issubclass(expected, Call))
    except CodecError as error:
        raise RemoteProtocolError("malformed message", why=str(error)[:200]) from error
