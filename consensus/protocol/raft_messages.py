"""The messages between servers with their fields, and the frames that carry them.

A message is a dict, because pysyncobj's handlers take dicts and its field names are kept where
they overlap. On the wire it is a CBOR list: the number of its kind, then the fields in order.
Log entries travel as one run of bytes (``journal.encode_entries``), which is five times cheaper
than CBOR and the same encoding that the journal uses.

A frame is ``version u8 | epoch u64 | sequence u64 | message``. The sender's epoch grows with every
connection, also across restarts, and the sequence with every frame. A frame that is not newer than
the newest of its peer is dropped, so that a transport that duplicates or reorders can do no harm
(findings S8, S9).
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, cast

import cbor2

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_settings import FRAME_BYTES_MAX
from gpupool.pool.errors import RemoteProtocolError

Message: TypeAlias = dict[str, Any]

_FRAME_VERSION = 1
_FRAME = struct.Struct("<BQQ")
_SEQUENCE_MAX = (1 << 64) - 1
_OPTIONAL_TEXT = (str, type(None))

# Kind: number on the wire, and fields with their types. A field's type is compared exactly, so
# that True is no integer. Numbers are never reused.
_KINDS: dict[str, tuple[int, dict[str, tuple[type, ...]]]] = {
    "request_vote": (
        1,
        {
            "term": (int,),
            "last_log_index": (int,),
            "last_log_term": (int,),
            # The leader asked for this election: it may be held although the leader lives.
            "hand_over": (bool,),
        },
    ),
    "response_vote": (2, {"term": (int,)}),
    "request_prevote": (
        3,
        {"term": (int,), "last_log_index": (int,), "last_log_term": (int,)},
    ),
    # ``term`` is the one asked for, ``current_term`` the answering server's own. ``member``:
    # whether the asker is a voter, as far as the answering server knows.
    "response_prevote": (
        4,
        {"term": (int,), "current_term": (int,), "granted": (bool,), "member": (bool,)},
    ),
    "append_entries": (
        5,
        {
            "term": (int,),
            "commit_index": (int,),
            "prevLogIdx": (int,),
            "prevLogTerm": (int,),
            "entries": (bytes,),
            # The leader's own clock, against which followers state deadlines of commands.
            "clock_ms": (int,),
            "majority_age_ms": (int,),
        },
    ),
    # The answer to append_entries. ``rejected`` is the prevLogIdx that did not fit, or -1.
    "next_node_idx": (
        6,
        {"term": (int,), "next_node_idx": (int,), "success": (bool,), "rejected": (int,)},
    ),
    # The commit index moved, and there is nothing else to send; no answer.
    "commit": (7, {"term": (int,), "commit_index": (int,)}),
    # Leadership without entries, while a snapshot is under way; answered by next_node_idx.
    "heartbeat": (8, {"term": (int,), "clock_ms": (int,), "majority_age_ms": (int,)}),
    "snapshot": (
        9,
        {
            "term": (int,),
            # False when a server without a vote pulled it from a voter.
            "leading": (bool,),
            "index": (int,),
            "total": (int,),
            "offset": (int,),
            "data": (bytes,),
        },
    ),
    "snapshot_ack": (10, {"term": (int,), "index": (int,), "received": (int,)}),
    "timeout_now": (11, {"term": (int,)}),
    # A follower's proposal, for the leader of ``term`` only, and only before its clock shows
    # ``deadline_ms``: however long the frame was held up, it never fires late.
    "forward": (
        12,
        {"term": (int,), "request_id": (int,), "command": (bytes,), "deadline_ms": (int,)},
    ),
    "forward_response": (
        13,
        {"request_id": (int,), "log_idx": (int,), "log_term": (int,), "refused": _OPTIONAL_TEXT},
    ),
    # A server without a vote asks for the committed entries from ``next_index`` on.
    "pull": (14, {"next_index": (int,)}),
    "pulled": (
        15,
        {
            "term": (int,),
            "commit_index": (int,),
            "prevLogIdx": (int,),
            "prevLogTerm": (int,),
            "entries": (bytes,),
            "leader": _OPTIONAL_TEXT,
            "clock_ms": (int,),
            "majority_age_ms": (int,),
        },
    ),
    # A server without a vote lives, and has applied so much.
    "alive": (16, {"applied_index": (int,)}),
    # What the sender's table made of the entries of one run of the log; ``index`` is behind it.
    "table_hash": (17, {"index": (int,), "hash": (bytes,)}),
    # The first message of each connection; see ``persisted_votes.py``. An older build drops it.
    "hello": (
        18,
        {
            "boot": (int,),
            "incarnation": (int,),
            "term": (int,),
            "last_index": (int,),
            "repairing": (bool,),
        },
    ),
    # The receiver's start ``boot`` must end: it has forgotten what it promised.
    "refused": (19, {"boot": (int,), "reason": (str,)}),
    # What the receiver, which repairs its log, promised to the sender.
    "promised": (20, {"term": (int,), "index": (int,)}),
    # The sender refuses another server; believed for ``for_ms``, 0 ends it. See ``gossip.py``.
    "refusal": (21, {"server": (str,), "reason": (str,), "for_ms": (int,)}),
    # The sender's whole table after entry ``index``; hashes of other shapes say nothing.
    "whole_hash": (22, {"index": (int,), "shape": (int,), "hash": (bytes,)}),
    # A follower asks its leader for its clock, to know how old messages are; see ``freshness.py``.
    "ask_clock": (23, {"number": (int,)}),
    "clock": (
        24,
        {
            "term": (int,),
            "commit_index": (int,),
            "number": (int,),
            "clock_ms": (int,),
            "majority_age_ms": (int,),
        },
    ),
    # The number of servers that the sender reaches; see ``voter_changes.py``. Older builds drop it.
    "reach": (25, {"count": (int,)}),
}
_VARYING = {"entries", "data", "command", "clock_ms"}
_REPEATED = frozenset(kind for kind, (_, fields) in _KINDS.items() if not _VARYING & fields.keys())
"""Kinds of which the same message is likely to be sent again."""


def _values(fields: dict[str, tuple[type, ...]]) -> Callable[[Message], tuple[Any, ...]]:
    """Return a function that extracts the values of these fields from a message."""
    if len(fields) == 1:
        only = next(iter(fields))
        return lambda message: (message[only],)
    return itemgetter(*fields)


_FIELDS = {kind: (number, _values(fields)) for kind, (number, fields) in _KINDS.items()}
_INTEGER_MAX = 1 << 62

_SMALL_BYTES_MAX = 1024
_SMALL_COUNT = 64


class _Shape(NamedTuple):
    """The shape of a kind's list, its number included."""

    kind: str
    names: tuple[str, ...]
    types: frozenset[tuple[type, ...]]
    integers: Callable[[list[Any]], tuple[int, ...]]  # the number, and one field at least


