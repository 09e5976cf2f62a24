"""A table in pieces is what ``codec`` makes of the whole."""

from dataclasses import dataclass, field

import pytest

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.cbor_pieces import encode_fields, map_head
from gpupool.pool.model.codec import OPTIONAL, encode
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.pieces import Rows, fields_of


@dataclass(frozen=True, slots=True)
class _Table:
    name: str = ""
    count: int = field(default=0, metadata=OPTIONAL)
    rows: dict[str, int] = field(default_factory=dict[str, int], metadata=OPTIONAL)


def in_pieces(value: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, take in fields_of(value):
        plain = take()
        is_rows = isinstance(plain, Rows)
        found[name] = [row for piece in plain.pieces for row in piece] if is_rows else plain
    return found


def test_a_field_that_has_its_default_is_left_out_as_in_the_whole() -> None:
    """A server of the version before refuses a snapshot with a field that it does not know."""
    for value in (
        _Table(),
        _Table(rows={"a": 1}),
        _Table(count=2, rows={str(n): n for n in range(99)}),
    ):
        assert in_pieces(value) == encode(value)


@pytest.mark.parametrize("count", [0, 23, 24, 255, 256, 65_535, 65_536])
def test_a_list_in_pieces_begins_as_the_whole_does(count: int) -> None:
    """256 is the first number that does not fit into one byte."""
    rows: list[Plain] = [None] * count
    pieces = encode_fields([("rows", lambda: Rows(count, iter([rows])))])
    assert map_head(1) + b"".join(pieces) == closed_cbor.encode({"rows": rows})
