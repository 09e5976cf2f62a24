"""The server's side of its exporter's HTTP: hands connections over, and judges their tokens.

A connection keeps its place among the strangers (``remoting/server/listener/preauth_limits.py``)
until the server itself has found a token good that came over it. The server keeps a descriptor of
each one, so that it can end a connection whatever the exporter does.
"""

import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import trio

from gpupool.monitoring.http.http_frames import (
    PACKET,
    Target,
    Targets,
    TokenAnswered,
    TokenAsked,
    TokensSeen,
    WebSetup,
)
from gpupool.pool.errors import AuthenticationError, GpupoolError, RemoteProtocolError
from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import PoolState, Server, Token
from gpupool.remoting.transport.descriptor_passing import receive_packet, send_packet

UNPROVEN_S = 30.0
"""Lifetime in seconds of a connection without a good token."""
PROVEN_MAX, PROVEN_BOUND = 512, UserBound(user=64, token=48)
"""Connections with a good token: of all, and of one user or token. When all are taken, the user
with the most loses the oldest for the next one."""
HAND_OVER_S = 2.0
TARGETS_EVERY_S = 1.0
TOKENS_EVERY_S = 0.5
NO_CLOCK_MS = 1 << 62
"""When every token has ended: without the pool's time, none is taken as good for longer."""

Say = Callable[[WebSetup | Targets | TokenAnswered | TokensSeen], bool]


