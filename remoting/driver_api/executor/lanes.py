"""Lanes: further connections of a session, which carry the bytes of large copies in parallel.

One TLS connection is encrypted by one thread, which is slower than the network, and one TCP
connection fills no link beyond 10 Gb/s. ``shim/include/lanes.h`` says how lanes work; both ends
have its code in C. A connection names a number of 16 random bytes, of which the client alone hears,
by the line, and proves that it knows the session's ticket. So nobody else's becomes a part of it.
"""

import ctypes
import os
import socket
import threading
from typing import Any, Self

from gpupool.pool.errors import AuthenticationError, RemoteProtocolError
from gpupool.remoting.driver_api.executor import native_library
from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.line_tls import Identity, given_bytes
from gpupool.remoting.worker.peer_links import Links

LANES_MAX = 8
"""Connections of a session that go one way; of ``lanes.h``."""

STRIPE_MIN = 256 << 10
"""Least bytes of a stripe on the lanes; fewer go by the line. As in ``lanes.h``."""

AHEAD_SIZE_MAX = 512 << 20
"""Bytes that are read ahead at most, as with the line: see ``reader.py``."""

UP, DOWN = 0, 1
ID_SIZE = 16


class LaneSet:
    """The lanes of one direction, with their state in C."""

    @classmethod
    def load(cls, *, sends: bool, due: int) -> Self | None:
        """Return an empty set, or None where there is no library for it."""
        library = native_library.load()
        return None if library is None else cls(library, sends=sends, due=due)

    def __init__(self, library: Any, *, sends: bool, due: int) -> None:
        self._library = library
        self._self: int | None = library.lanes_new(sends, due, AHEAD_SIZE_MAX)
        self.due = due
        self.count = 0
        self._counting = threading.Lock()

    def encrypts(self) -> bool:
        """Say whether there is an OpenSSL for connections with TLS."""
        return bool(self._library.lanes_encrypt())

    @property
    def complete(self) -> bool:
        """Say whether all connections are there."""
        return 0 < self.due == self.count

    def takes(self, size: int) -> bool:
        """Say whether so many bytes go by the connections, and not by the line."""
        return size >= STRIPE_MIN and self.complete

    def add(self, sock: socket.socket, identity: tuple[bytes, bytes] | None, ticket: bytes) -> bool:
        """Take over a connection; with ``identity``, authenticate its client by TLS first."""
        given = None
        if identity is not None:
            given = Identity.of(*identity)
        descriptor = sock.detach()
        good = self._library.lanes_add(
            self._self, descriptor, ctypes.byref(given) if given else None, ticket
        )
        with self._counting:
            self.count += bool(good)
        return bool(good)

    def send(self, view: memoryview) -> None:
        """Send a stripe.

        Raises:
            ConnectionError: when a connection broke.
        """
        if self._library.lanes_send(self._self, given_bytes(view), len(view)) < 0:
            raise ConnectionError("a connection for large copies broke")

    def receive(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` with a stripe's bytes from ``offset`` on; 0 begins the next stripe.

        Raises:
            ConnectionError: when a connection broke.
        """
        if self._library.lanes_receive(self._self, given_bytes(target), offset, len(target)) < 0:
            raise ConnectionError("a connection for large copies broke")

    def end(self) -> None:
        """End all connections, also for threads that use them."""
        self._library.lanes_end(self._self)


class Lanes(HandlerGroup):
    """The lanes of one client process, which asks for them once."""

    def __init__(self, client: Client, links: Links | None) -> None:
        super().__init__(client)
        self._links = links
        self._sets: tuple[LaneSet, LaneSet] | None = None
        self.methods = {"LANES": self._ask}

    def _ask(self, count: int) -> bytes:
        """Answer with the numbers of further connections, up and down, and how many may come."""
        if self._sets is not None:
            raise RemoteProtocolError("further connections were asked for before")
        due = min(count, LANES_MAX)
        up, down = LaneSet.load(sends=False, due=due), LaneSet.load(sends=True, due=due)
        ids = os.urandom(ID_SIZE), os.urandom(ID_SIZE)
        nothing = bytes(2 * ID_SIZE + 8)
        if self._links is None or up is None or down is None or not count:
            return nothing
        if not self._links.expect_lanes(ids, self._take, up.encrypts):
            return nothing
        self._sets = up, down
        session = self.client.session
        session.reader.lanes, session.lanes = up, down
        return b"".join(ids) + due.to_bytes(8, "little")

    def _take(
        self, way: int, sock: socket.socket, identity: tuple[bytes, bytes] | None, ticket: bytes
    ) -> None:
        """Take over a connection that names one of the numbers.

        Raises:
            AuthenticationError: when it is one too many, or does not prove itself.
        """
        assert self._sets is not None
        if self._sets[way].complete:
            raise AuthenticationError("data connection refused", why="there are enough")
        if not self._sets[way].add(sock, identity, ticket):
            raise AuthenticationError("data connection refused", why="wrong ticket, or too many")
