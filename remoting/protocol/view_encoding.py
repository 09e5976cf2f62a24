"""The view of a pool to the wire, piece by piece, as large pools need it. Pure code.

The pieces together are what ``to_frame`` makes of a whole ``ViewNow`` or ``Update``. Rows are made,
encoded and dropped one after another: a view of 1,000 servers would be 100,000 objects, which
somebody would have to free in the end.
"""

from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import cast

from gpupool.pool.model.codec import encode
from gpupool.pool.model.ids import Plain
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view_building import ViewSource, view_in_rows
from gpupool.remoting.protocol.framing import dump
from gpupool.remoting.protocol.messages import Encoded, Update, ViewNow

ROW_COUNT, PIECE_BYTES = 8, 12 * 1024
"""Rows that are encoded at a time, and bytes after which there is a pause: about 1 ms."""

ALL_ROWS = 1 << 20

_ARRAY, _MAP = 4, 5  # major types of CBOR
_key = lru_cache(maxsize=64)(dump)


@dataclass(frozen=True, slots=True)
class ViewOrder:
    """The messages that are wanted of one view."""

    source: ViewSource
    confinement: tuple[str, ...] | None = None  # further warnings for a doctor; None: none asks
    telemetry: Telemetry | None = None  # for subscribers; None: none is due


@dataclass(frozen=True, slots=True)
class MadeView:
    """The messages that were ordered."""

    view: Encoded
    for_doctor: Encoded | None
    update: Encoded | None


def make_view(order: ViewOrder, *, row_count: int = ROW_COUNT) -> Generator[None, None, MadeView]:
    """Return the messages; pauses after each piece. It may run on any thread.

    Args:
        order: the messages that are wanted.
        row_count: rows that are encoded at a time.
    """
    head, fields = view_in_rows(order.source)
    plain = cast("dict[str, Plain]", encode(head))
    yield
    long: dict[str, bytes] = {}
    for name, field in fields.items():
        pieces, size = [_head(_ARRAY, field.count)], 0
        while rows := [encode(row) for row in islice(field.rows, row_count)]:
            piece = _without_head(dump(rows), len(rows))
            pieces.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES:
                size = 0
                yield
        long[name] = b"".join(pieces)
        if len(pieces) > 2:
            yield
    view, for_doctor, update = _joined(plain, long), None, None
    if order.confinement is not None:
        warnings = [*cast("list[Plain]", plain["warnings"]), *order.confinement]
        more = _joined({**plain, "warnings": warnings}, long)
        for_doctor = Encoded(ViewNow, _joined({}, {"view": more}))
    if order.telemetry is not None:
        measured: dict[str, Plain] = {"telemetry": encode(order.telemetry)}
        update = Encoded(Update, _joined(measured, {"view": view}))
    return MadeView(Encoded(ViewNow, _joined({}, {"view": view})), for_doctor, update)


def make_view_at_once(order: ViewOrder) -> MadeView:
    """Return the messages."""
    steps = make_view(order, row_count=ALL_ROWS)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _joined(plain: dict[str, Plain], encoded: dict[str, bytes]) -> bytes:
    """Return a map of values, some of them CBOR already; keys in canonical order: shorter first."""
    keys = sorted(plain | encoded, key=lambda name: (len(name), name))
    parts = [_head(_MAP, len(keys))]
    for is_encoded, names in groupby(keys, encoded.__contains__):
        if is_encoded:
            parts += [part for name in names for part in (_key(name), encoded[name])]
        else:
            some = {name: plain[name] for name in names}
            parts.append(_without_head(dump(some), len(some)))
    return b"".join(parts)


@lru_cache(maxsize=256)
def _head(major: int, count: int) -> bytes:
    """Return the head of an array or a map: that of a number, with another major type."""
    head = dump(count)
    return bytes((head[0] | major << 5,)) + head[1:]


def _without_head(encoded: bytes, count: int) -> bytes:
    """Return an array or a map of ``count`` items without its head."""
    return encoded[len(_head(_ARRAY, count)) :]
