"""Bounds of fields; ``test_message_families`` walks the messages that must have them."""

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.monitoring.frames import EXPORTER
from gpupool.monitoring.http.http_frames import TokenAsked
from gpupool.pool.errors import LocalProtocolError, RemoteProtocolError
from gpupool.pool.model.bounds import Bound, Count, Line, Name
from gpupool.pool.model.codec import CodecError, decode, encode, map_types
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.record_query import RecordQuery
from gpupool.pool.telemetry import SessionTelemetry, Telemetry
from gpupool.remoting.protocol import framing, token_text
from gpupool.remoting.protocol.messages import Call, Opening, all_of
from gpupool.remoting.protocol.worker_messages import WORKER, Connected, Log, Report, WorkerMessage


def trimmed(kind: Any, path: str) -> Iterator[str]:
    """Yield where a type has a value that is changed when it is sent beyond its bound."""
    args = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        args = tuple(hints[field.name] for field in dataclasses.fields(kind))
    for arg in args:
        if isinstance(arg, Bound) and arg.trims:
            yield path
        elif arg is not kind:
            yield from trimmed(arg, f"{path}.{getattr(arg, '__name__', '')}")


def unbounded(kind: Any, path: str) -> Iterator[str]:
    """Yield where a type has a text, an integer or bytes without a bound."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated and isinstance(args[1], Bound):
        inner = args[0]
        while isinstance(inner, typing.NewType):
            inner = inner.__supertype__
        if inner not in (int, str, bytes, float):
            yield from unbounded(inner, path)
    elif dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            yield from unbounded(hints[field.name], f"{path}.{field.name}")
    elif origin in (typing.Union, types.UnionType, tuple) or map_types(kind) is not None:
        for arg in args:
            if arg is not Ellipsis:
                yield from unbounded(arg, path)
    elif kind not in (bool, float, type(None)) and not (
        isinstance(kind, type) and issubclass(kind, enum.Enum)
    ):
        yield f"{path}: {kind}"


def test_no_question_is_changed_when_it_is_sent() -> None:
    """A lease of -1 was asked for, and each lease was told: -1 had become 0."""
    asked = (all_of(Opening) | all_of(Call)).values()
    assert [each for kind in asked for each in trimmed(kind, kind.__name__)] == []
    with pytest.raises(LocalProtocolError, match="this cannot be sent: a field is beyond"):
        encode(RecordQuery(lease=LeaseId(-1)))


def test_the_walk_finds_what_has_no_bound() -> None:
    @dataclasses.dataclass
    class Inner:
        good: Name
        number: int

    @dataclasses.dataclass
    class Outer:
        inner: tuple[Inner, ...]
        texts: dict[Name, str]
        maybe: bytes | None

    # A class of a function has no name that hints could be read by.
    Inner.__annotations__ = {"good": Name, "number": int}
    Outer.__annotations__ = {
        "inner": tuple[Inner, ...],
        "texts": dict[Name, str],
        "maybe": bytes | None,
    }
    found = {each.partition(":")[0] for each in unbounded(Outer, "Outer")}
    assert found == {"Outer.inner.number", "Outer.texts", "Outer.maybe"}


# --- both ways ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Said:
    """One of each."""

    name: Name = ""
    line: Line = ""
    count: Count = 0
    list_of: Annotated[tuple[Count, ...], Bound(2)] = ()
    maybe: Count | None = None


@pytest.mark.parametrize(
    "plain",
    [
        {"name": "x" * 257},
        {"line": "x" * 2004},
        {"count": -1},
        {"count": 2**56 + 1},
        {"list_of": [1, 2, 3]},
        {"list_of": [-1]},
        {"maybe": 2**64 - 1},
    ],
    ids=str,
)
def test_what_is_beyond_a_bound_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match=f"Said.{next(iter(plain))}: beyond its bound"):
        decode(Said, plain)


def test_what_is_only_told_is_trimmed_and_anything_else_is_not_sent() -> None:
    told = Said(line="x" * 3000, count=2**80, maybe=-5)
    assert decode(Said, encode(told)) == Said(line="x" * 2003, count=2**56, maybe=0)
    for each in (Said(name="x" * 257), Said(list_of=(1, 2, 3))):
        with pytest.raises(LocalProtocolError, match="this cannot be sent: a field is beyond"):
            encode(each)


def test_no_figure_is_infinite_or_no_number() -> None:
    """A peer's telemetry ended the views of clients that rounded it."""
    told = [math.nan, math.inf, -math.inf, 1.5]
    plain = [encode(Telemetry(ServerId("a"), Milliseconds(1), loop_lag_s=each)) for each in told]
    found = [decode(Telemetry, each).loop_lag_s for each in plain]
    assert found == [0.0, 2**53, -(2**53), 1.5]
    for each in told[:3]:
        with pytest.raises(CodecError, match="loop_lag_s: beyond its bound"):
            decode(Telemetry, {**cast("dict[str, Any]", plain[3]), "loop_lag_s": each})


def test_sums_are_told_as_the_most_that_is_read() -> None:
    """Two workers' numbers made a sum that no client and no exporter could read."""
    both = 2 * (2**64 - 1)
    session = SessionTelemetry(LeaseId(1), 2, both, both, both, memory_reserved=both)
    telemetry = Telemetry(ServerId("a"), Milliseconds(1), sessions=(session,))
    found = decode(Telemetry, framing.load(framing.dump(encode(telemetry))))
    assert found.sessions[0].calls == found.sessions[0].bytes_in == 2**63 - 1


def test_the_longest_token_reaches_the_server() -> None:
    asked = TokenAsked(1, 2, "x" * token_text.TEXT_LENGTH_MAX)
    reader = EXPORTER.reader()
    reader.feed(EXPORTER.encode(asked))
    assert [EXPORTER.decode(TokenAsked, frame) for frame in reader.frames()] == [asked]


def worker_frame(kind: type[Any], **fields: Any) -> framing.Frame:
    return framing.Frame(kind.declared.number, framing.dump(fields))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Connected, {"transport": "tls" + "x" * 47_000}),
        (Log, {"text": "x" * 40_000}),
        (Report, {"calls": 2**64 - 1, "bytes_in": 0, "bytes_out": 0}),
        (Report, {"calls": -1, "bytes_in": 0, "bytes_out": 0}),
        (Report, {"calls": 0, "bytes_in": 0, "bytes_out": 0, "wait_us": 2**43 + 1}),
        (Report, {"calls": 0, "bytes_in": 0, "bytes_out": 0, "rtt_us": 2**32}),
    ],
)
def test_a_worker_that_says_more_breaks_the_protocol(
    kind: type[Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed message"):
        WORKER.decode(WorkerMessage, worker_frame(kind, **fields))


# --- what can be sent can be read -----------------------------------------------------------------

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([2**64, 2**64 - 1, -(2**64), -(2**64) - 1])
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.binary(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=40,
)


@given(values, st.integers(0, 20))
def test_what_is_dumped_is_loaded_as_it_was(value: Any, levels: int) -> None:
    for _ in range(levels):
        value = [value]
    try:
        data = framing.dump(value)
    except LocalProtocolError:
        return
    assert framing.load(data) == value


@pytest.mark.parametrize("value", [2**64, -(2**64) - 1, "\ud800", {1: 2}, (1,), {"a": object()}])
def test_what_nobody_would_read_is_not_dumped(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match="this cannot be sent"):
        framing.dump(value)
