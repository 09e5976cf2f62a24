"""Asks servers of a pool for their measurements; each one keeps its own figures alone.

All are asked at once, for two seconds, with one more try. A server that does not answer is named,
never left out in silence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import trio

from gpupool.pool.errors import GpupoolError, NotNowError
from gpupool.pool.history_query import HistoryPage, HistoryQuery, joined
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.client.all_servers import ask_all
from gpupool.remoting.client.server_connections import Connections
from gpupool.remoting.client.usage_query import nobody
from gpupool.remoting.protocol import messages as m

DEADLINE_S = 2.0
"""To reach a server, with both tries."""

TRIES = 2
PATIENCE_S = 0.3
PART_TIMEOUT_S = 7.0
"""The exporter ends a question that takes five seconds."""

PARTS_MAX = 64
"""An answer of any range has fewer."""


@dataclass(slots=True)
class HistoryAnswer:
    """Measurements by server."""

    pages: dict[ServerId, HistoryPage] = field(default_factory=dict[ServerId, HistoryPage])
    silent: dict[ServerId, str] = field(default_factory=dict[ServerId, str])
    """Servers that did not answer, and why."""


async def ask_history(
    connections: Connections, query: HistoryQuery, servers: Sequence[ServerId] = ()
) -> HistoryAnswer:
    """Return the history of these servers, or of all, as far as they answer in time.

    Raises:
        GpupoolError: when no server answers.
    """

    async def ask(server: ServerId) -> HistoryPage:
        return await _all_parts(connections, server, query)

    answer = HistoryAnswer(*await ask_all(connections, ask, servers))
    if not answer.pages and not servers:
        raise nobody(connections, answer.silent)
    return answer


async def _all_parts(
    connections: Connections, server: ServerId, query: HistoryQuery
) -> HistoryPage:
    pages = [await _first_part(connections, server, query)]
    while pages[-1].more and pages[-1].after > query.after and len(pages) < PARTS_MAX:
        query = replace(query, after=pages[-1].after)
        connection = await connections.reach(server, DEADLINE_S)
        answer = await connection.call(m.GetHistory(query), timeout_s=PART_TIMEOUT_S)
        pages.append(answer.page)
    return joined(pages)


async def _first_part(
    connections: Connections, server: ServerId, query: HistoryQuery
) -> HistoryPage:
    deadline, left = trio.current_time() + DEADLINE_S, TRIES
    while True:
        try:
            remaining_s = max(0.01, deadline - trio.current_time())
            connection = await connections.reach(server, remaining_s, patience_s=PATIENCE_S)
            message = m.GetHistory(query)
            return (await connection.call(message, timeout_s=PART_TIMEOUT_S)).page
        except GpupoolError as error:
            # A server has a few questions of one client under way, and refuses more.
            busy = isinstance(error, NotNowError)
            left -= not busy
            if not left or trio.current_time() >= deadline:
                raise
            await trio.sleep(PATIENCE_S if busy else 0)
