"""Connections for HTTPS that have ended have no TLS left, without the garbage collector's help."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from tests.monitoring.http.web_kit import get, served
from tests.remoting.control.control_kit import until
from tests.remoting.control.test_control_trust import DEADLINE_S, first_flight
from tests.remoting.control.test_stranger_memory import COUNT, ends_of_servers, nothing_collected

from gpupool.monitoring.http import http_connection, http_door

TlsStream = trio.SSLStream[trio.SocketStream]


async def say_nothing_more(_tls: TlsStream) -> None:
    """Leave it to the exporter to end."""


async def hang_up(tls: TlsStream) -> None:
    await trio.aclose_forcefully(tls)


async def talk_nonsense(tls: TlsStream) -> None:
    await tls.send_all(b"\xff\r\n\r\n")


async def ask_half(tls: TlsStream) -> None:
    await tls.send_all(b"GET /heal")


async def send_half_a_body(tls: TlsStream) -> None:
    await tls.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")


async def try_a_token(tls: TlsStream) -> None:
    assert (await get(tls, "/sd", "gpupool-wrong", {"connection": "close"}))[0] == 401


@pytest.mark.parametrize(
    "go_on",
    [say_nothing_more, hang_up, talk_nonsense, ask_half, send_half_a_body, try_a_token],
)
async def test_one_who_has_ended_leaves_no_tls_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_on: Callable[[TlsStream], Awaitable[None]]
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_S", 0.2)
    async with served(tmp_path) as web:
        assert (await web.get("/healthz"))[0] == 503  # all that is made once is there
        with nothing_collected():
            before = ends_of_servers()
            for _ in range(COUNT):
                tls = await web.open()
                web.lab.open.append(tls.transport_stream)
                await go_on(tls)
            with trio.fail_after(DEADLINE_S):
                await until(lambda: ends_of_servers() <= before)


async def test_half_a_handshake_leaves_no_tls_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_door, "HANDSHAKE_S", 0.2)
    async with served(tmp_path) as web:
        assert (await web.get("/healthz"))[0] == 503
        with nothing_collected():
            before = ends_of_servers()
            for _ in range(COUNT):
                stream = await web.lab.tcp()
                await stream.send_all(first_flight("gpu-1"))
                assert await stream.receive_some()
            with trio.fail_after(DEADLINE_S):
                await until(lambda: ends_of_servers() <= before)
