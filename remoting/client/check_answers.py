"""Has all servers of a pool test their links and idle GPUs; each answers for itself."""

from dataclasses import dataclass, field

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.telemetry import Finding
from gpupool.remoting.client.server_connections import Connections
from gpupool.remoting.protocol import messages as m

REACH_S = 3.0
CHECKS_TIMEOUT_S = 26.0
IN_FLIGHT = 128
ALL_SERVERS = 4096


@dataclass(slots=True)
class CheckAnswer:
    """What servers have found, and why others said nothing."""

    findings: dict[ServerId, tuple[Finding, ...]] = field(
        default_factory=dict[ServerId, tuple[Finding, ...]]
    )
    silent: dict[ServerId, str] = field(default_factory=dict[ServerId, str])


async def ask_checks(connections: Connections) -> CheckAnswer:
    """Ask all servers at once, and return what they say within half a minute."""
    connections.widen(ALL_SERVERS)
    answer, limit = CheckAnswer(), trio.CapacityLimiter(IN_FLIGHT)

    async def ask(server: ServerId) -> None:
        async with limit:
            try:
                connection = await connections.reach(server, REACH_S)
                said = await connection.call(m.RunChecks(), timeout_s=CHECKS_TIMEOUT_S)
                answer.findings[server] = said.findings
            except GpupoolError as error:
                answer.silent[server] = f"{error.what}: {error.why}" if error.why else error.what

    async with trio.open_nursery() as nursery:
        for server in list(connections.members) or list(connections.by_server):
            nursery.start_soon(ask, server)
    return answer
