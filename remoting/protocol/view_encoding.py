"""The view of a pool to the wire, piece by piece, as large pools need it. Pure code.

The pieces together are what ``to_frame`` makes of a whole ``ViewNow`` or ``Update``. Rows are made,
encoded and dropped one after another: a view of 1,000 servers would be 100,000 objects, which
somebody would have to free in the end.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import cast

from gpupool.pool.model.codec import encode
from gpupool.pool.model.ids import Plain
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view_building import ViewSource, view_in_rows
from gpupool.remoting.protocol.framing import dump
from gpupool.remoting.protocol.messages import Encoded, Update, ViewNow

PIECE_BYTES = 12 * 1024
"""Of a piece: about 1 ms."""

_ARRAY, _MAP = 4, 5  # major types of CBOR


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


def make_view(order: ViewOrder) -> Generator[None, None, MadeView]:
    """Return the messages; pauses after each piece. It may run on any thread."""
    head, long = view_in_rows(order.source)
    plain = cast("dict[str, Plain]", encode(head))
    yield
    fields: dict[str, bytes] = {}
    for name, value in plain.items():
        if (field := long.get(name)) is None:
            fields[name] = dump(value)
            continue
        pieces, rows, size = [_head(_ARRAY, field.count)], list[bytes](), 0
        for row in field.rows:
            rows.append(dump(encode(row)))
            size += len(rows[-1])
            if size >= PIECE_BYTES:
                pieces.append(b"".join(rows))
                rows, size = [], 0
                yield
        fields[name] = b"".join((*pieces, *rows))
        yield
    view, for_doctor, update = _map(fields), None, None
    if order.confinement is not None:
        warnings = cast("list[Plain]", plain["warnings"])
        more = _map(fields | {"warnings": dump([*warnings, *order.confinement])})
        for_doctor = Encoded(ViewNow, _map({"view": more}))
    if order.telemetry is not None:
        telemetry = dump(encode(order.telemetry))
        update = Encoded(Update, _map({"view": view, "telemetry": telemetry}))
    return MadeView(Encoded(ViewNow, _map({"view": view})), for_doctor, update)


def make_view_at_once(order: ViewOrder) -> MadeView:
    """Return the messages."""
    steps = make_view(order)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _map(fields: dict[str, bytes]) -> bytes:
    """Return a map of values that are CBOR already, its keys in canonical order: shorter first."""
    keys = sorted((len(key := dump(name)), key, value) for name, value in fields.items())
    pairs = (each for _, key, value in keys for each in (key, value))
    return b"".join((_head(_MAP, len(fields)), *pairs))


def _head(major: int, count: int) -> bytes:
    """Return the head of an array or a map: that of a number, with another major type."""
    head = dump(count)
    return bytes((head[0] | major << 5,)) + head[1:]
