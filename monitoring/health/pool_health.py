"""The health of a pool as its client sees it: the findings of all servers, merged. Pure code.

What servers say of the pool is said once: as the leader says it, else as the worst says it. A
server that does not answer is itself a finding.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from gpupool.monitoring.health.check_table import POOL_CHECKS
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.telemetry import Finding, Health, Telemetry
from gpupool.pool.view import ALARM, MISSING_HINT, PoolView, SilenceView, visible

SHOWN_ALIKE_MAX = 3
"""Of more warnings of one check people see the first and the number of the others."""

COMPARED_MIN = 3
"""Of two servers with different interfaces, neither is the slow one."""


@dataclass(frozen=True, slots=True)
class PoolFinding:
    """One finding, with the name of the server that it is of; empty for the pool."""

    server: str
    finding: Finding
    silence: SilenceView | None = None  # an operator knows of it


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """Health findings of a pool, the worst first."""

    pool: str
    at: Milliseconds
    servers: int
    answered: int
    findings: tuple[PoolFinding, ...]

    @property
    def status(self) -> Health:
        """The worst status of findings that are not silenced."""
        return max((each.finding.status for each in self.loud), default=Health.OK)

    @property
    def loud(self) -> tuple[PoolFinding, ...]:
        """Findings that are not silenced."""
        return tuple(each for each in self.findings if each.silence is None)

    @property
    def silenced(self) -> int:
        """Return how many findings are silenced."""
        return len(self.findings) - len(self.loud)

    def count(self, status: Health) -> int:
        """Return how many findings have this status, without those that are silenced."""
        return sum(each.finding.status is status for each in self.loud)


def merged(
    view: PoolView, telemetry: Mapping[ServerId, Telemetry], awaited: Collection[ServerId] = ()
) -> PoolHealth:
    """Return the health of a view's pool, with the findings of each server that answered.

    Nothing is said of the servers that are ``awaited``: they had no time to answer.
    """
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
    rows += _seen_from_here(view, {*telemetry, *awaited}, of_pool)
    rows += _slow_interfaces(view, telemetry, names)
    rows = [replace(row, silence=silence_of(row, view)) for row in rows]
    rows.sort(key=worst_first)
    return PoolHealth(view.name, view.now, len(view.servers), len(telemetry), tuple(rows))


def worst_first(row: PoolFinding) -> tuple[bool, int, str, str]:
    """Return the sort key of findings: silenced ones stand last."""
    finding = row.finding
    return row.silence is not None, -finding.status, row.server, finding.check


def silence_of(row: PoolFinding, view: PoolView) -> SilenceView | None:
    """Return the silence of a finding that holds for longest, if there is one."""
    finding = row.finding
    fits = [s for s in view.silences if s.covers(finding.check, row.server, finding.subject)]
    return max(fits, key=lambda each: each.until, default=None)


def silence_words(silence: SilenceView, at_ms: int) -> str:
    """Return until when something is silenced, by a user and for a reason."""
    minutes = max(0, silence.until - at_ms) // 60_000
    left = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return visible(f"silenced for another {left} by {silence.by}: {silence.reason}")


def _seen_from_here(
    view: PoolView, heard: Collection[ServerId], of_pool: Mapping[tuple[str, str], Finding]
) -> list[PoolFinding]:
    found: list[PoolFinding] = []
    for server in view.servers:
        if server.id not in heard and ("silent", server.name) not in of_pool:
            since = server.silent_since or view.now
            text = f"it does not answer from here, at {server.address}"
            hint = "gpupool doctor checks the way; is gpupool join running there?"
            answer = Finding("answer", server.name, Health.FAIL, since, text, hint)
            found.append(PoolFinding(server.name, answer))
    if not view.raft.quorum and ("quorum", "") not in of_pool:
        text = "no majority of the voters can be reached: nothing is granted"
        lost = Finding("quorum", "", Health.FAIL, view.now, text, MISSING_HINT)
        found.append(PoolFinding("", lost))
    for warning in view.warnings:
        if warning.startswith(ALARM):
            text = warning.removeprefix(ALARM)
            found.append(PoolFinding("", Finding("alarm", "", Health.FAIL, view.now, text)))
    return found


def _slow_interfaces(
    view: PoolView, telemetry: Mapping[ServerId, Telemetry], names: Mapping[ServerId, str]
) -> list[PoolFinding]:
    """Report servers with a slower interface than most; this compares all servers."""
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


def grouped(findings: Sequence[PoolFinding]) -> list[tuple[PoolFinding, int]]:
    """Return findings with how many more each stands for: many warnings of one check are one.

    A pool of n servers has n * (n - 1) links, for example.
    """
    alike: dict[str, list[PoolFinding]] = {}
    for row in findings:
        if row.finding.status is Health.WARN and row.silence is None:
            alike.setdefault(row.finding.check, []).append(row)
    many = {check: rows for check, rows in alike.items() if len(rows) > SHOWN_ALIKE_MAX}
    hidden = {id(row) for rows in many.values() for row in rows[1:]}
    counts = {id(rows[0]): len(rows) - 1 for rows in many.values()}
    return [(row, counts.get(id(row), 0)) for row in findings if id(row) not in hidden]


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
        for row in health.loud[:3]
        if row.finding.status is health.status
    )
    text = worst or f"{health.answered} servers, nothing found"
    counts = f"fail={health.count(Health.FAIL)} warn={health.count(Health.WARN)}"
    counts += f" silenced={health.silenced}" if health.silenced else ""
    return f"GPUPOOL {word} - {text} | {counts} servers={health.answered}", code
