"""The family of control messages: its ends, and its frames, which have the number of a call.

All of the declaration of a message stands at its class (``message_family``)::

    @message(33, rights=Rights.USER)
    class GetTelemetry(CallFor[TelemetryNow]): ...

The server's check of rights and the auditors' table of rights follow it. A frame's body is the CBOR
array ``[call number, fields]``.

A server's texts reach terminals by many ways: tables, errors, notices, logs. So the client cleans
them where it decodes a message: nothing in them commands a terminal. Bytes are data, and stay as
they are.
"""

import importlib
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.ids import Plain
from gpupool.remoting.protocol import message_family
from gpupool.remoting.protocol.framing import ANSWER_SIZE_MAX, dump, frame_bytes, load
from gpupool.remoting.protocol.message_family import Asks, Family, read

Clean = Callable[[str], str]

# Controls of ASCII and ISO 6429, what ends a line, and what turns the direction of writing round.
_DIRECTIONS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_NO_LINES = re.compile(f"[\x00-\x1f\x7f-\x9f{_DIRECTIONS}]")
_LINES = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_DIRECTIONS}]|\r(?!\n)")


def clean_line(text: str) -> str:
    """Return a text that has one line, as it may be shown."""
    return text if text.isprintable() else _NO_LINES.sub("\N{REPLACEMENT CHARACTER}", text)


def clean_lines(text: str) -> str:
    """Return a text that may have several lines and tabs, as it may be shown."""
    return text if text.isprintable() else _LINES.sub("\N{REPLACEMENT CHARACTER}", text)


def clean_plain(value: Plain, clean: Clean) -> Plain:
    """Return plain values with each text cleaned; lists and maps are changed in place.

    A view of 1,000 servers has 50,000 texts and comes once a second, so texts are looked at in
    their lists and maps, without a call for each.

    Raises:
        RemoteProtocolError: for a key that is no printable text: no field has such a name.
    """
    if type(value) is str:
        return clean(value)
    if type(value) is list:
        items = cast("list[Plain]", value)
        for at, item in enumerate(items):
            if type(item) is str:
                if not item.isprintable():
                    items[at] = clean(item)
            elif type(item) is list or type(item) is dict:
                clean_plain(item, clean)
    elif type(value) is dict:
        fields = cast("dict[str, Plain]", value)
        for name, item in fields.items():
            if not name.isprintable():
                raise RemoteProtocolError("malformed message", why="a field with a strange name")
            if type(item) is str:
                if not item.isprintable():
                    fields[name] = clean(item)
            elif type(item) is list or type(item) is dict:
                clean_plain(item, clean)
    return value


CALL_NUMBER_MAX = 2**32 - 1

ARRAY_OF_2 = b"\x82"
"""The head of a body in CBOR."""

#: Kinds from here on are pushes, also those of newer servers.
PUSH_MIN = 192

CONTROL = Family("control", size_max=ANSWER_SIZE_MAX)


class Message(message_family.Message, family=CONTROL):
    """One message of the control protocol; both ends share the numbers."""

    __slots__ = ()


class Opening(Message, numbers=range(1, 16), passes_over=True):
    """The first message of a client."""

    __slots__ = ()


class Call(Message, numbers=range(16, 128)):
    """A client's call; it gets one answer, of the declared kind or ``Refused``."""

    __slots__ = ()


class Answer(Message, numbers=range(128, PUSH_MIN), passes_over=True):
    """The answer of a server to a call or to an opening."""

    __slots__ = ()


class Push(Message, numbers=range(PUSH_MIN, 256), passes_over=True):
    """A message that a server sends unasked."""

    __slots__ = ("__weakref__",)


A_co = TypeVar("A_co", bound=Answer, covariant=True)


class CallFor(Call, Asks[A_co]):
    """A call that is answered by an ``A_co``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Encoded:
    """A message to be sent of which the fields are CBOR already: those of a large one take long."""

    kind: type[Message]
    fields: bytes

    def decoded(self) -> Message:
        """Return the message."""
        return decode(self.kind, load(self.fields))


Outgoing = Message | Encoded

#: Modules of this package that are imported when one of their messages is first needed. A program's
#: start waits for what its client imports, and most clients only ask for GPUs.
LATER = (
    "admin_messages",
    "backup_messages",
    "lease_orders",
    "orders",
    "policy_messages",
)


def declare_all() -> None:
    """Import the modules of all messages, so that the table of kinds is whole."""
    for name in LATER:
        importlib.import_module(f"{__package__}.{name}")


def kind_of(number: int) -> type[message_family.Message] | None:
    """Return the message with this number, or None: there is none."""
    if number not in Message.kinds:
        declare_all()
    return Message.kinds.get(number)


def type_of(message: Outgoing) -> type[Message]:
    """Return the class of a message, encoded or not."""
    return message.kind if isinstance(message, Encoded) else type(message)


def to_frame(call: int, message: Outgoing, *, size_max: int) -> bytes:
    """Return ``message`` as one frame, as call number ``call`` or an answer to it."""
    number = type_of(message).declared.number
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
        clean_plain(fields, clean_lines if expected.declared.lines else clean_line)
    return call, read(Message, kind, fields)
