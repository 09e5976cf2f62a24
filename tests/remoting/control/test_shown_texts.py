"""No text of a server commands the user's terminal: a client cleans them where it decodes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import pytest
from tests.golden.samples import full
from tests.hostile_texts import HOSTILE, MARK, RAW, hostile, texts_in

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.connection import Connection, End, Phase
from gpupool.remoting.protocol.framing import dump, frame_bytes
from gpupool.remoting.protocol.messages.declaration import clean_line, clean_lines

FROM_SERVERS = [*m.all_of(m.Answer).values(), *m.all_of(m.Push).values()]
GREETINGS = (m.Welcome, m.CaCertificate)


def received(message: m.Message) -> m.Message:
    """Return a message of a server as a client has it."""
    frame = m.to_frame(0 if isinstance(message, m.Push) else 1, message, size_max=1 << 24)
    return received_frame(frame, type(message))


def received_frame(frame: bytes, kind: type[m.Message]) -> m.Message:
    client = Connection(End.CLIENT)
    client.send(1, m.Hello(m.PROTOCOL, "", full(m.Hello, "t").token, bytes(16), "ada@test"))
    if kind not in GREETINGS:
        welcome = m.to_frame(1, full(m.Welcome, "w"), size_max=4096)
        assert len(list(client.receive(welcome))) == 1
        assert client.phase is Phase.OPEN
    ((_call, message),) = client.receive(frame)
    return message


def others_in(value: Any) -> list[object]:
    """Return all that is no text in a message."""
    return [each for each in leaves(value) if type(each) is not str]


def leaves(value: Any) -> list[object]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [x for f in dataclasses.fields(value) for x in leaves(getattr(value, f.name))]
    if isinstance(value, Mapping):
        value = [x for item in cast("Mapping[Any, Any]", value).items() for x in item]
    if isinstance(value, tuple | list):
        return [x for each in cast("list[Any]", value) for x in leaves(each)]
    return [value]


@pytest.mark.parametrize("kind", FROM_SERVERS, ids=lambda kind: kind.__name__)
def test_no_text_of_any_message_of_a_server_has_what_commands_a_terminal(
    kind: type[m.Message],
) -> None:
    sent = hostile(full(kind, "1"))
    got = received(sent)
    assert type(got) is kind
    texts = texts_in(got)
    assert len(texts) == len(texts_in(sent))
    assert [text for text in texts if RAW.search(text)] == []
    assert all(text.startswith(MARK) for text in texts)
    assert all(("\n" in text) is kind.declared.lines for text in texts)
    assert others_in(got) == others_in(sent)


def test_texts_that_may_be_shown_stay_as_they_are() -> None:
    for text in ("", "gpu-1", "grün", "👩‍🔬 at\u00a0work", "\N{HEBREW LETTER ALEF}"):
        assert clean_line(text) == clean_lines(text) == text
    assert clean_lines("a\n\tb\r\nc") == "a\n\tb\r\nc"
    assert clean_line("a\nb\tc") == "a\ufffdb\ufffdc"


def test_a_field_with_a_name_that_commands_a_terminal_ends_the_connection() -> None:
    body = dump([1, {"note": "", HOSTILE: 1}])
    with pytest.raises(RemoteProtocolError):
        received_frame(frame_bytes(m.Done.declared.number, body, size_max=1 << 16), m.Done)


def test_a_server_reads_texts_as_they_were_sent() -> None:
    server = Connection(End.SERVER)
    hello = hostile(full(m.Hello, "t"))
    ((_call, message),) = server.receive(m.to_frame(1, hello, size_max=4096))
    assert message == hello
