"""A real control server with the exporter's door in the same process, and a client for HTTPS."""

import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import trio
from tests.monitoring.samples import START_MS, sample, table
from tests.remoting.control.test_control_trust import Lab, start_lab

from gpupool.monitoring.exporter_link import WebLink
from gpupool.monitoring.http.http_door import HttpDoor
from gpupool.monitoring.http.http_frames import (
    Targets,
    TokenAnswered,
    TokenAsked,
    TokensSeen,
    WebSetup,
)
from gpupool.monitoring.sample import Sample
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.transport.authority.ca_vault import sign_web
from gpupool.remoting.transport.pki import create_key_and_csr


class Web:
    """The door of the lab's first server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = lambda: self.lab.state
        self.lab: Lab
        self.link = WebLink(lambda: self._state())
        self.said: list[str] = []
        self.asked_count = 0
        self.answers = True
        self._seen = trio.Event()
        self.setup: WebSetup
        self.http: HttpDoor

    def start(self, nursery: trio.Nursery, lab: Lab, **options: object) -> None:
        self.lab = lab
        ours, theirs = self.link.pair()
        self.http = HttpDoor(theirs, self._folder, ask=self._asked, say=self.said.append)
        nursery.start_soon(self.http.run)
        nursery.start_soon(self.link.run, ours, self._say)
        self.link.ca_pem = lambda: lab.authority.certificate_pem
        self.link.now_ms = lab.clock.wall_ms
        self.link.check_token = lab.servers[0].controller.check_token
        key, csr = create_key_and_csr(next(iter(lab.state.servers)))
        (server, *_) = lab.state.servers.values()
        certificate = sign_web(lab.authority, csr, server, datetime.now(UTC))
        self.setup = WebSetup(certificate, key, **options)  # type: ignore[arg-type]
        self.link.set_up(self.setup)

    def _asked(self, asked: TokenAsked) -> None:
        self.asked_count += 1
        if self.answers:
            self.link.asked(asked)

    def _say(self, message: WebSetup | Targets | TokenAnswered | TokensSeen) -> bool:
        match message:
            case WebSetup():
                self.http.set_up(message)
            case Targets():
                self.http.targets = message
            case TokenAnswered():
                self.http.answered(message)
            case TokensSeen():
                self.http.tokens_seen(message)
                self._seen.set()
        return True

    async def tokens_seen(self) -> None:
        """Wait until the server has said once more of which number its tokens are."""
        self._seen = trio.Event()
        with trio.fail_after(5):
            await self._seen.wait()

    @property
    def context(self) -> ssl.SSLContext:
        """A scraper's TLS context: trust in the pool's CA, and the address as a name."""
        return ssl.create_default_context(cadata=self.lab.authority.certificate_pem.decode())

    async def open(self) -> "trio.SSLStream[trio.SocketStream]":
        stream = await trio.open_ssl_over_tcp_stream(
            "127.0.0.1", self.lab.ports[0], ssl_context=self.context, https_compatible=True
        )
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    async def get(
        self, path: str, token: str = "", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of one request, over a separate connection."""
        async with await self.open() as stream:
            return await get(stream, path, token, {"connection": "close", **(headers or {})})

    def viewer(self) -> str:
        return self.lab.token("grafana", TokenKind.VIEWER)


async def get(
    stream: trio.abc.Stream, path: str, token: str = "", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Return the status and the body of a request over an open connection."""
    given = {"host": "x", **(headers or {})}
    if token:
        given["authorization"] = f"Bearer {token}"
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    await stream.send_all(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += await some(stream)
    head, _, body = answer.partition(b"\r\n\r\n")
    lengths = [each for each in head.lower().split(b"\r\n") if each.startswith(b"content-length:")]
    while len(body) < int(lengths[0].split(b":")[1]):
        body += await some(stream)
    return int(head.split()[1]), body


async def some(stream: trio.abc.Stream) -> bytes:
    with trio.fail_after(10):
        data = bytes(await stream.receive_some())
    if not data:
        raise trio.BrokenResourceError
    return data


def a_sample() -> Sample:
    """Return a sample of two GPUs."""
    return sample(table(gpus=2, leases=3), START_MS)


@asynccontextmanager
async def served(
    folder: Path, settings: ServerSettings | None = None, **options: object
) -> AsyncGenerator[Web]:
    """Serve until the block ends."""
    web = Web(folder)
    async with (
        start_lab(folder, 1, settings, web.link) as lab,
        trio.open_nursery() as nursery,
    ):
        web.start(nursery, lab, **options)
        yield web
        nursery.cancel_scope.cancel()


async def eventually(check: Callable[[], Awaitable[bool]], within_s: float = 5.0) -> None:
    """Wait until something at the other end of a connection is so."""
    with trio.fail_after(within_s):
        while not await check():  # noqa: ASYNC110
            await trio.sleep(0.02)


def descriptor_count() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
