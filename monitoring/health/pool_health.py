"""The health of a pool as its client sees it: the findings of all servers, merged. Pure code.

What servers say of the pool is said once: as the leader says it, else as the worst says it. A
server that does not answer is itself a finding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from gpupool.monitoring.health.check_table import POOL_CHECKS
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.telemetry import Finding, Health, Telemetry
from gpupool.pool.view import ALARM, PoolView, visible

COMPARED_MIN = 3
"""Of two servers with different interfaces, neither is the slow one."""


@dataclass(frozen=True, slots=True)
class PoolFinding:
    """One finding, with the name of the server that it is of; empty for the pool."""

    server: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """What is wrong with a pool, the worst first."""

    pool: str
    at: Milliseconds
    servers: int
    answered: int
    findings: tuple[PoolFinding, ...]

    @property
    def status(self) -> Health:
        """Return the worst."""
        return max((each.finding.status for each in self.findings), default=Health.OK)

    def count(self, status: Health) -> int:
        """Return how many findings have this status."""
        return sum(each.finding.status is status for each in self.findings)


def merged(view: PoolView, telemetry: Mapping[ServerId, Telemetry]) -> PoolHealth:
    """Return the health of the pool of a view, with what each server that answered has found."""
    names = {server.id: server.name for server in view.servers}
    leader = next((server.id for server in view.servers if server.leader), None)
    rows: list[PoolFinding] = []
    of_pool: dict[tuple[str, str], Finding] = {}
    ordered = sorted(telemetry.values(), key=lambda each: (each.server != leader, each.server))
    for said in ordered:
        for finding in said.findings:
            key = finding.check, finding.subject
            if finding.check not in POOL_CHECKS:
                rows.append(PoolFinding(names.get(said.server, said.server), finding))
            elif finding.check == "quorum" and finding.status is Health.FAIL and view.raft.quorum:
                # One server is cut off, and the others go on.
                rows.append(PoolFinding(names.get(said.server, said.server), finding))
            elif key not in of_pool or (
                said.server != leader and of_pool[key].status < finding.status
            ):
                of_pool[key] = finding
    rows += [PoolFinding("", finding) for finding in of_pool.values()]
    rows += _seen_from_here(view, telemetry, of_pool)
    rows += _slow_interfaces(view, telemetry, names)
    rows.sort(key=lambda each: (-each.finding.status, each.server, each.finding.check))
    return PoolHealth(view.name, view.now, len(view.servers), len(telemetry), tuple(rows))


def _seen_from_here(
    view: PoolView,
    telemetry: Mapping[ServerId, Telemetry],
    of_pool: Mapping[tuple[str, str], Finding],
) -> list[PoolFinding]:
    found: list[PoolFinding] = []
    for server in view.servers:
        if server.id not in telemetry and ("silent", server.name) not in of_pool:
            since = server.silent_since or view.now
            text = f"it does not answer from here, at {server.address}"
            hint = "gpupool doctor checks the way; is gpupool join running there?"
            answer = Finding("answer", server.name, Health.FAIL, since, text, hint)
            found.append(PoolFinding(server.name, answer))
    if not view.raft.quorum and ("quorum", "") not in of_pool:
        text = "no majority of the voters can be reached: nothing is granted"
        hint = "start the missing servers; if most are lost for good: gpupool recover on one"
        found.append(PoolFinding("", Finding("quorum", "", Health.FAIL, view.now, text, hint)))
    for warning in view.warnings:
        if warning.startswith(ALARM):
            text = warning.removeprefix(ALARM)
            found.append(PoolFinding("", Finding("alarm", "", Health.FAIL, view.now, text)))
    return found


def _slow_interfaces(
    view: PoolView, telemetry: Mapping[ServerId, Telemetry], names: Mapping[ServerId, str]
) -> list[PoolFinding]:
    """Tell of servers with a slower interface than most; only who asks all can compare."""
    speeds = {
        server: said.host.network_speed
        for server, said in telemetry.items()
        if said.host is not None and said.host.network_speed
    }
    usual = median_low(speeds.values()) if len(speeds) >= COMPARED_MIN else 0
    found: list[PoolFinding] = []
    for server, speed in speeds.items():
        if speed < usual:
            text = f"its interface has {speed} Mbit/s, most servers' {usual}"
            hint = "look at its cable, its switch port and ethtool"
            slow = Finding("link-speed", "", Health.WARN, view.now, text, hint)
            found.append(PoolFinding(names.get(server, server), slow))
    return found


def line(row: PoolFinding) -> str:
    """Return a finding as one line; servers' texts may hold anything."""
    where = f"{row.server}: " if row.server else ""
    return visible(f"{where}{row.finding.text}")


NAGIOS = {Health.OK: ("OK", 0), Health.WARN: ("WARNING", 1), Health.FAIL: ("CRITICAL", 2)}


def nagios(health: PoolHealth) -> tuple[str, int]:
    """Return the line and the exit code of a Nagios plugin."""
    word, code = NAGIOS[health.status]
    worst = "; ".join(
        line(row).replace("|", "/")
        for row in health.findings[:3]
        if row.finding.status is health.status
    )
    text = worst or f"{health.answered} servers, nothing found"
    counts = f"fail={health.count(Health.FAIL)} warn={health.count(Health.WARN)}"
    return f"GPUPOOL {word} - {text} | {counts} servers={health.answered}", code
