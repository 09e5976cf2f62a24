"""Ends of adjacent versions: ignored parts, refused parts, and the words of refusals."""

import dataclasses
import enum
import hashlib
import re
import typing
from collections.abc import Iterable
from typing import Any, cast

import pytest
from tests.cli.conftest import pool, server

from gpupool.pool.errors import AuthenticationError, RemoteProtocolError
from gpupool.pool.model import commands
from gpupool.pool.model.codec import CodecError, decode, encode, map_types
from gpupool.pool.model.commands import objection
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import LeaseId, ServerId, TokenId
from gpupool.pool.model.state import PoolState, Server, ServerStatus, TokenKind
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.view import PoolView
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.protocol.framing import dump, frame_bytes
from gpupool.remoting.server.service_context import check_protocol

HELLO = m.Hello(m.PROTOCOL, "9.9", TokenId("t"), bytes(32), "ada@laptop")
WELCOME = m.Welcome(m.PROTOCOL, "1", ServerId("s"), "name", "c", "pool", "ada", TokenKind.USER, ())

SHAPES = {
    "calls": (9, "bde9d5964e99"),
    "table": (12, "bef02db33b25"),
}
"""The versions, each with its recorded digest."""
MODULE = re.compile(r"gpupool(\.[a-z_]+)+\.")
OPTIONAL = re.compile(r"typing\.Optional\[([^][]+)]")
"""The module of a class is no part of the digest."""


def with_more(plain: Any) -> Any:
    """Return the same with a field more in every dataclass, as a newer program would write it."""
    if isinstance(plain, dict):
        fields = cast("dict[str, Any]", plain)
        return {name: with_more(each) for name, each in fields.items()} | {"newer": [1, {"a": 2}]}
    if isinstance(plain, list):
        return [with_more(each) for each in cast("list[Any]", plain)]
    return plain


def frame(number: int, call: int, fields: object) -> bytes:
    return frame_bytes(number, dump([call, cast(Any, fields)]), size_max=2**24)


def opened() -> tuple[Connection, Connection]:
    client, served = Connection(End.CLIENT), Connection(End.SERVER)
    list(served.receive(client.send(1, HELLO)))
    list(client.receive(served.send(1, WELCOME)))
    return client, served


def test_a_newer_servers_view_is_read() -> None:
    view = pool(server(0, ()), server(1, ()))
    plain = with_more(encode(view))
    assert decode(PoolView, plain, unknown_fields=True) == view
    with pytest.raises(CodecError, match="no field 'newer'"):
        decode(PoolView, plain)
    client, _ = opened()
    answer = frame(m.ViewNow.declared.number, 7, with_more(encode(m.ViewNow(view))))
    assert list(client.receive(answer)) == [(7, m.ViewNow(view))]


def test_what_a_newer_server_pushes_is_passed_over() -> None:
    client, served = opened()
    known = m.LeaseEnded(LeaseId(7), "over")
    unknown = frame(max(m.all_of(m.Message)) + 1, 0, {"what": "is this"})
    assert list(client.receive(unknown + served.send(0, known))) == [(0, known)]
    with pytest.raises(RemoteProtocolError, match="unknown message"):
        list(served.receive(unknown))  # no client pushes anything


def test_calls_are_read_strictly_and_openings_are_not() -> None:
    """So that a server can state its version in words."""
    served = Connection(End.SERVER)
    assert list(served.receive(frame(1, 1, with_more(encode(HELLO))))) == [(1, HELLO)]
    list(served.send(1, WELCOME))
    with pytest.raises(RemoteProtocolError, match="GetView has no field 'newer'"):
        list(served.receive(frame(m.GetView.declared.number, 2, with_more(encode(m.GetView())))))


def test_a_session_is_opened_for_a_client_that_sends_no_settings() -> None:
    """Of version 2."""
    _, served = opened()
    call = frame(m.OpenSession.declared.number, 2, {"lease": 7, "door": "cuda", "program": "x"})
    assert list(served.receive(call)) == [(2, m.OpenSession(LeaseId(7), "cuda", "x", {}))]


