"""All messages of all families: they cross as they are, and anything else is refused.

The messages come from their declarations (``message_family``), so none can be forgotten here.
"""

import importlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden.samples import bare, full
from tests.properties import PLAIN, examples
from tests.test_decoders import changed
from tests.test_message_bounds import unbounded

from gpupool.pool.errors import LocalProtocolError, RemoteProtocolError
from gpupool.pool.model.ids import Plain
from gpupool.remoting.protocol import messages as control
from gpupool.remoting.protocol.framing import Frame, dump, load
from gpupool.remoting.protocol.message_family import Family, FrameFamily, Message, PacketFamily

for declaring in (
    "monitoring.http.http_frames",
    "monitoring.exporter",
    "remoting.protocol.helper_messages",
    "remoting.protocol.signer_messages",
    "remoting.protocol.worker_messages",
):
    importlib.import_module(f"gpupool.{declaring}")
control.declaration.declare_all()
ENDS = {f"{f.name}: {end.__name__}": end for f in Family.every for end in f.ends}
# The size of its frame bounds each field of what a client or a server says.
BOUNDED = {name: end for name, end in ENDS.items() if end is not control.Message}
KINDS = [pytest.param(kind, id=f"{end} {n}") for end in ENDS for n, kind in ENDS[end].kinds.items()]


def sent(message: Message, call: int = 7) -> bytes:
    """Return a message on its way, from its number on."""
    match message.family:
        case FrameFamily() as family:
            return family.encode(message)[4:]
        case PacketFamily() as family:
            return family.encode(message, call if family.call_size else 0)
        case _:
            assert isinstance(message, control.Message)
            return control.to_frame(call, message, size_max=2**30)[4:]


def received(end: type[Message], data: bytes) -> Message:
    """Return the message that arrives."""
    match end.family:
        case FrameFamily() as family:
            return family.decode(end, Frame(data[0] if data else 0, data[1:]))
        case PacketFamily() as family:
            return family.decode(end, data)[1]
        case _:
            return control.from_body(data[0] if data else 0, data[1:])[1]


def samples(end: type[Message]) -> Iterator[Message]:
    for number, kind in end.kinds.items():
        yield full(kind, str(number))
        yield bare(kind)


def test_no_family_is_empty() -> None:
    assert {family.name for family in Family.every} == {
        *("control", "keeper", "signer", "worker", "observer")
    }
    assert all(end.kinds for end in ENDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_each_message_is_read_as_it_was_sent(kind: type[Message]) -> None:
    for message in (full(kind, str(kind.declared.number)), bare(kind)):
        assert received(kind, sent(message)) == message
        for wrong in (sent(message)[:-1], sent(message) + b"\0", sent(message)[:1]):
            with pytest.raises(RemoteProtocolError):
                received(kind, wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_has_a_field_that_is_not_declared(kind: type[Message]) -> None:
    """Only a client passes over a newer server's additions, and a server those of openings."""
    message = bare(kind)
    head, plain = split(message)
    fields = fields_of(plain)
    data = head + dump(_with(plain, {**fields, "newer": [1]}))
    if kind.passes_over:
        assert received(kind, data) == message
    else:
        with pytest.raises(RemoteProtocolError, match="has no field 'newer'"):
            received(kind, data)


def split(message: Message) -> tuple[bytes, Any]:
    """Return the bytes before the CBOR of a message, and the decoded CBOR."""
    data = sent(message)
    size = 1 + (message.family.call_size if isinstance(message.family, PacketFamily) else 0)
    return data[:size], load(data[size:])


def fields_of(plain: Any) -> dict[str, Any]:
    return cast(Any, plain[1] if type(plain) is list else plain)


def _with(plain: Any, fields: Plain) -> Plain:
    return [plain[0], fields] if type(plain) is list else fields


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_anything_is_a_message_or_refused(end: type[Message], data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(list(samples(end))))
    head, plain = split(message)
    fields = fields_of(plain)
    key = data.draw(st.sampled_from([*fields, "extra"]))
    said = data.draw(
        st.one_of(
            changed(sent(message)),
            st.binary(max_size=200),
            PLAIN.map(lambda value: head + dump(_with(plain, value))),
            PLAIN.map(lambda value: head + dump(_with(plain, {**fields, key: value}))),
        )
    )
    try:
        found = received(end, said)
    except RemoteProtocolError:
        return
    assert received(end, sent(found)) == found


@pytest.mark.parametrize("end", BOUNDED.values(), ids=BOUNDED)
def test_nothing_larger_than_the_other_end_takes_is_sent(
    end: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = next(samples(end))
    monkeypatch.setattr(end.family, "size_max", len(sent(message)) - 2)
    with pytest.raises(LocalProtocolError, match=r"frame too large|oversize packet"):
        sent(message)


@pytest.mark.parametrize("end", BOUNDED.values(), ids=BOUNDED)
def test_each_field_of_each_message_has_a_bound(end: type[Message]) -> None:
    found = [each for kind in end.kinds.values() for each in unbounded(kind, kind.__name__)]
    assert found == []
