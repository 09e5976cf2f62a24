"""Everything read from the network or a paste: whole round trips, and refusals of all else."""

import base64
import hashlib
import os
import stat
import struct
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import PLAIN, examples

from gpupool.pool.errors import (
    AuthenticationError,
    GpupoolError,
    LocalProtocolError,
    RemoteProtocolError,
    StorageError,
    UsageError,
)
from gpupool.pool.model.bounds import SIGNED_MAX
from gpupool.pool.model.codec import encode
from gpupool.pool.model.ids import LeaseId, Plain, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.credentials import (
    Credentials,
    credentials_path,
    load_credentials,
    save_credentials,
)
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.connection import Connection, End, Phase
from gpupool.remoting.protocol.framing import (
    DEPTH_MAX,
    REQUEST_SIZE_MAX,
    UNAUTHENTICATED_SIZE_MAX,
    FrameReader,
    dump,
    frame_bytes,
    load,
)
from gpupool.remoting.protocol.token_text import TokenText, format_token, new_token, parse_token
from gpupool.remoting.server.listener.router import (
    HTTP_METHODS,
    ToPlainHttp,
    client_hello_name,
    route,
)

ADDRESSES = (Address("10.0.0.4", 7470), Address("fd00::4", 7470), Address("gpu-a", 80))
TOKEN = TokenText("cluster", TokenKind.USER, TokenId("0" * 12), bytes(32), bytes(32), ADDRESSES)


def is_sendable(message: m.Message) -> bool:
    """Return whether no number in it is one that nothing of ours ever sends: NaN, or too large."""

    def is_good(value: object) -> bool:
        if isinstance(value, dict):
            return all(map(is_good, cast("dict[str, object]", value).values()))
        if isinstance(value, list):
            return all(map(is_good, cast("list[object]", value)))
        if isinstance(value, int):
            return -(2**63) <= value < 2**64 and abs(value) != SIGNED_MAX  # trimmed to it
        return value == value

    try:
        return is_good(encode(message))
    except LocalProtocolError:
        return False  # beyond a bound


# Messages with whatever their types ask for.
MESSAGES = (
    st.sampled_from(list(m.all_of(m.Message).values()))
    .flatmap(lambda kind: st.builds(kind))
    .filter(is_sendable)
)


# --- CBOR ----------------------------------------------------------------------------------------


@given(PLAIN)
def test_plain_values_survive(value: Plain) -> None:
    assert load(dump(value)) == value


@given(st.binary(max_size=200))
@settings(max_examples=examples(500))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = load(data)
    except RemoteProtocolError:
        return
    assert load(dump(value)) == value or value != value  # NaN


@given(PLAIN, st.binary(min_size=1, max_size=5))
def test_nothing_may_follow_a_value(value: Plain, more: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        load(dump(value) + more)


@pytest.mark.parametrize("tag", [*range(64), 100, 256, 258, 260, 261, 1004, 43000, 55799, 10**9])
@pytest.mark.parametrize("inner", [1, "text", b"bytes", [1, 2], {"a": 1}])
def test_every_tag_is_refused(tag: int, inner: object) -> None:
    with pytest.raises(RemoteProtocolError):
        load(cbor2.dumps(cbor2.CBORTag(tag, inner)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x5f\x41a\xff",  # indefinite bytes
        b"\x9f\x01\xff",  # indefinite list
        b"\xbf\xff",  # indefinite map
        b"\xa2\x61a\x01\x61a\x02",  # a key twice
        b"\xa1\x01\x02",  # a key that is no text
        b"\xa1\x41a\x02",  # neither is bytes
        b"\xf7",  # undefined
        b"\xe0",  # simple value
        b"\x9b\x00\xff\xff\xff\xff\xff\xff\xff",  # a list of 2^56 items
        b"\x5b\x00\x00\x00\xff\xff\xff\xff\xff",  # bytes that are not there
        b"\x81" * 100 + b"\x00",  # too deep
    ],
)
def test_other_cbor_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        load(data)


def test_cbor_is_nested_as_deep_as_is_allowed_and_no_deeper() -> None:
    assert load(b"\x81" * DEPTH_MAX + b"\x00") is not None
    with pytest.raises(RemoteProtocolError):
        load(b"\x81" * (DEPTH_MAX + 1) + b"\x00")


# --- frames --------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=8),
    st.lists(st.integers(1, 30), max_size=30),
)
def test_frames_survive_any_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(frame_bytes(kind, body, size_max=50) for kind, body in frames)
    reader = FrameReader(50)
    found: list[tuple[int, bytes]] = []
    for cut in [*cuts, len(data)]:
        reader.feed(data[:cut])
        data = data[cut:]
        found += [(frame.kind, frame.body) for frame in reader.frames()]
    assert found == frames
    assert len(reader) == 0


