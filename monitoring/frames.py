"""The frames between a server and its observer, over their socket pair: strict CBOR, pure code.

The kind of a frame says its purpose. Both ends are always of the same build, so kinds and fields
change freely; the observer's answers are decoded as strictly as a stranger's all the same, since it
is the process that strangers will reach.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gpupool.monitoring.http.http_frames import (
    Targets,
    TokenAnswered,
    TokenAsked,
    TokensSeen,
    WebSetup,
)
from gpupool.monitoring.sample import Sample
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model import codec
from gpupool.pool.model.bounds import Number
from gpupool.pool.model.forgetting import Forgotten
from gpupool.pool.record_query import RecordPage, RecordQuery
from gpupool.remoting.protocol import framing

FRAME_SIZE_MAX = 8 << 20
PAGE_SIZE_MAX = 4 << 20
"""Of a page in an answer; one that is larger is made shorter."""


class Kind(IntEnum):
    """What a frame is for."""

    RECORDS_WRITTEN = 1  # server to observer: leases.jsonl has new lines
    QUERY = 2  # server to observer
    PAGE = 3  # observer to server
    SAMPLE = 4  # server to observer, once a second
    HISTORY_QUERY = 5  # server to observer
    HISTORY_PAGE = 6  # observer to server
    FORGET = 7  # server to observer
    WEB_SETUP = 32
    TARGETS = 33
    TOKEN_ASKED = 34  # the only question of the observer
    TOKEN_ANSWERED = 35
    TOKENS_SEEN = 36


@dataclass(frozen=True, slots=True)
class RecordsWritten:
    """``leases.jsonl`` has new lines."""


@dataclass(frozen=True, slots=True)
class Forget:
    """All users whom the pool has forgotten lately."""

    users: tuple[Forgotten, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, with a number of the server's choice."""

    number: Number
    query: RecordQuery


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to the question of this number."""

    number: Number
    page: RecordPage


@dataclass(frozen=True, slots=True)
class HistoryAsked:
    """A question about what was measured, with a number of the server's choice."""

    number: Number
    query: HistoryQuery


@dataclass(frozen=True, slots=True)
class HistoryAnswered:
    """The answer to the question of this number."""

    number: Number
    page: HistoryPage


Message = (
    RecordsWritten
    | Asked
    | Answered
    | Sample
    | HistoryAsked
    | HistoryAnswered
    | Forget
    | WebSetup
    | Targets
    | TokenAsked
    | TokenAnswered
    | TokensSeen
)

_KINDS: dict[int, type[Any]] = {
    Kind.RECORDS_WRITTEN: RecordsWritten,
    Kind.QUERY: Asked,
    Kind.PAGE: Answered,
    Kind.SAMPLE: Sample,
    Kind.HISTORY_QUERY: HistoryAsked,
    Kind.HISTORY_PAGE: HistoryAnswered,
    Kind.FORGET: Forget,
    Kind.WEB_SETUP: WebSetup,
    Kind.TARGETS: Targets,
    Kind.TOKEN_ASKED: TokenAsked,
    Kind.TOKEN_ANSWERED: TokenAnswered,
    Kind.TOKENS_SEEN: TokensSeen,
}
_KIND_OF = {kind: number for number, kind in _KINDS.items()}


def to_frame(message: Message) -> bytes:
    """Return the frame that carries ``message``."""
    body = framing.dump(codec.encode(message))
    return framing.frame_bytes(_KIND_OF[type(message)], body, size_max=FRAME_SIZE_MAX)


def from_frame(frame: framing.Frame) -> Message:
    """Return the message of a frame.

    Raises:
        RemoteProtocolError: when it is none.
    """
    kind = _KINDS.get(frame.kind)
    if kind is None:
        raise RemoteProtocolError("unknown frame", why=f"kind {frame.kind}")
    try:
        return codec.decode(kind, framing.load(frame.body))
    except codec.CodecError as error:
        raise RemoteProtocolError("malformed frame", why=str(error)) from error


def frame_reader() -> framing.FrameReader:
    """Return a reader that cuts received bytes into frames."""
    return framing.FrameReader(FRAME_SIZE_MAX)
