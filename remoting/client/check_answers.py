"""Has all servers of a pool test their links and idle GPUs; each answers for itself."""

from dataclasses import dataclass, field

from gpupool.pool.model.ids import ServerId
from gpupool.pool.telemetry import Finding
from gpupool.remoting.client.all_servers import ask_all
from gpupool.remoting.client.server_connections import Connections
from gpupool.remoting.protocol import messages as m

REACH_S = 3.0
CHECKS_TIMEOUT_S = 26.0


@dataclass(slots=True)
class CheckAnswer:
    """What servers have found, and why others said nothing."""

    findings: dict[ServerId, tuple[Finding, ...]] = field(
        default_factory=dict[ServerId, tuple[Finding, ...]]
    )
    silent: dict[ServerId, str] = field(default_factory=dict[ServerId, str])


async def ask_checks(connections: Connections) -> CheckAnswer:
    """Ask all servers at once, and return what they say within half a minute."""

    async def ask(server: ServerId) -> tuple[Finding, ...]:
        connection = await connections.reach(server, REACH_S)
        return (await connection.call(m.RunChecks(), timeout_s=CHECKS_TIMEOUT_S)).findings

    return CheckAnswer(*await ask_all(connections, ask))
