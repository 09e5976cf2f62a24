"""Reads a record's fields and tail in the worker."""

from collections.abc import Callable
from typing import Any, Protocol

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.schema.layout import HEADER, Record, Tail

Decoder = Callable[[], tuple[Any, ...]]
"""Gives the arguments of what executes the record at hand; of one with an answer, the request's
number comes first."""


class AtHand(Protocol):
    """Where the record at hand lies."""

    buffer: bytearray
    view: memoryview
    record_start: int
    record_end: int
    bulk: int
    """Bytes behind its frame."""


def decoder(source: AtHand, record: Record) -> Decoder:
    """Return what reads records of one kind.

    It raises RemoteProtocolError when there are fewer bytes than the record must have.
    """
    layout = record.struct
    if record.asked:
        layout = type(layout)(f"<Q{layout.format.removeprefix('<')}")
    unpack, size = layout.unpack_from, layout.size

    def fields() -> tuple[Any, ...]:
        at = source.record_start + HEADER.size
        if at + size > source.record_end:
            raise RemoteProtocolError("malformed record")
        return unpack(source.buffer, at)

    if record.tail is None:
        return fields
    take = tail_reader(source, record, record.tail, HEADER.size + size)

    def fields_and_tail() -> tuple[Any, ...]:
        found = fields()
        return (*found, take(found))

    return fields_and_tail


def tail_reader(
    source: AtHand, record: Record, tail: Tail, offset: int
) -> Callable[[tuple[int, ...]], memoryview | bytes]:
    """Return what reads the tail of a record, given its fields; ``offset``: where it begins."""
    places: dict[str, int] = {}
    at = int(record.asked)
    for field in record.fields:
        places[field.name] = at
        at += max(field.count, 1)
    units = [(places[name], unit) for name, unit in tail.units]
    constant, exact, text, either = (
        tail.constant,
        tail.exact,
        tail.text,
        record.bulk and not tail.text,
    )

    def take(fields: tuple[int, ...]) -> memoryview | bytes:
        start, end = source.record_start + offset, source.record_end
        if text:
            return bytes(source.view[start:end]).rstrip(b"\0")
        if not exact or (either and source.bulk):
            return source.view[start:end]
        size = constant + sum(fields[place] * unit for place, unit in units)
        if size > end - start:
            raise RemoteProtocolError("malformed record")
        return source.view[start : start + size]

    return take