@pytest.mark.parametrize(
    ("protocol", "hint"),
    [
        (m.PROTOCOL + 1, "install gpupool 1.0 on this machine; or update the servers first"),
        (m.PROTOCOL_OLDEST - 1, "install gpupool 1.0 on this machine"),
    ],
)
def test_clients_of_another_protocol_are_told(protocol: int, hint: str) -> None:
    hello = dataclasses.replace(HELLO, protocol=protocol)
    with pytest.raises(AuthenticationError) as refused:
        check_protocol(hello, "gpu-1", "1.0")
    error = refused.value
    assert error.what == "gpupool 9.9 cannot talk to server gpu-1, which has gpupool 1.0"
    assert error.why == f"this server speaks version {m.PROTOCOL} of the protocol, not {protocol}"
    assert error.hint == hint
    for served in range(m.PROTOCOL_OLDEST, m.PROTOCOL + 1):
        check_protocol(dataclasses.replace(HELLO, protocol=served), "gpu-1", "1.0")


def shape_of(kinds: Iterable[type]) -> str:
    """Return a digest of the fields of dataclasses, and of all that these are made of."""
    lines: set[str] = set()
    todo: list[Any] = list(kinds)
    done: set[str] = set()
    while todo:
        kind = todo.pop()
        todo += typing.get_args(kind)
        while isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        if repr(kind) in done:
            continue
        done.add(repr(kind))
        if isinstance(kind, enum.EnumMeta):
            values = [each.value for each in cast("type[enum.Enum]", kind)]
            lines.add(f"{kind.__name__}: {values}")
        elif isinstance(kind, type) and dataclasses.is_dataclass(cast(Any, kind)):
            hints = typing.get_type_hints(kind)
            fields = [(f.name, _said(hints[f.name])) for f in dataclasses.fields(kind)]
            todo += [hint for _, hint in fields]
            names = [f"{name} {_text(hint)}" for name, hint in fields]
            lines.add(f"{kind.__name__}: {names}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:12]


def _text(hint: Any) -> str:
    """Return how Python 3.14 writes a type; older ones write some of the unions otherwise."""
    return OPTIONAL.sub(r"\1 | None", MODULE.sub("", str(hint)))


def _said(hint: Any) -> Any:
    """Return a dict for every kind of map, since they are all said alike."""
    of_map = map_types(hint)
    return hint if of_map is None else dict[of_map[1], of_map[2]]


@pytest.mark.parametrize("what", SHAPES)
def test_a_change_of_what_is_said_changes_the_version(what: str) -> None:
    """Servers and clients refuse each other by number, so that none misreads the other."""
    now = {
        "calls": (m.PROTOCOL, shape_of(m.all_of(m.Call).values())),
        "table": (VERSION, shape_of([*commands.KINDS.values(), PoolState])),
    }[what]
    name = {"calls": "messages.PROTOCOL", "table": "links.VERSION"}[what]
    assert now == SHAPES[what], f"let {name} grow, and record it here with its new shape"


# --- pools with an older server -------------------------------------------------------------------

SUSPENSION = (
    commands.SuspendLease,
    commands.ConfirmSuspended,
    commands.RefuseSuspension,
    commands.ResumeLease,
    commands.ConfirmResumed,
    commands.MoveLease,
)


def table_of(formats: int) -> PoolState:
    """Return a pool of two servers, of which the older one knows ``formats``."""
    servers = {
        ServerId(name): Server(
            ServerId(name), name, f"{name}:1", voter=True, status=ServerStatus.UP, formats=each
        )
        for name, each in (("new", VERSION), ("old", formats))
    }
    return PoolState(servers=PersistentMap(servers))


@pytest.mark.parametrize("command", SUSPENSION, ids=lambda each: each.__name__)
def test_an_older_server_gets_no_command_of_suspension(command: type[commands.Command]) -> None:
    name = commands.NAMES[command]
    assert "the oldest has 6" in objection(name, table_of(6).formats())
    assert not objection(name, table_of(7).formats())
