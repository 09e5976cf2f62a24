"""The control protocol has the bytes that commit 70ed747 gave it, both ways."""

from pathlib import Path

import pytest
from tests.golden import control_samples as samples
from tests.golden.recorded import check, read

from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.protocol import connection, framing, handshake, messages
from gpupool.remoting.protocol.token_text import parse_token
from gpupool.remoting.server.listener.router import PLAIN_MAGIC

FILE = "control.txt"


def test_every_message_has_its_recorded_bytes() -> None:
    check(FILE, samples.everything())


def test_recorded_frames_are_read_as_what_was_sent() -> None:
    recorded = read(FILE)
    for name, (call, message) in samples.samples().items():
        reader = framing.FrameReader(samples.SIZE_MAX)
        reader.feed(recorded[name])
        (frame,) = reader.frames()
        assert frame.kind == int(name.split()[1])
        assert messages.from_body(frame.kind, frame.body) == (call, message), name
    assert framing.load(recorded["plain values"]) == samples.PLAIN


def test_no_message_is_without_a_number_and_a_sample() -> None:
    assert len(samples.KINDS) == sum(map(len, samples.TABLES.values()))
    recorded = {int(name.split()[1]) for name in read(FILE) if name.endswith(" full")}
    assert recorded == set(samples.KINDS)


def test_recorded_errors_are_read_as_what_was_meant() -> None:
    recorded = read(FILE)
    for code, kind in samples.error_kinds().items():
        frame = recorded[f"error {code}"]
        _call, message = messages.from_body(frame[4], frame[5:])
        assert isinstance(message, messages.Refused)
        error = messages.to_error(message)
        assert error.code == code
        assert (error.what, error.why, error.hint) == ("what", "why", "hint")
        assert error.exit_code == int(recorded[f"error {code} exit"])
        assert isinstance(error, kind)


def test_recorded_conversation_is_one_to_both_ends() -> None:
    recorded, sampled = read(FILE), samples.samples()
    server = connection.Connection(connection.End.SERVER)
    client = connection.Connection(connection.End.CLIENT)
    hello, welcome = recorded["opening 1 full"], recorded["answer 128 full"]
    assert len(list(server.receive(hello))) == 1
    client.send(*sampled["opening 1 full"])
    assert server.send(*sampled["answer 128 full"]) == welcome
    assert len(list(client.receive(welcome))) == 1
    for name, frame in recorded.items():
        if name.startswith("call ") and name.endswith((" full", " bare")):
            assert list(server.receive(frame)) == [sampled[name]], name
        # The two that only greet are out of turn here.
        is_greeting = name.startswith(("answer 128", "answer 129"))
        if name.startswith(("answer ", "push ")) and not is_greeting:
            assert list(client.receive(frame)) == [sampled[name]], name


@pytest.mark.parametrize("kind", TokenKind, ids=lambda kind: kind.value)
def test_recorded_tokens_and_credentials_are_read(kind: TokenKind, tmp_path: Path) -> None:
    recorded = read(FILE)
    assert parse_token(recorded[f"token {kind.value}"].decode()) == samples.TOKENS[kind.value]
    path = tmp_path / "credentials.json"
    path.write_bytes(recorded["credentials"])
    path.chmod(0o600)
    assert load_credentials(path) == samples.CREDENTIALS


def test_first_bytes_of_data_connections_are_known_to_the_router() -> None:
    assert PLAIN_MAGIC == handshake.PREAMBLE == b"gpupool\x01"
