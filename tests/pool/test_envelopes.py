"""Envelopes of commands: their content in the log, and the refused ones when read."""

from typing import Any

import pytest

from gpupool.pool.model.codec import CodecError
from gpupool.pool.model.commands import Envelope, Tick, unwrap, wrap
from gpupool.pool.model.ids import Milliseconds

GOOD: dict[str, Any] = {"v": 1, "t": 1000, "x": 1500, "k": "tick", "c": {}}


def test_a_command_has_its_time_and_its_deadline() -> None:
    assert wrap(Tick(), at_ms=1000, ttl_ms=500) == GOOD
    assert unwrap(GOOD) == Envelope(Tick(), Milliseconds(1000), Milliseconds(1500), 0)


def test_a_command_without_a_deadline_never_expires() -> None:
    plain = wrap(Tick(), at_ms=1000, ttl_ms=0)
    assert plain == {**GOOD, "x": 0}
    assert unwrap(plain).expires == 0


def test_an_era_is_written_where_there_was_one() -> None:
    plain = wrap(Tick(), at_ms=1000, ttl_ms=500, era=3)
    assert plain == {**GOOD, "e": 3}
    assert unwrap(plain).era == 3


@pytest.mark.parametrize("plain", [None, [], "tick", 1, {}, {**GOOD, "y": 1}])
def test_what_is_no_envelope_is_refused(plain: Any) -> None:
    with pytest.raises(CodecError, match=r"^not an envelope$"):
        unwrap(plain)


@pytest.mark.parametrize("key", GOOD)
def test_an_envelope_lacks_nothing(key: str) -> None:
    plain: Any = {name: each for name, each in GOOD.items() if name != key}
    with pytest.raises(CodecError, match=r"^not an envelope$"):
        unwrap(plain)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_envelope_of_another_version_is_refused(version: Any) -> None:
    with pytest.raises(CodecError, match=f"^envelope version {version}, this server knows 1$"):
        unwrap({**GOOD, "v": version})


@pytest.mark.parametrize("key", ["t", "x", "e", "k"])
@pytest.mark.parametrize("value", [True, 1.0, b"tick", None, []])
def test_a_part_of_an_envelope_has_its_type(key: str, value: Any) -> None:
    with pytest.raises(CodecError, match=r"^envelope fields of the wrong type$"):
        unwrap({**GOOD, key: value})


@pytest.mark.parametrize("key", ["t", "x", "e"])
def test_a_time_is_no_text(key: str) -> None:
    with pytest.raises(CodecError, match=r"^envelope fields of the wrong type$"):
        unwrap({**GOOD, key: "1000"})


def test_an_unknown_command_is_named_in_short() -> None:
    with pytest.raises(CodecError) as refused:
        unwrap({**GOOD, "k": "x" * 50})
    assert str(refused.value) == f"unknown command {'x' * 40!r}"


def test_the_command_itself_is_checked() -> None:
    with pytest.raises(CodecError, match="has no field 'more'"):
        unwrap({**GOOD, "c": {"more": 1}})
