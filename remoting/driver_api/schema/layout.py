"""Layout of a record: fields, bytes behind them, and its reply.

A record of ``records.py`` is one row; ``packaging/driver_api/packers.py`` writes
the C that packs it, and ``decoding.py`` reads it in the worker.
"""

import re
import struct
from dataclasses import dataclass
from typing import Literal

HEADER = struct.Struct("<HHI")
"""Number, flags, and size of a record, this header included."""

FRAME = struct.Struct("<IIQ")
"""Magic, bytes of the records, and bytes behind them, which belong to the last record."""

WORD = 8
FIELD = re.compile(r"(\w+)(?::(u32|u64|i64))?(?:\[(\d+)\])?")
FORMATS = {"u32": "I", "u64": "Q", "i64": "q"}

Reply = Literal["", "words", "bytes", "request", "later"]
"""Destination that the client provides for the answer: none, words, memory of a known size, or a
request with a growing body that also takes bytes behind the answer; ``later``: it waits in another
call."""


@dataclass(frozen=True, slots=True)
class Field:
    """A number, or an array of numbers."""

    name: str
    type: str
    count: int = 0  # of an array; 0: a single number

    @property
    def format(self) -> str:
        """Return its format of ``struct``."""
        return FORMATS[self.type] * max(self.count, 1)


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes behind the fields: as many as fields say, or all that are left."""

    name: str
    constant: int = 0
    units: tuple[tuple[str, int], ...] = ()  # a field, and how many bytes each of it stands for
    exact: bool = True  # False: all that are left
    text: bool = False  # without the zeros at its end


def text(name: str) -> Tail:
    """Return a tail that is a text."""
    return Tail(name, exact=False, text=True)


def rest(name: str) -> Tail:
    """Return a tail that goes to the end of the record."""
    return Tail(name, exact=False)


def items(name: str, constant: int = 0, /, **units: int) -> Tail:
    """Return a tail of ``constant`` bytes, and so many bytes for each that a field counts."""
    return Tail(name, constant, tuple(units.items()))


@dataclass(frozen=True, slots=True)
class Record:
    """One kind of record."""

    name: str
    fields: tuple[Field, ...]
    asked: bool  # the client waits for an answer
    reply: Reply = ""
    words: tuple[str, ...] = ()  # of the answer
    tail: Tail | None = None
    bulk: bool = False  # bytes behind the frame may belong to it, in place of the tail
    late: bool = False  # the library knows the fields only once its place in the line is taken

    @property
    def struct(self) -> struct.Struct:
        """Return the layout of its fields."""
        return struct.Struct("<" + "".join(field.format for field in self.fields))

    @property
    def plain(self) -> bool:
        """Return whether all fields are words."""
        return all(field.type != "u32" for field in self.fields)


def fields_of(row: str) -> tuple[Field, ...]:
    """Return the fields that a row names: ``name``, ``name:type`` or ``name:type[count]``."""
    found: list[Field] = []
    for word in row.split():
        match = FIELD.fullmatch(word)
        if match is None:
            raise ValueError(f"no field: {word}")
        found.append(Field(match[1], match[2] or "u64", int(match[3] or 0)))
    return tuple(found)


def posted(
    name: str, row: str = "", *, tail: Tail | None = None, bulk: bool = False, late: bool = False
) -> Record:
    """Return a record that nobody waits for."""
    return Record(name, fields_of(row), False, tail=tail, bulk=bulk, late=late)


def asked(
    name: str,
    row: str = "",
    *,
    reply: str = "",
    tail: Tail | None = None,
    bulk: bool = False,
) -> Record:
    """Return a record that the client waits for; ``reply`` names words, or is a ``Reply``."""
    kind: Reply = "words" if reply else ""
    if reply == "later" or reply == "bytes":
        kind = reply
    elif reply == "request" or tail is not None or bulk:
        kind = "request"
    words = tuple(reply.split()) if kind == "words" else ()
    return Record(name, fields_of(row), True, kind, words, tail, bulk)
