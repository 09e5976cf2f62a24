"""One HTTP connection: h11 on trio, which calls an ASGI application for each request.

Written instead of taken from Hypercorn, whose server of one connection is no documented API, and
lets a stranger turn any connection into HTTP/2. Limits: 16 KiB of headers, 64 KiB of
body, 10 s for a request to come, 30 s for its answer to be taken. A request's body is read before
the application is called.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11
import trio

from gpupool.remoting.transport.connections import within

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
"""An ASGI application, as Starlette's."""

HEADERS_MAX = 16 * 1024
BODY_MAX = 64 * 1024
REQUEST_S = 10.0
ANSWER_S = 30.0
IDLE_S = 120.0
"""Longer than scrapers' intervals: the server ends those that have proven nothing much sooner."""
CLOSE_S = 1.0
READ_SIZE = 16 * 1024
VERSIONS = (b"1.0", b"1.1")


class _TooLarge(Exception):
    """A request's body is larger than any that is taken."""


async def serve_http(
    stream: trio.abc.Stream,
    application: Application,
    *,
    client: str,
    number: int,
) -> None:
    """Answer the requests of one connection until either side is done with it.

    Args:
        stream: after TLS; or of the loopback.
        application: called for each request; ``scope["state"]["connection"]`` is ``number``.
        client: the other end's address.
        number: the connection's, by which the server knows it; 0 on the loopback.
    """
    connection = _Connection(stream, application, client, number)
    try:
        await connection.run()
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass
    except h11.ProtocolError:
        pass  # an application that says less or more than it announced
    finally:
        with trio.move_on_after(CLOSE_S) as closing:
            closing.shield = True
            await stream.aclose()


class _Connection:
    def __init__(
        self, stream: trio.abc.Stream, application: Application, client: str, number: int
    ) -> None:
        self._stream = stream
        self._application = application
        self._client = client
        self._number = number
        self._is_head = False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADERS_MAX)

    async def run(self) -> None:
        wait_s = REQUEST_S
        while True:
            try:
                request = await self._request(wait_s)
                if request is None:
                    return
                body = await within(REQUEST_S, self._body)
            except _TooLarge:
                await self._refuse(413)
                return
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return
            await within(ANSWER_S, self._answer, request, body)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()
            wait_s = IDLE_S

    async def _request(self, wait_s: float) -> h11.Request | None:
        with trio.move_on_after(wait_s) as limit:
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    if event.http_version not in VERSIONS:  # h11 leaves that to its caller
                        raise h11.RemoteProtocolError("no version that is spoken here")
                    return event
                if event is not h11.NEED_DATA:
                    return None
                data = bytes(await self._stream.receive_some(READ_SIZE))
                # The first byte of a request starts its time; more of them do not lengthen it.
                if wait_s > REQUEST_S:
                    limit.deadline = trio.current_time() + REQUEST_S
                    wait_s = REQUEST_S
                self._http.receive_data(data)
        raise trio.TooSlowError

    async def _body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._stream.send_all(self._http.send(go_on) or b"")
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > BODY_MAX:
                    raise _TooLarge
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return b"".join(parts)
            elif event is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(READ_SIZE)))
            else:
                raise trio.BrokenResourceError

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        bodies = [body]
        self._is_head = request.method == b"HEAD"

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await trio.sleep_forever()
            raise AssertionError

        try:
            await self._application(self._scope(request), receive, self._send)
        except Exception:
            if self._http.our_state is h11.SEND_RESPONSE:
                await self._refuse(500)
            raise

    def _scope(self, request: h11.Request) -> Message:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "https",
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(bytes(name), bytes(value)) for name, value in request.headers],
            "client": (self._client, 0),
            "server": None,
            "state": {"connection": self._number},
        }

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            start = h11.Response(
                status_code=message["status"], headers=headers, reason=_reason(message["status"])
            )
            await self._stream.send_all(self._http.send(start) or b"")
        elif message["type"] == "http.response.body":
            body = b"" if self._is_head else message.get("body", b"")
            data = self._http.send(h11.Data(data=body)) or b""
            if not message.get("more_body", False):
                data += self._http.send(h11.EndOfMessage()) or b""
            await self._stream.send_all(data)

    async def _refuse(self, status: int) -> None:
        """Answer without the application, and be done with the connection."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = _reason(status) + b"\n"
        headers = [
            ("content-type", "text/plain"),
            ("content-length", str(len(text))),
            ("connection", "close"),
        ]
        start = h11.Response(status_code=status, headers=headers, reason=_reason(status))
        data = self._http.send(start) or b""
        data += self._http.send(h11.Data(data=text)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        with trio.fail_after(CLOSE_S):
            await self._stream.send_all(data)


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
