"""Requests to an ASGI application in memory, with cookies, and nothing between."""

import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass
class Answer:
    """An HTTP response; ``body`` is as it was sent."""

    status_code: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""

    @property
    def content(self) -> bytes:
        """Return the body, not compressed."""
        packed = self.headers.get("content-encoding") == "gzip"
        return gzip.decompress(self.body) if packed else self.body

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.content.decode()

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.content)


class Client:
    """Keeps the cookie that it was given, as a browser does."""

    def __init__(self, app: App, host: str) -> None:
        self._app = app
        self._host = host
        self._cookie = ""

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Get ``path`` as it stands, dots and all."""
        return await self._ask("GET", path, headers or {}, b"")

    async def post(
        self,
        path: str,
        *,
        json_body: object = None,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Post JSON, or bytes."""
        body = content if json_body is None else json.dumps(json_body).encode()
        return await self._ask("POST", path, headers or {}, body)

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        plain, _, query = path.partition("?")
        sent = {"host": self._host, "accept-encoding": "gzip", **headers}
        if self._cookie:
            sent["cookie"] = self._cookie
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(plain).decode(),
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in sent.items()],
            "client": ("127.0.0.1", 40000),
            "server": ("127.0.0.1", 7471),
        }
        answer, pieces = (
            Answer(),
            [body[at : at + 4096] for at in range(0, len(body), 4096)] or [b""],
        )

        async def receive() -> dict[str, Any]:
            piece = pieces.pop(0) if pieces else b""
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status_code = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        await self._app(scope, receive, send)
        if cookie := answer.headers.get("set-cookie"):
            self._cookie = cookie.partition(";")[0]
        return answer