def test_an_oversize_frame_is_refused_by_its_header() -> None:
    reader = FrameReader(100)
    reader.feed(struct.pack(">IB", 101, 0))
    with pytest.raises(RemoteProtocolError, match="101 bytes announced, at most 100"):
        reader.next()
    with pytest.raises(LocalProtocolError):
        frame_bytes(0, bytes(101), size_max=100)


# --- messages ------------------------------------------------------------------------------------


def test_every_error_crosses_as_itself() -> None:
    errors = [
        AuthenticationError("a", why="b", hint="c"),
        StorageError("a"),
        UsageError("a", hint="c"),
        GpupoolError("a"),
    ]
    for error in errors:
        back = m.to_error(m.refused(error))
        assert type(back) is type(error)
        assert (back.what, back.why, back.hint) == (error.what, error.why, error.hint)
    assert type(m.to_error(m.Refused("from-the-future", "what"))) is GpupoolError


# --- connections ---------------------------------------------------------------------------------

HELLO = m.Hello(m.PROTOCOL, "1", TokenId("t"), bytes(32), "ada@laptop")


def opened() -> tuple[Connection, Connection]:
    client, server = Connection(End.CLIENT), Connection(End.SERVER)
    assert list(server.receive(client.send(1, HELLO))) == [(1, HELLO)]
    welcome = m.Welcome(m.PROTOCOL, "1", "s", "name", "c", "pool", "ada", TokenKind.USER, ())  # type: ignore[arg-type]
    assert list(client.receive(server.send(1, welcome))) == [(1, welcome)]
    return client, server


def test_both_ends_walk_through_the_same_phases() -> None:
    client, server = opened()
    assert client.phase is server.phase is Phase.OPEN
    view = m.GetView()
    assert list(server.receive(client.send(2, view))) == [(2, view)]
    assert list(client.receive(server.send(2, m.Done()))) == [(2, m.Done())]
    push = m.LeaseEnded(7, "over")  # type: ignore[arg-type]
    assert list(client.receive(server.send(0, push))) == [(0, push)]


def test_a_push_to_many_is_encoded_once() -> None:
    """With 200 subscribers a server spent a third of its time on encoding the same again."""
    ends = [opened() for _ in range(3)]
    for reason in ("over", "over"):
        push = m.LeaseEnded(LeaseId(7), reason)
        frames = [server.send(0, push) for _, server in ends]
        assert {id(frame) for frame in frames} == {id(frames[0])}
        for (client, _), frame in zip(ends, frames, strict=True):
            assert list(client.receive(frame)) == [(0, push)]
        alive = weakref.ref(push)
        del push
        assert alive() is None, "an update has a view of the whole pool"


@given(MESSAGES, st.sampled_from([0, 1]))
@settings(max_examples=examples(200), deadline=None)
def test_nobody_sends_out_of_turn(message: m.Message, call: int) -> None:
    for end in End:
        fresh = Connection(end)
        if end is End.CLIENT and isinstance(message, m.Hello | m.FetchCa):
            continue
        with pytest.raises(LocalProtocolError):
            fresh.send(call, message)
        assert fresh.phase is Phase.CONNECTING
    client, server = opened()
    frame = m.to_frame(call, message, size_max=2**30)
    is_call = type(message) in m.all_of(m.Call).values()
    try:
        list(server.receive(frame))
        assert is_call
        assert call
    except RemoteProtocolError:
        assert server.phase is Phase.CLOSED
        assert not is_call or call == 0
        assert list(server.receive(client.send(3, m.GetView()))) == []


