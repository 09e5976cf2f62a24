"""The hash of tables and their shape in figures: builds of one version must find the same ones."""

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NewType

import pytest
from tests.pool.policy_kit import whole_hash
from tests.pool.test_table_hash import OUTER, Blobs, Inner, Numbers, Outer

from gpupool.pool.model import codec
from gpupool.pool.model.codec import BLOB_BYTES, TableHash, shape_of
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.tables import PersistentMap

Name = NewType("Name", str)
Short = NewType("Short", Name)
LONG = b"x" * (BLOB_BYTES + 1)


class Kind(Enum):
    ONE = "one"
    TWO = "two"


@dataclass(frozen=True)
class Cell:
    maybe_ratio: float | None = None
    maybe_blob: bytes | None = None
    kind: Kind = Kind.ONE
    kinds: tuple[Kind, ...] = ()
    maybes: tuple[float | None, ...] = ()
    named: dict[Name, int] = field(default_factory=dict[Name, int])
    of_blobs: dict[bytes, Kind] = field(default_factory=dict[bytes, Kind])


@dataclass(frozen=True)
class Every:
    number: int = 7
    ratio: float = 1.5
    is_on: bool = True
    blob: bytes = b""
    maybe_ratio: float | None = None
    maybe_cell: Cell | None = None
    maybe_map: dict[Kind, float] | None = None
    cell: Cell = field(default_factory=Cell)
    by_kind: PersistentMap[Kind, bytes] = field(default_factory=PersistentMap[Kind, bytes])
    by_name: dict[Short, Cell] = field(default_factory=dict[Short, Cell])
    by_blob: dict[bytes, float | None] = field(default_factory=dict[bytes, float | None])
    listed: tuple[tuple[float, ...], ...] = ()


CELL = Cell(2.0, LONG, Kind.TWO, (Kind.TWO,), (1.0, None), {Name("n"): 1}, {LONG: Kind.ONE})
FULL = Every(
    8,
    2.5,
    False,
    LONG,
    3.0,
    CELL,
    {Kind.ONE: 1.0},
    CELL,
    PersistentMap({Kind.TWO: LONG}),
    {Short(Name("s")): CELL},
    {LONG: 4.0},
    ((1.0, 2.0),),
)


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        (OUTER, "9d5c516cd8d477307240671a1882deb4"),
        (Every(), "98899682d9172e98ffada373bdb9fb3e"),
        (FULL, "e8b4feed5f7859b9f135b39dbb9a12e9"),
        (Blobs((b"a", LONG)), "2288df12513754dbdc3337fd0cb71848"),
        (Numbers(), "00000000000000000000000000000000"),
    ],
)
def test_a_hash_is_the_same_in_every_build(value: object, digest: str) -> None:
    assert whole_hash(value).hex() == digest


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (Inner, 3_690_836_486),
        (Outer, 1_585_580_244),
        (Cell, 2_757_960_192),
        (Every, 1_790_547_894),
        (Numbers, 434_557_409),
    ],
)
def test_a_shape_is_the_same_in_every_build(kind: type[object], shape: int) -> None:
    assert shape_of(kind) == shape


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (Every(ratio=2.0), Every(ratio=2)),
        (Every(maybe_ratio=0.0), Every(maybe_ratio=-0.0)),
        (Every(cell=Cell(maybe_ratio=2.0)), Every(cell=Cell(maybe_ratio=2))),
        (Every(by_blob={b"k": 1.0}), Every(by_blob={b"k": 1})),
        (Every(maybe_map={Kind.ONE: 1.0}), Every(maybe_map={Kind.ONE: 1})),
        (Every(listed=((1.0, 2.0),)), Every(listed=((1, 2),))),
        (Every(cell=Cell(maybes=(1.0, None))), Every(cell=Cell(maybes=(1, None)))),
    ],
)
def test_an_integer_counts_as_the_float_that_it_equals(one: Every, same: Every) -> None:
    assert one == same
    assert whole_hash(one) == whole_hash(same)


@pytest.mark.parametrize("items", [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 2}])
def test_the_order_of_a_map_in_a_row_does_not_matter(items: dict[str, int]) -> None:
    names = {Name(key): item for key, item in items.items()}
    turned = dict(reversed(names.items()))
    assert [*names] != [*turned]
    rows = [Every(by_name={Short(Name("x")): Cell(named=each)}) for each in (names, turned)]
    assert whole_hash(rows[0]) == whole_hash(rows[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 9},
        {"ratio": math.pi},
        {"is_on": True},
        {"blob": LONG + b"x"},
        {"maybe_ratio": None},
        {"maybe_cell": None},
        {"maybe_map": None},
        {"maybe_map": {Kind.TWO: 1.0}},
        {"cell": replace(CELL, maybe_blob=None)},
        {"cell": replace(CELL, kinds=(Kind.ONE,))},
        {"cell": replace(CELL, maybes=(None, 1.0))},
        {"cell": replace(CELL, of_blobs={LONG: Kind.TWO})},
        {"by_kind": PersistentMap({Kind.ONE: LONG})},
        {"by_blob": {LONG + b"x": 4.0}},
        {"by_blob": {LONG: None}},
        {"listed": ((2.0, 1.0),)},
    ],
)
def test_each_part_of_a_value_counts(changes: dict[str, Any]) -> None:
    assert whole_hash(replace(FULL, **changes)) != whole_hash(FULL)


@dataclass(frozen=True)
class Pair:
    one: int
    two: int


@dataclass(frozen=True)
class Pairs:
    all: tuple[Pair, ...]


def test_each_field_of_a_row_of_two_counts() -> None:
    found = [whole_hash(Pairs((Pair(*each),))) for each in ((1, 2), (1, 3), (2, 2), (2, 1))]
    assert len({*found}) == 4


def test_a_field_of_several_types_has_no_place_in_a_table() -> None:
    @dataclass(frozen=True)
    class Wide:
        any: Plain = None

    with pytest.raises(TypeError, match="a table has no field of type"):
        shape_of(Wide)


def test_a_shape_is_never_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Unlucky:
        number: int = 0

    class Zero:
        def __init__(self, _: bytes, *, digest_size: int) -> None:
            self.size = digest_size

        def digest(self) -> bytes:
            return bytes(self.size)

    monkeypatch.setattr(codec, "blake2b", Zero)
    assert shape_of(Unlucky) == 1


@pytest.mark.parametrize(("more", "steps"), [(0, 3), (1, 2)])
def test_a_piece_ends_with_the_row_that_fills_it(
    monkeypatch: pytest.MonkeyPatch, more: int, steps: int
) -> None:
    row = len(ascii((".only", 0, b"aa")))
    monkeypatch.setattr(codec, "PIECE_BYTES", row + more)
    hashing, count = TableHash(Blobs((b"aa", b"bb"))), 1
    while hashing.step() is None:
        count += 1
    assert count == steps
