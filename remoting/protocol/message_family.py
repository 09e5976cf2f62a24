"""Families of messages between two ends, each message declared in one place: at its class.

::

    KEEPER = PacketFamily("privileged helper", size_max=64 * 1024, call_size=4)

    class Request(Message, family=KEEPER): ...  # what a server says

    class RequestFor(Request, Asks[A_co]): ...

    @message(3)
    class ReapWorker(RequestFor[Reaped]):
        worker: Number

The class with ``family`` is an end: what one side says, numbered apart from the other side's. A
message below it declares its number, its answer and its fields with their bounds, and a call of the
control protocol also its rights. Frames, dispatch, and the tests of hostile input and of bounds
follow from that; the tests walk ``Family.every``.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Generic, TypeVar, dataclass_transform

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.ids import Plain
from gpupool.remoting.protocol.framing import (
    Frame,
    FrameReader,
    FrameTooLargeError,
    dump,
    frame_bytes,
    load,
)


class Rights(Enum):
    """The token that a call takes, in the words of the auditors' table."""

    VIEWER = "every user, a viewer"
    USER = "every user"
    OWNER = "its user"
    OWNER_OR_OPERATOR = "its user, an operator"
    OPERATOR = "an operator"
    SERVER = "a server token"


@dataclass(frozen=True, slots=True)
class Declaration:
    """The part of a message's declaration that is neither fields nor base class."""

    number: int
    answered_by: "type[Message] | None"  # None: it has no answer
    rights: Rights | None  # None: its end has them all, or is no client
    lines: bool  # its texts may have several lines


class Message:
    """One message of a family."""

    __slots__ = ()
    family: ClassVar["Family"]
    kinds: ClassVar[dict[int, type["Message"]]]  # those of the same end, by their numbers
    numbers: ClassVar[range] = range(256)
    passes_over: ClassVar[bool] = False  # fields that only newer builds know
    declared: ClassVar[Declaration]

    def __init_subclass__(
        cls,
        *,
        family: "Family | None" = None,
        numbers: range | None = None,
        passes_over: bool | None = None,
    ) -> None:
        """Make an end of a family, or a part of an end with separate numbers or strictness."""
        super().__init_subclass__()
        if family is not None:
            cls.family, cls.kinds = family, {}
            family.ends.append(cls)
        if numbers is not None:
            cls.numbers = numbers
        if passes_over is not None:
            cls.passes_over = passes_over


A_co = TypeVar("A_co", covariant=True)
M = TypeVar("M", bound=Message)


class Asks(Message, Generic[A_co]):
    """A message that is answered by an ``A_co``, or a refusal; by nothing if that is None."""

    __slots__ = ()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(
    number: int, *, rights: Rights | None = None, lines: bool = False
) -> Callable[[type[M]], type[M]]:
    """Make a class a message: a frozen dataclass with this number, which is never used again.

    Args:
        number: of the message on the wire, among those of its end.
        rights: the token that a call takes.
        lines: its texts may have several lines, which a client keeps.
    """

    def declare(given: type[M]) -> type[M]:
        kind = dataclass(frozen=True, slots=True)(given)
        assert number not in kind.kinds, f"{kind.__name__} has the number of another message"
        assert number in kind.numbers, f"{kind.__name__} has a number of another kind"
        kind.declared = Declaration(number, _answer_of(kind), rights, lines)
        kind.kinds[number] = kind
        return kind

    return declare


def _answer_of(kind: type[Message]) -> type[Message] | None:
    for base in kind.__mro__:
        for named in vars(base).get("__orig_bases__", ()):
            for arg in typing.get_args(named):
                if isinstance(arg, type) and issubclass(arg, Message):
                    return arg
    return None


def read(end: type[M], number: int, fields: Plain) -> M:
    """Return the message of an end with this number.

    Raises:
        RemoteProtocolError: when there is none, or these are not exactly its fields.
    """
    kind = end.kinds.get(number)
    if kind is None or not issubclass(kind, end):
        raise RemoteProtocolError("unknown message", why=f"kind {number}")
    try:
        return decode(kind, fields, unknown_fields=kind.passes_over)
    except CodecError as error:
        raise RemoteProtocolError("malformed message", why=str(error)[:200]) from error


class Family:
    """All messages between two ends."""

    every: ClassVar[list["Family"]] = []

    def __init__(self, name: str, *, size_max: int) -> None:
        """Make a family without messages; ``size_max`` bounds one, without its head."""
        self.name, self.size_max = name, size_max
        self.ends: list[type[Message]] = []
        self.every.append(self)


class FrameFamily(Family):
    """Messages over a stream: each is one frame."""

    def encode(self, message: Message) -> bytes:
        """Return the frame that carries ``message``.

        Raises:
            LocalProtocolError: when the other end would refuse it.
        """
        body = dump(encode(message))
        return frame_bytes(message.declared.number, body, size_max=self.size_max)

    def decode(self, end: type[M], frame: Frame) -> M:
        """Return the message of ``end`` that a frame carries.

        Raises:
            RemoteProtocolError: when it is none.
        """
        return read(end, frame.kind, load(frame.body))

    def reader(self) -> FrameReader:
        """Return a reader that cuts received bytes into frames."""
        return FrameReader(self.size_max)


class PacketFamily(Family):
    """Messages over a socket that keeps their limits: a number, that of the call, the fields."""

    def __init__(self, name: str, *, size_max: int, call_size: int = 0) -> None:
        """Make a family without messages; ``call_size`` is that of a call's number in bytes."""
        super().__init__(name, size_max=size_max)
        self.call_size = call_size

    def encode(self, message: Message, call: int = 0) -> bytes:
        """Return the packet that carries ``message``, as a call of this number or its answer.

        Raises:
            LocalProtocolError: when the other end would refuse it.
        """
        head = bytes([message.declared.number]) + call.to_bytes(self.call_size, "big")
        packet = head + dump(encode(message))
        if len(packet) > self.size_max:
            raise FrameTooLargeError("oversize packet", why=f"{len(packet)} bytes")
        return packet

    def decode(self, end: type[M], packet: bytes) -> tuple[int, M]:
        """Return the number of a call, and the message of ``end``.

        Raises:
            RemoteProtocolError: when it makes no sense.
        """
        head = 1 + self.call_size
        if not head < len(packet) <= self.size_max:
            raise RemoteProtocolError("malformed packet", why=f"{len(packet)} bytes")
        call = int.from_bytes(packet[1:head], "big")
        return call, read(end, packet[0], load(packet[head:]))
