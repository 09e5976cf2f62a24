"""The records of ended leases as lines of JSON: the form of ``leases.jsonl``."""

import json
from typing import cast

from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.state import LeaseRecord

FILE_NAME = "leases.jsonl"
"""Written by the server, read by its exporter. Renamed files have ``.1`` to ``.7`` behind it."""

SCHEMA = 1


def line_of(record: LeaseRecord) -> str:
    """Return one record as a line with its end."""
    fields = encode(record)
    assert isinstance(fields, dict)
    return json.dumps({"schema": SCHEMA, **fields}, separators=(",", ":")) + "\n"


def record_of(line: str) -> LeaseRecord:
    """Return the record that a line holds.

    Raises:
        ValueError: when it holds none.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("a line that nests too deep") from error
    if not isinstance(fields, dict):
        raise ValueError("a line without fields")
    named = cast("dict[str, object]", fields)
    if named.pop("schema", None) != SCHEMA:
        raise ValueError("a line of another schema")
    try:
        return decode(LeaseRecord, named, unknown_fields=True)
    except CodecError as error:
        raise ValueError(str(error)) from None