def _shape(kind: str, fields: dict[str, tuple[type, ...]]) -> _Shape:
    places = [at for at, types in enumerate(fields.values(), 1) if types == (int,)]
    return _Shape(
        kind,
        ("type", *fields),
        frozenset(product((int,), *fields.values())),
        itemgetter(0, *places),
    )


_BY_NUMBER = {number: _shape(kind, fields) for kind, (number, fields) in _KINDS.items()}


def encode_message(message: Message) -> bytes:
    """Return one message as bytes; raises ``KeyError`` for a kind or field that does not exist."""
    kind = message["type"]
    number, fields = _FIELDS[kind]
    values = fields(message)
    return _encode_again(number, values) if kind in _REPEATED else _encode(number, values)


def _encode(number: int, values: tuple[Any, ...]) -> bytes:
    return cbor2.dumps([number, *values])


# Answers and commit indices are the same for several peers, and at rest for a long time. A field
# is never once an integer and once a truth value, which are equal to Python.
_encode_again = lru_cache(_SMALL_COUNT)(_encode)


def decode_message(data: bytes) -> Message:
    """Return the message in ``data``, every field checked for its type and range.

    The message must not be changed: a leader gets the same answer from each of its followers, so
    the latest small ones are remembered.

    Raises:
        RemoteProtocolError: for anything that is not exactly one known message.
    """
    return _decode_small(data) if len(data) <= _SMALL_BYTES_MAX else _decode(data)


def _decode(data: bytes) -> Message:
    value = closed_cbor.decode_unchecked(data)
    items = cast("list[Any]", value) if type(value) is list else []
    number = items[0] if items else None
    if type(number) is not int:
        raise RemoteProtocolError("a peer's message has no kind")
    if (shape := _BY_NUMBER.get(number)) is None:
        raise RemoteProtocolError(f"a peer's message has the unknown kind {number}")
    kind, names, types, integers = shape
    if len(items) != len(names):
        raise RemoteProtocolError(f"a peer's {kind} has {len(items) - 1} fields")
    if tuple(map(type, items)) not in types:
        raise RemoteProtocolError(f"a field of a peer's {kind} has the wrong type")
    numbers = integers(items)
    if min(numbers) < -1 or max(numbers) >= _INTEGER_MAX:
        raise RemoteProtocolError(f"a field of a peer's {kind} is out of range")
    items[0] = kind
    return dict(zip(names, items, strict=True))


_decode_small = lru_cache(_SMALL_COUNT)(_decode)


class FrameWriter:
    """Numbers the frames to one peer."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._sequence = 0

    def frame(self, body: bytes) -> bytes:
        """Return the next frame, holding one encoded message."""
        self._sequence += 1
        return _FRAME.pack(_FRAME_VERSION, self._epoch, self._sequence) + body


class FrameReader:
    """Reads frames of one peer, and drops old ones, however often or late they arrive."""

    def __init__(self) -> None:
        self._newest = (0, 0)

    def begin_connection(self) -> None:
        """Drop frames that the peer sent for earlier connections, by any connection they arrive."""
        self._newest = (self._newest[0], _SEQUENCE_MAX)

    def body(self, frame: bytes) -> bytes | None:
        """Return the message in a new frame, None for an old one.

        Raises:
            RemoteProtocolError: when it is no frame of ours.
        """
        if not _FRAME.size < len(frame) <= FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"a peer's frame has {len(frame)} bytes")
        version, epoch, sequence = _FRAME.unpack_from(frame)
        if version != _FRAME_VERSION:
            raise RemoteProtocolError(f"a peer's frame has version {version}")
        if (epoch, sequence) <= self._newest:
            return None
        self._newest = (epoch, sequence)
        return frame[_FRAME.size :]
