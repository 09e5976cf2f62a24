"""Reads a record's fields and tail in the worker."""

import struct
from collections.abc import Callable
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.schema.layout import HEADER, Record

Decoder = Callable[[], tuple[Any, ...]]
"""Returns the arguments of the current record's handler; for a record with an answer, the request's
number comes first."""


class AtHand:
    """The current record: its position, and the request that waits for it."""

    def __init__(self, buffer: bytearray, bulk: int = 0) -> None:
        self.buffer, self.view = buffer, memoryview(buffer)
        self.record_start, self.record_end = 0, len(buffer)
        self.bulk = bulk
        """Bytes behind its frame."""
        self.request = 0
        """The number of the call that waits for it; 0: nobody does."""


def decoder(source: AtHand, record: Record) -> Decoder:
    """Return a decoder of records of one kind.

    It raises RemoteProtocolError when there are fewer bytes than the record must have. These are
    the worker's inner loops, so each form of record has its own, with little between.
    """
    layout = record.struct
    if record.asked:
        layout = struct.Struct(f"<Q{layout.format.removeprefix('<')}")
    unpack, size, head = layout.unpack_from, layout.size, HEADER.size

    def fields() -> tuple[Any, ...]:
        at = source.record_start + head
        if at + size > source.record_end:
            raise RemoteProtocolError("malformed record")
        return unpack(source.buffer, at)

    tail = record.tail
    if tail is None:
        return fields
    start = head + size
    if tail.text:
        return lambda: (*fields(), behind(source, start).rstrip(b"\0"))
    if not tail.exact:
        return lambda: (*fields(), source.view[source.record_start + start : source.record_end])
    places = places_of(record)
    units = [(places[name], unit) for name, unit in tail.units]
    if len(units) == 1:
        return one_count(source, layout, tail.constant, *units[0], either=record.bulk)

    def counted() -> tuple[Any, ...]:
        found = fields()
        at = source.record_start + start
        end = at + tail.constant + sum(found[place] * unit for place, unit in units)
        if end > source.record_end:
            raise RemoteProtocolError("malformed record")
        return *found, source.view[at:end]

    return counted


def one_count(
    source: AtHand, layout: struct.Struct, constant: int, place: int, unit: int, *, either: bool
) -> Decoder:
    """Return a decoder of records with one counted tail; ``either``: tail or bulk bytes."""
    unpack, size = layout.unpack_from, layout.size
    start = HEADER.size + size

    def counted() -> tuple[Any, ...]:
        at = source.record_start + start
        if at > source.record_end:
            raise RemoteProtocolError("malformed record")
        found = unpack(source.buffer, at - size)
        end = at + constant + found[place] * unit
        if end > source.record_end:
            if not (either and source.bulk):
                raise RemoteProtocolError("malformed record")
            end = source.record_end
        return *found, source.view[at:end]

    return counted


def behind(source: AtHand, start: int) -> bytes:
    """Return all that is behind the fields."""
    return bytes(source.view[source.record_start + start : source.record_end])


def places_of(record: Record) -> dict[str, int]:
    """Return where each field is among the numbers that were decoded."""
    places: dict[str, int] = {}
    at = int(record.asked)
    for field in record.fields:
        places[field.name] = at
        at += max(field.count, 1)
    return places
