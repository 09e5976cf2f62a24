"""A client's subscription to all servers of its pool: measurements of each, the view of a few.

All servers in touch with a majority say the same of the pool, and in a large pool that is most of
an update: 2.8 MB with 1,000 servers. So three servers send it, above 100 servers one does; the
others send what they measure.
"""

import logging
from contextlib import suppress
from itertools import islice

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Clock
from gpupool.pool.read_model.pool_watch import PoolUpdate
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view import PoolView
from gpupool.remoting.client.server_connections import (
    CALL_TIMEOUT_S,
    Connections,
    ServerConnection,
)
from gpupool.remoting.protocol import messages as m

LOG = logging.getLogger("gpupool.client")

VIEWERS, LARGE = 3, 100
"""Servers that send the view, but one above so many; those without a majority are not counted."""

FRESH_STEPS = 3
"""Intervals after which a server that has sent no view is not counted."""


class Subscription:
    """Collects the updates of all servers, and delivers the freshest view with all telemetry."""

    def __init__(self, connections: Connections, interval_s: float, clock: Clock) -> None:
        self._connections = connections
        self._interval_s = interval_s
        self._clock = clock
        self._views: dict[ServerId, tuple[float, PoolView]] = {}
        self._telemetry: dict[ServerId, Telemetry] = {}
        self._viewers: dict[ServerId, float] = {}
        """Servers asked for the view, with the start time of each."""
        self._nursery: trio.Nursery | None = None
        self._first = trio.Event()

    async def run(self, send: trio.MemorySendChannel[PoolUpdate]) -> None:
        """Deliver updates until cancelled."""
        self._connections.listen(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for connection in list(self._connections.by_server.values()):
                    self.arrived(connection)
                while not self._first.is_set():
                    with trio.move_on_after(self._interval_s):
                        await self._first.wait()
                    self._choose_viewers()
                while True:
                    # When the reader is late, the next update replaces this one.
                    with suppress(trio.WouldBlock):
                        send.send_nowait(self._update())
                    await trio.sleep(self._interval_s)
                    self._choose_viewers()
        finally:
            self._connections.unlisten(self)
            for connection in list(self._connections.by_server.values()):
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.2):
                    await self._call(connection, m.Subscribe(0.0))

    def _update(self) -> PoolUpdate:
        connected = tuple(self._connections.by_server)
        # A server that still sends its view is believed rather than one that was lost.
        live = {s: v for s, v in self._views.items() if s in self._viewers} or self._views
        best = max(live.values(), key=lambda v: (v[1].raft.quorum, v[1].raft.applied_index, v[0]))
        at, view = best
        age_s = self._clock.monotonic() - at
        return PoolUpdate(view, dict(self._telemetry), age_s, connected)

    # --- who sends the view ----------------------------------------------------------------------

    def _choose_viewers(self) -> None:
        """Ask others for the view when too few send it; let those go that are more than enough."""
        connections = self._connections.by_server
        good = [each for each in self._viewers if self._is_good(each)]
        wanted = viewers_of(len(connections))
        for server in good[wanted:]:
            self._start(connections[server], viewer=False)
        lacking = wanted - len(good)
        others = (each for each in connections if each not in self._viewers)
        for server in list(islice(others, max(0, lacking))):
            self._start(connections[server], viewer=True)

    def _is_good(self, server: ServerId) -> bool:
        """Return whether a server sends, or may be about to send, the view of a majority."""
        since, now = self._viewers[server], self._clock.monotonic()
        at, view = self._views.get(server, (0.0, None))
        if view is None or at < since:
            return now - since < CALL_TIMEOUT_S + FRESH_STEPS * self._interval_s
        return view.raft.quorum and now - at < CALL_TIMEOUT_S + FRESH_STEPS * self._interval_s

    def _start(self, connection: ServerConnection, *, viewer: bool) -> None:
        if self._nursery is None:
            return
        if viewer:
            self._viewers[connection.server] = self._clock.monotonic()
            call: m.CallFor[m.Answer] = m.Subscribe(self._interval_s)
        else:
            self._viewers.pop(connection.server, None)
            call = m.SubscribeTelemetry(self._interval_s)
        self._nursery.start_soon(self._call, connection, call)

    async def _call(self, connection: ServerConnection, call: m.CallFor[m.Answer]) -> None:
        try:
            await connection.call(call, timeout_s=CALL_TIMEOUT_S)
        except GpupoolError as error:
            LOG.debug("no updates from server %s: %s", connection.name, error)

    # --- what the connections tell ---------------------------------------------------------------

    def arrived(self, connection: ServerConnection) -> None:
        """Subscribe at this server as well."""
        self._viewers.pop(connection.server, None)
        good = sum(self._is_good(each) for each in self._viewers)
        self._start(connection, viewer=good < viewers_of(len(self._connections.by_server)))

    def left(self, connection: ServerConnection) -> None:
        """Drop the server, so that its last measurements are not shown as new."""
        self._telemetry.pop(connection.server, None)
        self._viewers.pop(connection.server, None)

    def pushed(self, connection: ServerConnection, message: m.Message) -> None:
        """Take an update."""
        if isinstance(message, m.Update | m.TelemetryUpdate):
            self._telemetry[connection.server] = message.telemetry
        if isinstance(message, m.Update):
            self._views[connection.server] = (self._clock.monotonic(), message.view)
            self._first.set()


def viewers_of(servers: int) -> int:
    """Return how many of the servers send the view."""
    return VIEWERS if servers <= LARGE else 1
