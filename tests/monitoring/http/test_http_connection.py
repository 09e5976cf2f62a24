"""One HTTPS connection: its answers, also to slow, large or hostile requests."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from gpupool.monitoring.http.http_connection import (
    ANSWER_S,
    HEADERS_MAX,
    IDLE_S,
    REQUEST_S,
    Message,
    serve_http,
)

Clock = trio.testing.MockClock
OK = b"HTTP/1.1 200 OK\r\n"


async def echo(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Answer with the received request."""
    body = bytes((await receive())["body"])
    said = f"{scope['method']} {scope['path']} {scope['client'][0]} {scope['state']} ".encode()
    headers = [(b"content-length", str(len(said + body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said + body})


class Browser:
    """The other end."""

    def __init__(self, nursery: trio.Nursery, application: object = echo) -> None:
        self.stream, theirs = trio.testing.memory_stream_pair()
        self.ended = trio.Event()

        async def serve() -> None:
            try:
                await serve_http(
                    theirs,
                    application,  # type: ignore[arg-type]
                    client="10.0.0.7",
                    number=3,
                )
            finally:
                self.ended.set()

        nursery.start_soon(serve)

    async def says(self, data: bytes) -> bytes:
        """Send, and return the received bytes when everything is quiet."""
        await self.stream.send_all(data)
        return await self.hears()

    async def hears(self) -> bytes:
        await trio.testing.wait_all_tasks_blocked()
        found = b""
        with trio.move_on_after(0.001):
            while data := await self.stream.receive_some():
                found += bytes(data)
        return found


async def test_requests_of_one_connection_are_answered_in_turn(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    browser = Browser(nursery)
    said = b"GET /a%20b HTTP/1.1 10.0.0.7"
    for _ in range(2):
        answer = await browser.says(b"GET /a%20b?x=1 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer.startswith(OK)
        assert answer.endswith(b"GET /a b 10.0.0.7 {'connection': 3} "), said
    head = await browser.says(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert head.startswith(OK)
    assert head.endswith(b"\r\n\r\n")
    post = await browser.says(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody")
    assert post.endswith(b"body")
    waits = await browser.says(
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n"
    )
    assert waits.startswith(b"HTTP/1.1 100 ")
    assert (await browser.says(b"more")).endswith(b"more")
    await browser.says(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    await browser.ended.wait()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * HEADERS_MAX, b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\n\r\n" + b"x" * 70000, b"413"),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            + (b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * 5,
            b"413",
        ),
        (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"400"),
    ],
)
async def test_what_is_too_large_or_no_http_ends_the_connection(
    autojump_clock: Clock, nursery: trio.Nursery, request_: bytes, status: bytes
) -> None:
    browser = Browser(nursery)
    answer = await browser.says(request_)
    assert answer.startswith(b"HTTP/1.1 " + status)
    await browser.ended.wait()


async def test_an_upgrade_to_http_2_is_not_made(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    browser = Browser(nursery)
    answer = await browser.says(
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
        b"http2-settings: AAMAAABkAAQAAP__\r\n\r\n"
    )
    assert answer.startswith(OK)


async def test_a_request_that_comes_slowly_has_ten_seconds(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    for opening in (b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"):
        browser, began = Browser(nursery), trio.current_time()
        if opening:
            await browser.says(opening)
            await trio.sleep(IDLE_S - 1)  # between requests there is more time
            began = trio.current_time()
        for letter in b"GET /" + b"a" * 100:
            if browser.ended.is_set():
                break
            with suppress(trio.BrokenResourceError):  # it ends between the two
                await browser.stream.send_all(bytes([letter]))
            await trio.sleep(1)
        assert browser.ended.is_set()
        assert REQUEST_S <= trio.current_time() - began <= REQUEST_S + 2


async def test_a_body_that_comes_slowly_has_ten_seconds(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    browser = Browser(nursery)
    await browser.says(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
    began = trio.current_time()
    await browser.ended.wait()
    assert REQUEST_S - 0.1 <= trio.current_time() - began <= REQUEST_S + 0.1


async def test_an_answer_that_is_not_taken_ends(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    async def large(
        _scope: object, _receive: object, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await trio.sleep(1)
            await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})

    browser, began = Browser(nursery, large), trio.current_time()
    await browser.stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await browser.ended.wait()
    assert trio.current_time() - began <= ANSWER_S + 2


async def test_an_application_that_fails_answers_500(autojump_clock: Clock) -> None:
    async def broken(_scope: object, _receive: object, _send: object) -> None:
        raise ValueError("a mistake")

    with pytest.RaisesGroup(ValueError):  # the door logs it
        async with trio.open_nursery() as nursery:
            browser = Browser(nursery, broken)
            await browser.stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            with trio.CancelScope(shield=True):
                assert (await browser.hears()).startswith(b"HTTP/1.1 500 ")