def test_strangers_get_less_room() -> None:
    server = Connection(End.SERVER)
    with pytest.raises(RemoteProtocolError, match="oversize"):
        list(server.receive(struct.pack(">IB", UNAUTHENTICATED_SIZE_MAX + 1, 1)))
    _client, server = opened()
    assert list(server.receive(struct.pack(">IB", REQUEST_SIZE_MAX, 32))) == []
    with pytest.raises(RemoteProtocolError, match="oversize"):
        list(opened()[1].receive(struct.pack(">IB", REQUEST_SIZE_MAX + 1, 32)))


# --- tokens --------------------------------------------------------------------------------------


@given(
    st.builds(
        TokenText,
        cluster_id=st.text(max_size=40),
        kind=st.sampled_from(TokenKind),
        token=st.text("0123456789abcdef", min_size=12, max_size=12).map(TokenId),
        secret=st.binary(min_size=32, max_size=32),
        ca_sha256=st.binary(min_size=32, max_size=32),
        addresses=st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=16).map(tuple),
    )
)
def test_tokens_survive_a_paste(token: TokenText) -> None:
    text = format_token(token)
    assert parse_token(text) == token
    assert parse_token(f"  {text[:50]}\n {text[50:].upper()}\n") == token
    assert text.isascii()
    assert " " not in text


def addresses(*texts: str) -> tuple[Address, ...]:
    return tuple(parse_address(text) for text in texts)


LONG = "gpu-server-01.example.internal"
POOLS = {
    "three of four": (addresses("10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7"), 3),
    "the longest of IPv4": (
        addresses("192.168.100.101", "192.168.100.102", "192.168.100.103"),
        3,
    ),
    "ports": (addresses("127.0.0.1:40957", "127.0.0.1:34193", "127.0.0.1:41621"), 3),
    "IPv6": (addresses("[2001:db8::1:10]", "[2001:db8::1:11]", "[2001:db8::1:12]"), 3),
    "names": (addresses(*(f"gpu-{n}.lab.example.org" for n in "123")), 3),
    "nothing in common": (addresses("a.example.org", "10.20.30.40", "b.test"), 2),
    "too long": (addresses(LONG, "10.20.30.40", "b.test"), 1),
}


@pytest.mark.parametrize("kind", TokenKind)
@pytest.mark.parametrize("pool", POOLS)
def test_a_short_token_comes_back(kind: TokenKind, pool: str) -> None:
    known, count = POOLS[pool]
    token = new_token(kind, bytes(range(16)), bytes(range(32)), known)
    text = format_token(token)
    assert len(text) < 120
    assert parse_token(text.upper().replace("GPUPOOL", "gpupool")) == token
    assert token.addresses == known[:count]
    assert token.ca_sha256 == bytes(range(16))
    assert "0102" not in repr(token)


HOSTS = st.text("ab.-1", min_size=1, max_size=12).filter(
    lambda host: all(host.removesuffix(".").split("."))
)


@given(
    st.lists(st.builds(Address, HOSTS, st.integers(1, 65535)), min_size=1, max_size=6, unique=True)
)
def test_short_tokens_of_any_pool_come_back(known: list[Address]) -> None:
    token = new_token(TokenKind.SERVER, bytes(16), bytes(16), tuple(known))
    assert len(format_token(token)) < 120
    assert parse_token(format_token(token)) == token


def test_a_short_token_that_is_cut_or_makes_no_sense() -> None:
    token = new_token(TokenKind.USER, bytes(16), bytes(16), ADDRESSES)
    for body in (
        b"\x21" + bytes(32),
        b"\x2f" + bytes(32) + b"\x01a",
        b"\x21" + bytes(32) + b"\x09a",
        b"\x29" + bytes(32) + b"\x01a\x01",
        b"\x29" + bytes(32) + b"\x01a\x01\x01\x01b",
        b"\x2c" + bytes(32) + b"\x01a",
    ):
        data = hashlib.sha256(body).digest()[:4] + body
        text = "gpupool-" + base64.b32encode(data).decode().rstrip("=").lower()
        with pytest.raises(AuthenticationError, match="malformed"):
            parse_token(text)
    with pytest.raises(AuthenticationError, match="damaged"):
        parse_token(format_token(token)[:-2])