class WebLink:
    """One server's door for HTTPS: ``router.WebDoor``."""

    def __init__(self, state: Callable[[], PoolState], *, sd_labels: Iterable[str] = ()) -> None:
        self._state = state
        self._sd_labels = tuple(sd_labels)
        self._numbers = itertools.count(1)
        self._open: dict[int, _Connection] = {}
        self._door: socket.socket | None = None
        self._sending = trio.Lock()  # two tasks must not wait for one socket
        self._say: Say = lambda _message: False
        self._setup: WebSetup | None = None
        self.check_token: Callable[[str], Token] = _nobody
        self.ca_pem: Callable[[], bytes] = bytes
        self.now_ms: Callable[[], int] = lambda: NO_CLOCK_MS
        self._tokens: Mapping[TokenId, Token] | None = None
        self._tokens_number = 0

    # --- for the server --------------------------------------------------------------------------

    def set_up(self, setup: WebSetup) -> None:
        """Apply this setup in the exporter from now on; nobody is served before."""
        self._setup = setup
        self._say(setup)

    async def serve(self, stream: trio.SocketStream, prove: Callable[[], None]) -> None:
        """Hand a connection over, and wait for its end.

        Raises:
            RemoteProtocolError: when no exporter takes it.
        """
        if self._door is None or self._setup is None:
            raise RemoteProtocolError("nobody serves HTTP here now")
        number, connection = next(self._numbers), _Connection(prove)
        self._open[number] = connection
        try:
            with trio.fail_after(HAND_OVER_S):
                async with self._sending:
                    await send_packet(self._door, PACKET.pack(number), [stream.socket.fileno()])
            connection.scope.deadline = trio.current_time() + UNPROVEN_S
            with connection.scope:
                await connection.ended.wait()
        finally:
            del self._open[number]
            with suppress(OSError):
                stream.socket.shutdown(socket.SHUT_RDWR)

    # --- for the link to the exporter ------------------------------------------------------------

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a pair for connections: the server's and the exporter's."""
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pair[0].setblocking(False)
        return pair

    async def run(self, door: socket.socket, say: Say) -> None:
        """Serve by the exporter with the other end of ``door``, until cancelled."""
        self._door, self._say = door, say
        try:
            if self._setup is not None:
                say(self._setup)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_targets)
                nursery.start_soon(self._tell_tokens)
                await self._hear_ends(door)
        finally:
            trio.lowlevel.notify_closing(door)
            door.close()
            self._door, self._say = None, lambda _message: False
            for connection in self._open.values():
                connection.ended.set()

    def asked(self, asked: TokenAsked) -> None:
        """Answer the exporter, and note that a connection has proven itself."""
        tokens = self._tokens_now()
        try:
            token = self.check_token(asked.text)
        except AuthenticationError as error:
            self._say(TokenAnswered(asked.number, why=str(error)))
            return
        except GpupoolError as error:
            self._say(TokenAnswered(asked.number, why=str(error), later=True))
            return
        connection = self._open.get(asked.connection)
        if connection is not None and connection.holder is None:
            holder = Holder(token.user, token.id)
            if not self._has_room(holder):
                connection.ended.set()
                return
            connection.prove(holder)
        self._say(
            TokenAnswered(
                asked.number,
                token.user,
                token.kind.value,
                tokens=tokens,
                expires_at=token.expires_at,
            )
        )

    def _has_room(self, holder: Holder) -> bool:
        """Return whether one may have one more connection; another one's may end for it."""
        proven = [
            (each.holder, each)
            for each in self._open.values()
            if each.holder is not None and not each.ended.is_set()
        ]
        if PROVEN_BOUND.reached(holder, [each for each, _ in proven]):
            return False
        if len(proven) < PROVEN_MAX:
            return True
        counts = Counter(each.user for each, _ in proven)
        user, count = counts.most_common(1)[0]
        if counts[holder.user] >= count:
            user = holder.user
        next(connection for each, connection in proven if each.user == user).ended.set()
        return True

    async def _hear_ends(self, door: socket.socket) -> None:
        while True:
            try:
                data, _ = await receive_packet(door, PACKET.size + 1, 0)
            except OSError:
                return  # the exporter has ended, and the other socket says so as well
            if len(data) == PACKET.size and (found := self._open.get(*PACKET.unpack(data))):
                found.ended.set()

    def _tokens_now(self) -> int:
        """Return a number of the table's tokens, which grows whenever any of them changes."""
        tokens = self._state().tokens
        if tokens is not self._tokens:
            self._tokens = tokens
            self._tokens_number += 1
        return self._tokens_number

    async def _tell_tokens(self) -> None:
        """Tell the exporter, while it has connections, whether tokens are as they were."""
        while True:
            if self._open:
                at = Milliseconds(self.now_ms())
                self._say(TokensSeen(self._tokens_now(), at, time.monotonic()))
            await trio.sleep(TOKENS_EVERY_S)

    async def _tell_targets(self) -> None:
        """Tell the exporter the list of servers, whenever that changes."""
        said, seen, trusted = None, None, b""
        while True:
            state, ca_pem = self._state(), self.ca_pem()
            if state.servers is not seen or ca_pem != trusted:
                targets = targets_of(state, self._sd_labels, ca_pem)
                if targets != said and self._say(targets):
                    said = targets
                seen, trusted = state.servers if targets == said else None, ca_pem
            await trio.sleep(TARGETS_EVERY_S)


class _Connection:
    """One that the exporter has."""

    def __init__(self, prove: Callable[[], None]) -> None:
        self._prove = prove
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.holder: Holder | None = None  # of the first good token that came over it

    def prove(self, holder: Holder) -> None:
        self.holder = holder
        self.scope.deadline = float("inf")
        self._prove()


def targets_of(state: PoolState, labels: Iterable[str], ca_pem: bytes = b"") -> Targets:
    """Return the servers of the table, by name, with those of their labels."""
    wanted = tuple(labels)

    def target(server: Server) -> Target:
        found = {name: server.labels[name] for name in wanted if name in server.labels}
        return Target(server.name, server.address, found)

    servers = sorted(state.servers.values(), key=lambda server: server.name)
    told = tuple(target(server) for server in servers)
    return Targets(state.name, told, state.cluster_id, ca_pem)


def _nobody(_text: str) -> Token:
    raise AuthenticationError("this server knows no token")
