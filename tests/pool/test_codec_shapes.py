"""The plain form of each shape of a field, and its way back."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from gpupool.pool.model import codec
from gpupool.pool.model.codec import OPTIONAL, CodecError, decode, decoder_of, encode, encoder_of
from gpupool.pool.model.ids import LeaseId, Plain
from gpupool.pool.model.tables import PersistentMap, WaitingTable


@dataclass(frozen=True, slots=True)
class Inner:
    number: int


@dataclass(frozen=True, slots=True)
class Shapes:
    maybe: Inner | None
    inners: tuple[Inner, ...]
    names: tuple[str, ...]
    maybe_number: int | None
    late: int = field(default=7, metadata=OPTIONAL)


def test_a_value_that_may_be_missing_is_encoded_as_what_it_is() -> None:
    value = Shapes(Inner(1), (Inner(2), Inner(3)), ("a", "b"), 4)
    plain = encode(value)
    assert plain == {
        "maybe": {"number": 1},
        "inners": [{"number": 2}, {"number": 3}],
        "names": ["a", "b"],
        "maybe_number": 4,
    }
    assert decode(Shapes, plain) == value
    nothing = Shapes(None, (), (), None, 8)
    empty: dict[str, object] = {
        "maybe": None,
        "inners": [],
        "names": [],
        "maybe_number": None,
        "late": 8,
    }
    assert encode(nothing) == empty
    assert decode(Shapes, empty) == nothing


@pytest.mark.parametrize("name", ["maybe", "inners", "names", "maybe_number"])
def test_only_an_optional_field_may_be_missing(name: str) -> None:
    plain = encode(Shapes(Inner(1), (), (), 4))
    assert isinstance(plain, dict)
    del plain[name]
    with pytest.raises(CodecError):
        decode(Shapes, plain)


@dataclass(frozen=True, slots=True)
class Listed:
    items: tuple[int, ...]


def test_a_list_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "ITEM_COUNT_MAX", 2)
    assert decode(Listed, {"items": [1, 2]}) == Listed((1, 2))
    with pytest.raises(CodecError, match="list too long"):
        decode(Listed, {"items": [1, 2, 3]})


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Wide:
    either: tuple[int, ...] | str | None
    any: Plain
    what: object


@pytest.mark.parametrize("each", [None, True, 7, 0.5, "text", b"bytes", [1], {"a": [None]}])
def test_a_field_of_several_types_is_taken_as_it_is(each: Any) -> None:
    plain = {"either": each, "any": each, "what": each}
    assert encode(Wide(each, each, each)) == plain
    assert decode(Wide, plain) == Wide(each, each, each)


@dataclass(frozen=True, slots=True)
class Single:
    only: Colour


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [(Single, Single(Colour.BLUE), {"only": "blue"}), (Nothing, Nothing(), {})],
)
def test_a_dataclass_of_few_fields_is_a_dict_as_any_other(
    kind: type[object], value: object, plain: Any
) -> None:
    assert encode(value) == plain
    assert decode(kind, plain) == value


@dataclass(frozen=True, slots=True)
class Typed:
    number: int = 0
    ratio: float = 0.0
    is_on: bool = False
    text: str = ""
    blob: bytes = b""
    lease: LeaseId = LeaseId(0)
    maybe: int | None = None
    items: tuple[int, ...] = ()
    colour: Colour = Colour.RED
    named: dict[str, int] = field(default_factory=dict[str, int])
    inner: Inner = Inner(1)
    maybe_colour: Colour | None = None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("number", True, "expected int, got bool"),
        ("number", 1.0, "expected int, got float"),
        ("number", "1", "expected int, got str"),
        ("number", None, "expected int, got NoneType"),
        ("number", 2**64, "integer out of range"),
        ("number", -(2**64), "integer out of range"),
        ("ratio", "1", "expected float, got str"),
        ("ratio", True, "expected float, got bool"),
        ("is_on", 1, "expected bool, got int"),
        ("text", b"", "expected str, got bytes"),
        ("blob", "", "expected bytes, got str"),
        ("lease", "1", "expected int, got str"),
        ("maybe", "1", "expected int, got str"),
        ("items", (1,), "expected list, got tuple"),
        ("items", ["1"], "expected int, got str"),
        ("colour", "green", "unknown Colour"),
        ("colour", ["red"], "unknown Colour"),
        ("maybe_colour", "green", "unknown Colour"),
        ("named", {"a": 1}, "expected list, got dict"),
        ("named", [{"a": 1}], "expected list, got dict"),
        ("named", [["a"]], "expected a pair"),
        ("named", [["a", 1, 2]], "expected a pair"),
        ("named", [[1, 1]], "expected str, got int"),
        ("named", [["a", "1"]], "expected int, got str"),
        ("named", [["a", 1], ["a", 2]], "duplicate key"),
        ("inner", [], "expected Inner, got list"),
        ("inner", {}, "Inner lacks 'number'"),
        ("inner", {"number": ""}, "Inner.number: expected int, got str"),
        ("inner", {"number": 1, "x": 1}, "Inner has no field 'x'"),
    ],
)
def test_what_is_not_of_its_type_is_refused_with_its_place(name: str, value: Any, why: str) -> None:
    with pytest.raises(CodecError) as refused:
        decode(Typed, {name: value})
    assert str(refused.value) == f"Typed.{name}: {why}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", 2**64 - 1),
        ("number", 1 - 2**64),
        ("ratio", 0.5),
        ("is_on", True),
        ("text", "a"),
        ("blob", b"a"),
        ("lease", 5),
        ("maybe", None),
        ("maybe", 3),
        ("items", []),
        ("items", [1, 2]),
        ("colour", "blue"),
        ("maybe_colour", "blue"),
        ("maybe_colour", None),
        ("named", [["a", 1], ["b", 2]]),
        ("inner", {"number": 3}),
    ],
)
def test_what_is_of_its_type_comes_back_as_it_was(name: str, value: Any) -> None:
    plain = encode(decode(Typed, {name: value}))
    assert isinstance(plain, dict)
    assert plain[name] == value
    others = {key: each for key, each in plain.items() if key != name}
    assert encode(decode(Typed, others)) == encode(Typed())


def test_a_whole_number_is_a_float_where_one_is_due() -> None:
    found = decode(Typed, {"ratio": 2}).ratio
    assert (found, type(found)) == (2.0, float)


def test_unknown_fields_are_passed_over_by_who_asks_for_it_only() -> None:
    plain: Any = {"newer": 4, "number": 1, "inner": {"newer": 3, "number": 2}}
    assert decode(Typed, plain, unknown_fields=True) == Typed(1, inner=Inner(2))
    with pytest.raises(CodecError, match=r"Typed\.inner: Inner has no field 'newer'"):
        decode(Typed, {"inner": plain["inner"]})
    with pytest.raises(CodecError, match="Typed has no field 'newer'"):
        decode(Typed, plain)
    with pytest.raises(CodecError, match="Inner has no field 'newer'"):
        decoder_of(Inner)({"number": 1, "newer": 2})
    with pytest.raises(CodecError) as refused:
        decode(Inner, {"number": 1, "x" * 50: 2})
    assert str(refused.value) == f"Inner has no field {'x' * 40!r}"


@dataclass(frozen=True, slots=True)
class Maps:
    plain: dict[LeaseId, Inner]
    rows: PersistentMap[str, Colour]
    waiting: WaitingTable[Any]


def test_a_map_comes_back_as_one_of_its_class() -> None:
    value = Maps({LeaseId(1): Inner(2)}, PersistentMap({"a": Colour.RED}), WaitingTable())
    plain = encode(value)
    assert plain == {"plain": [[1, {"number": 2}]], "rows": [["a", "red"]], "waiting": []}
    again = decode(Maps, plain)
    assert again == value
    kinds = [type(each) for each in (again.plain, again.rows, again.waiting)]
    assert kinds == [dict, PersistentMap, WaitingTable]


def test_a_table_names_the_type_of_its_keys_itself() -> None:
    plain: Any = [[b"request", {"number": 1}]]
    decoder = decoder_of(PersistentMap[bytes, Inner])
    assert encoder_of(WaitingTable[Any])(decoder(plain)) == [[b"request", Inner(1)]]
    with pytest.raises(CodecError, match="expected bytes, got str"):
        decoder_of(WaitingTable[Any])([["request", {"number": 1}]])


def test_parts_of_a_dataclass_are_coded_as_inside_of_it() -> None:
    kind = tuple[Inner | None, ...]
    assert encoder_of(kind)((Inner(1), None)) == [{"number": 1}, None]
    assert decoder_of(kind)([{"number": 1}, None]) == (Inner(1), None)