@given(st.data())
def test_damaged_tokens_are_told_apart(data: st.DataObject) -> None:
    text = format_token(TOKEN)
    place = data.draw(st.integers(8, len(text) - 2))
    if data.draw(st.booleans()):
        damaged = text[:place]
    else:
        letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
        damaged = text[:place] + letter + text[place + 1 :]
    if damaged != text:
        with pytest.raises(AuthenticationError, match="the token is damaged"):
            parse_token(damaged)


@given(st.text(max_size=300) | st.text(max_size=300).map("gpupool-".__add__))
@settings(max_examples=examples(300))
def test_other_texts_are_no_tokens(text: str) -> None:
    with pytest.raises(AuthenticationError):
        parse_token(text)


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.4:80", "10.0.0.4", 80),
        ("gpu-a", "gpu-a", 7470),
        ("[fd00::4]:80", "fd00::4", 80),
        ("[fd00::4]", "fd00::4", 7470),
        ("fd00::4", "fd00::4", 7470),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert parse_address(str(parse_address(text))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":80", "a:", "a:0", "a:65536", "a:b", "[fd00::4", "[a]b", "a b", "a/b", "x" * 300),
        # Of these, name resolution would not say that it does not know them: it raises ValueError.
        *("²:²", "x" * 64, "a..b:7470", ".a", "İ" * 40),
    ],
)
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        parse_address(text)


# --- openings of connections ---------------------------------------------------------------------


@given(
    st.binary(max_size=300)
    | st.binary(max_size=300).map(b"\x16\x03\x01".__add__)
    | st.binary(max_size=30).map(b"GET /".__add__)
)
@settings(max_examples=examples(300))
def test_any_opening_is_routed_or_refused(data: bytes) -> None:
    try:
        found = route(data)
    except RemoteProtocolError:
        return
    assert isinstance(found, ToPlainHttp) == data.startswith(HTTP_METHODS)
    assert (
        found is None
        or isinstance(found, ToPlainHttp)
        or data.startswith((b"\x16", b"gpupool\x01"))
    )


def test_names_need_a_whole_client_hello() -> None:
    assert client_hello_name(b"\x16") is None


# --- credentials ---------------------------------------------------------------------------------

CREDENTIALS = Credentials("c", "lab", "ada", TokenId("0" * 12), bytes(32), "PEM", ADDRESSES)


def test_credentials_are_for_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "config" / "gpupool" / "credentials.json"
    save_credentials(path, CREDENTIALS)
    assert load_credentials(path) == CREDENTIALS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    save_credentials(path, replace(CREDENTIALS, user="bob"))
    assert load_credentials(path).user == "bob"
    assert os.listdir(path.parent) == ["credentials.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_readable_credentials_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "credentials.json"
    save_credentials(path, CREDENTIALS)
    path.chmod(mode)
    with pytest.raises(AuthenticationError, match="can be read by others") as caught:
        load_credentials(path)
    assert "chmod 600" in caught.value.hint


def test_no_credentials(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match="not logged in") as caught:
        load_credentials(tmp_path / "none.json")
    assert "gpupool login" in caught.value.hint


@given(PLAIN | st.dictionaries(st.sampled_from(["schema", "user", "secret"]), PLAIN))
def test_damaged_credentials_are_refused(tmp_path_factory: Any, value: Any) -> None:
    import json

    path = tmp_path_factory.mktemp("c") / "credentials.json"
    try:
        text = json.dumps(value)
    except TypeError:
        text = repr(value)
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(StorageError, match="is damaged"):
        load_credentials(path)


def test_where_credentials_are() -> None:
    assert credentials_path({"GPUPOOL_CREDENTIALS": "/x"}) == Path("/x")
    assert credentials_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/gpupool/credentials.json")
    home = credentials_path({"HOME": "/home/ada"})
    assert home == Path("/home/ada/.config/gpupool/credentials.json")
