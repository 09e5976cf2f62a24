"""Asks many servers of a pool at once, and names those that do not answer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.client.server_connections import Connections

T = TypeVar("T")

ALL_SERVERS = 4096
IN_FLIGHT = 128


async def ask_all(
    connections: Connections,
    ask: Callable[[ServerId], Awaitable[T]],
    servers: Sequence[ServerId] = (),
) -> tuple[dict[ServerId, T], dict[ServerId, str]]:
    """Return the answers of these servers, or of all, and why others have not answered."""
    connections.widen(ALL_SERVERS)
    found, silent = dict[ServerId, T](), dict[ServerId, str]()
    limit = trio.CapacityLimiter(IN_FLIGHT)

    async def ask_one(server: ServerId) -> None:
        async with limit:
            try:
                found[server] = await ask(server)
            except GpupoolError as error:
                silent[server] = str(error)

    async with trio.open_nursery() as nursery:
        for server in servers or list(connections.members) or list(connections.by_server):
            nursery.start_soon(ask_one, server)
    return found, silent
