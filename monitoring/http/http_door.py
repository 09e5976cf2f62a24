"""The exporter's side of HTTPS: takes connections from its server, and answers them after TLS.

The certificate and its key come from the server in a frame, and are in no file of the exporter's
folder. What is imported for HTTP is imported when the first client has come, so an exporter that
nobody asks has none of it in memory.
"""

import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from gpupool.monitoring.http.http_frames import (
    PACKET,
    Targets,
    TokenAnswered,
    TokenAsked,
    TokensSeen,
    WebSetup,
)
from gpupool.monitoring.metric_series import Found
from gpupool.monitoring.metric_totals import Totals
from gpupool.monitoring.metrics import Own, read
from gpupool.monitoring.sample import Sample
from gpupool.pool.fair_access import network_of
from gpupool.pool.model.state import LeaseRecord
from gpupool.remoting.transport.connections import free_tls, within
from gpupool.remoting.transport.descriptor_passing import receive_packet, send_packet

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from gpupool.monitoring.http.http_app import Requests
    from gpupool.monitoring.http.http_connection import Application
    from gpupool.monitoring.http.token_checks import Judgement, TokenChecks

HANDSHAKE_S = 5.0
STALE_S = 5.0


class HttpDoor:
    """Answers HTTPS for one exporter: ``http_app.Sources``."""

    def __init__(
        self,
        door: socket.socket,
        folder: Path,
        *,
        ask: Callable[[TokenAsked], None],
        say: Callable[[str], None],
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Make it; ``door`` is the end of the socket pair for connections.

        ``ready`` is called once its first connection has had all that serves them imported.
        """
        door.setblocking(False)
        self._door = door
        self._telling = trio.Lock()  # two tasks must not wait for one socket
        self._folder = folder
        self._ask = ask
        self._say = say
        self._ready = ready
        self._sample: Sample | None = None
        self._sampled_at = float("-inf")
        self._found: Found | None = None
        self._totals = Totals()
        self._began_at = _process_start_s(os.getppid())
        self._shown: tuple[WebSetup, ssl.SSLContext] | None = None
        self._nursery: trio.Nursery | None = None
        self._application: Application | None = None
        self._requests: Requests | None = None
        self._checks: TokenChecks | None = None
        self._networks: dict[int, str] = {}  # of the connections
        self.open_networks: Sequence[str] = ()
        self.users = 0
        self.targets: Targets | None = None

    # --- what the server tells -------------------------------------------------------------------

    def set_up(self, setup: WebSetup) -> None:
        """Show this certificate from now on, and answer the networks that the server names."""
        try:
            context = tls_context(setup)
        except (OSError, ssl.SSLError) as error:
            self._say(f"the certificate for the web cannot be used: {error}")
            return
        self.open_networks = setup.open_networks
        if self._shown is None:
            self.users, self._totals = setup.users, Totals(setup.users)
        self._shown = setup, context

    def sampled(self, sample: Sample) -> None:
        """Take the sample of this second."""
        self._sample, self._sampled_at, self._found = sample, trio.current_time(), None
        self._totals.add(sample)

    def ended(self, record: LeaseRecord) -> None:
        """Count a lease that has ended here; on any thread."""
        self._totals.ended(record)

    def answered(self, answer: TokenAnswered) -> None:
        """Take the server's word on a token."""
        if self._checks is not None:
            self._checks.answered(answer)

    def tokens_seen(self, seen: TokensSeen) -> None:
        """Take the server's word that all tokens are as they were."""
        if self._checks is not None:
            self._checks.seen(seen)

    # --- what the application reads --------------------------------------------------------------

    def found(self) -> Found | None:
        """Return the series of the latest sample, or None when there is no fresh one."""
        if self._sample is None or trio.current_time() - self._sampled_at > STALE_S:
            return None
        if self._found is None:
            from gpupool.remoting.protocol.messages import PROTOCOL
            from gpupool.remoting.transport.peer_transport import VERSION

            assert self._requests is not None
            own = Own(
                protocol=PROTOCOL,
                table=VERSION,
                started_at=self._began_at,
                files=_sizes(self._folder),
                requests=self._requests.counts,
                durations=self._requests.durations,
            )
            self._found = read(self._sample, self._totals, own)
        return self._found

    def health(self) -> str:
        """Return "ok", "not ready" or "no quorum"."""
        sample = self._sample
        if sample is None or trio.current_time() - self._sampled_at > STALE_S:
            return "not ready"
        if not sample.raft.quorum:
            return "no quorum"
        return "not ready" if sample.state == "new" else "ok"

    async def judge(self, token: str, connection: int) -> "Judgement":
        """Return the server's word on a token."""
        assert self._checks is not None
        return await self._checks.judge(token, connection, self._networks.get(connection, ""))

    # --- connections -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Take connections and answer them, until cancelled."""
        async with trio.open_nursery() as nursery, self._closing():
            self._nursery = nursery
            while True:
                data, descriptors = await receive_packet(self._door, PACKET.size + 1, 1)
                taken = [socket.socket(fileno=each) for each in descriptors]
                if len(data) == PACKET.size and len(taken) == 1:
                    nursery.start_soon(self._serve, taken[0], *PACKET.unpack(data))
                else:
                    for each in taken:
                        each.close()

    @asynccontextmanager
    async def _closing(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            trio.lowlevel.notify_closing(self._door)
            self._door.close()

    async def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            with connection:
                await self._serve_tls(connection, number)
        except Exception as error:  # noqa: BLE001 - a stranger's request ends no other one
            self._say(f"a request could not be answered: {type(error).__name__}: {error}"[:300])
        finally:
            self._networks.pop(number, None)
            await self._tell_end(number)

    async def _serve_tls(self, connection: socket.socket, number: int) -> None:
        if self._shown is None:
            return
        _, context = self._shown
        client = _address(connection)
        self._networks[number] = network_of(client)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            await within(HANDSHAKE_S, tls.do_handshake)
            from gpupool.monitoring.http.http_connection import serve_http

            if self._application is None:
                self._build()
                self._ready()
            assert self._application is not None
            await serve_http(tls, self._application, client=client, number=number)
        except (trio.BrokenResourceError, trio.TooSlowError):
            await trio.aclose_forcefully(stream)
        finally:
            free_tls(tls)

    async def _tell_end(self, number: int) -> None:
        """Tell the server, however slow it is; it sees by itself that this process ends."""
        async with self._telling:
            with suppress(OSError):  # the server is gone
                await send_packet(self._door, PACKET.pack(number))

    def _build(self) -> None:
        from gpupool.monitoring.http.http_app import Requests, build_app
        from gpupool.monitoring.http.token_checks import TokenChecks

        self._requests = Requests(trio.current_time)
        self._checks = TokenChecks(self._ask, time.monotonic)
        assert self._nursery is not None
        self._nursery.start_soon(self._checks.pace)
        self._application = build_app(self, self._requests, self._pages())

    def _pages(self) -> "Sequence[BaseRoute]":
        """Return the web page, for paths other than the application's own three."""
        from starlette.routing import Mount

        from gpupool.monitoring.web.server_page import server_page

        def start(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
            assert self._nursery is not None
            self._nursery.start_soon(self._guarded, task)

        assert self._shown is not None
        setup, _ = self._shown
        page = server_page(lambda: self.targets, self.judge, start, readonly=setup.readonly)
        return [Mount("", app=page)]

    async def _guarded(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await task()
        except Exception as error:  # noqa: BLE001 - one viewer's trouble ends no other one's
            self._say(f"a viewer's connection failed: {type(error).__name__}: {error}"[:300])


def tls_context(setup: WebSetup) -> ssl.SSLContext:
    """Return the settings of TLS with a certificate and key that stand in no lasting file.

    Raises:
        OSError: when they do not fit each other, or are none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    text = setup.certificate_pem + b"\n" + setup.key_pem
    if sys.platform == "linux":  # OpenSSL reads files only: one in memory
        descriptor = os.memfd_create("web", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(text)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _address(connection: socket.socket) -> str:
    try:
        name: object = connection.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""  # pyright: ignore[reportUnknownArgumentType]


def _sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of the exporter's databases, each with its journal."""
    sizes: dict[str, int] = {}
    for path in folder.glob("*.db*"):
        name = path.name.partition("-")[0]
        try:
            sizes[name] = sizes.get(name, 0) + path.stat().st_size
        except OSError:
            continue  # a journal that has just been removed
    return sizes


def _process_start_s(pid: int) -> float | None:
    """Return when a process began, since the Unix epoch; None where /proc does not say."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        lines = Path("/proc/stat").read_text().splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return booted + ticks / os.sysconf("SC_CLK_TCK")
