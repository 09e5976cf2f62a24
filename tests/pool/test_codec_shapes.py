"""What each shape of a field becomes in its plain form, and that it comes back."""

from dataclasses import dataclass, field

import pytest

from gpupool.pool.model import codec
from gpupool.pool.model.codec import OPTIONAL, CodecError, decode, encode


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
