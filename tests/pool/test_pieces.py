"""A table in pieces equals the whole table of ``codec``."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.cbor_pieces import encode_fields, map_head
from gpupool.pool.model import codec, pieces
from gpupool.pool.model.codec import OPTIONAL, CodecError, encode
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.pieces import ROW_COUNT, PieceDecoder, Rows, fields_of
from gpupool.pool.model.tables import PersistentMap


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
    parts = encode_fields([("rows", lambda: Rows(count, iter([rows])))])
    assert map_head(1) + b"".join(parts) == closed_cbor.encode({"rows": rows})


class _Key(Enum):
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class _Keyed:
    rows: dict[_Key, int]


def test_the_keys_of_a_map_in_pieces_are_encoded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "ROW_COUNT", 1)
    value = _Keyed({_Key.FIRST: 1, _Key.SECOND: 2})
    assert in_pieces(value) == encode(value) == {"rows": [["first", 1], ["second", 2]]}


@dataclass(frozen=True, slots=True)
class _Row:
    number: int


@dataclass(frozen=True, slots=True)
class _Full:
    name: str
    rows: PersistentMap[int, _Row]
    items: tuple[_Row, ...] = ()
    plain: dict[str, int] = field(default_factory=dict[str, int])


def full(count: int) -> _Full:
    rows = {number: _Row(number) for number in range(count)}
    plain = {str(number): number for number in range(count)}
    return _Full("full", PersistentMap(rows), tuple(rows.values()), plain)


@pytest.mark.parametrize("count", [0, 1, ROW_COUNT - 1, ROW_COUNT, ROW_COUNT + 1, 3 * ROW_COUNT])
def test_a_long_list_comes_in_pieces_and_a_short_one_whole(count: int) -> None:
    value = full(count)
    assert in_pieces(value) == encode(value)
    taken = {name: take() for name, take in fields_of(value)}
    assert taken["name"] == "full"
    for name in ("rows", "items", "plain"):
        each = taken[name]
        assert isinstance(each, Rows) is (count > ROW_COUNT)
        if isinstance(each, Rows):
            assert each.length == count
            sizes = [len(piece) for piece in each.pieces]
            assert all(sizes)
            assert max(sizes) == ROW_COUNT


@pytest.mark.parametrize("count", [1, ROW_COUNT + 1, 3 * ROW_COUNT])
def test_pieces_are_the_dataclass_again(count: int) -> None:
    value, decoder = full(count), PieceDecoder(_Full)
    for name, take in fields_of(value):
        plain = take()
        if isinstance(plain, Rows):
            decoder.begin_rows(name, plain.length)
            for piece in plain.pieces:
                decoder.rows(name, piece)
        else:
            decoder.field(name, plain)
    again = decoder.finish()
    assert again == value
    assert (type(again.rows), type(again.items), type(again.plain)) == (PersistentMap, tuple, dict)


def begun() -> PieceDecoder[_Full]:
    decoder = PieceDecoder(_Full)
    decoder.field("name", "full")
    decoder.begin_rows("rows", 2)
    decoder.rows("rows", [[1, {"number": 1}]])
    return decoder


def test_a_field_with_a_default_may_be_missing_and_no_other() -> None:
    assert begun().finish() == _Full("full", PersistentMap({1: _Row(1)}))
    decoder = PieceDecoder(_Full)
    decoder.begin_rows("rows", 0)
    with pytest.raises(CodecError, match=r"^_Full lacks 'name'$"):
        decoder.finish()
    decoder = PieceDecoder(_Full)
    decoder.field("name", "full")
    with pytest.raises(CodecError, match=r"^_Full lacks 'rows'$"):
        decoder.finish()


@pytest.mark.parametrize("name", ["name", "rows"])
def test_no_field_comes_twice(name: str) -> None:
    with pytest.raises(CodecError, match=f"^_Full: {name} comes twice$"):
        begun().field(name, "again")
    with pytest.raises(CodecError, match=f"^_Full: {name} comes twice$"):
        begun().begin_rows(name, 1)


def test_an_unknown_field_is_named_in_short() -> None:
    why = f"^_Full has no field {'x' * 40!r}$"
    with pytest.raises(CodecError, match=why):
        begun().field("x" * 50, 1)
    with pytest.raises(CodecError, match=why):
        begun().begin_rows("x" * 50, 1)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        (7, "_Full.items: expected list, got int"),
        ([{"number": ""}], "_Full.items: _Row.number: expected int, got str"),
    ],
)
def test_a_whole_field_is_checked(plain: Any, why: str) -> None:
    with pytest.raises(CodecError) as refused:
        begun().field("items", plain)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    ("name", "plain", "why"),
    [
        ("rows", [[1, {"number": 2}]], "_Full.rows: duplicate key"),
        ("rows", [[2, {"number": 2}], [1, {"number": 2}]], "_Full.rows: duplicate key"),
        ("rows", [[2]], "_Full.rows: expected a pair"),
        ("items", [7], "_Full.items: expected _Row, got int"),
    ],
)
def test_rows_are_checked(name: str, plain: Any, why: str) -> None:
    decoder = begun()
    decoder.begin_rows("items", 1)
    with pytest.raises(CodecError) as refused:
        decoder.rows(name, plain)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    ("name", "length", "is_list"),
    [("items", 2, True), ("plain", 2, True), ("items", 3, False), ("plain", 3, False)],
)
def test_only_a_list_of_a_bounded_length_begins(
    monkeypatch: pytest.MonkeyPatch, name: str, length: int, is_list: bool
) -> None:
    monkeypatch.setattr(codec, "ITEM_COUNT_MAX", 2)
    decoder = begun()
    if is_list:
        decoder.begin_rows(name, length)
        return
    with pytest.raises(CodecError, match=f"^_Full.{name}: it is no list of {length}$"):
        decoder.begin_rows(name, length)


def test_a_text_is_no_list_of_rows() -> None:
    with pytest.raises(CodecError, match=r"^_Full.name: it is no list of 1$"):
        PieceDecoder(_Full).begin_rows("name", 1)
