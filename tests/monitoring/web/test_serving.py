"""The page on the loopback: answers to browsers of this machine, also to misbehaving ones."""

import logging

import pytest
import trio
from tests.monitoring.http.test_http_connection import echo
from trio.testing import wait_all_tasks_blocked

from gpupool.monitoring.http.http_connection import Message
from gpupool.monitoring.web import serving
from gpupool.monitoring.web.serving import loopback_socket, serve_page

REQUEST = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


async def opened(nursery: trio.Nursery, application: object = echo) -> int:
    listener = loopback_socket(0)
    port: int = listener.getsockname()[1]
    await nursery.start(serve_page, application, listener)
    return port


async def said(stream: trio.SocketStream, end: bytes = b"} ", request: bytes = REQUEST) -> bytes:
    await stream.send_all(request)
    answer = b""
    while not answer.endswith(end):
        data = await stream.receive_some()
        assert data, answer
        answer += data
    return answer


async def test_a_browser_is_answered_until_the_page_ends(nursery: trio.Nursery) -> None:
    port = await opened(nursery)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for _ in range(2):
            answer = await said(stream)
            assert answer.startswith(b"HTTP/1.1 200 ") and b"GET /a 127.0.0.1" in answer
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert await stream.receive_some() == b""


async def test_no_http_2_is_spoken(nursery: trio.Nursery) -> None:
    port = await opened(nursery)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        answer = await said(stream, b"Bad Request\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
    nursery.cancel_scope.cancel()


async def test_a_fault_of_one_request_is_logged_and_ends_no_other(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(scope: Message, receive: object, send: object) -> None:
        raise ValueError("of the application")

    port = await opened(nursery, fails)
    with caplog.at_level(logging.ERROR, "gpupool.web"):
        for _ in range(2):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                answer = await said(stream, b"Error\n")
                assert answer.startswith(b"HTTP/1.1 500 ")
                assert await stream.receive_some() == b""
    assert [each.message for each in caplog.records] == ["a request could not be answered"] * 2
    nursery.cancel_scope.cancel()


async def test_connections_are_bounded(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 2)
    port = await opened(nursery)
    held = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
    for stream in held:
        assert await said(stream)
    async with await trio.open_tcp_stream("127.0.0.1", port) as one_more:
        assert await one_more.receive_some() == b""
    await held[0].aclose()
    await wait_all_tasks_blocked(0.05)
    async with await trio.open_tcp_stream("127.0.0.1", port) as one_more:
        assert await said(one_more)
    await held[1].aclose()
    nursery.cancel_scope.cancel()
