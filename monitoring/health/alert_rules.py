"""The alerts that a pool sends by itself, and the same for Prometheus: rules as data.

A rule fires for what checks find, or for what the table says. Checks of GPUs and servers are in
one by their row of ``check_table``. ``make docs`` writes those of Prometheus.
"""

from collections.abc import Iterable, Iterator

from gpupool.monitoring.health.check_table import CHECKS
from gpupool.monitoring.health.pool_health import PoolFinding, PoolHealth, line
from gpupool.pool.alert_log import Condition, Rule
from gpupool.pool.history_query import SampleSum
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.telemetry import Health, Telemetry
from gpupool.pool.view import PoolView, visible

IDLE_S = 30 * 60.0
WAITS_S = 15 * 60.0
WASTE_SHARE = 0.5
WASTED = "gpupool usage --wasted --since 7d"
WASTE_HELD_H = 24.0
"""GPU-hours in a week, the minimum for an alert."""
SHOWN = ("link-rtt", "foreign-use", "waiting")
"""Checks that ``gpupool health`` shows, and of which no alert is sent."""


def _about(subject: str, status: Health, *but: str) -> Iterator[str]:
    """Return the checks of a kind of subject that can be so bad, without some."""
    for each in CHECKS:
        bad = each.warns if status is Health.WARN else each.fails
        if bad and each.subject.startswith(subject) and each.name not in (*but, *SHOWN):
            yield each.name


def _rule(
    name: str,
    severity: str,
    text: str,
    *checks: str,
    status: Health = Health.FAIL,
    for_s: float = 0.0,
    pool: bool = False,
) -> Rule:
    names = "|".join(checks)
    expression = f'gpupool_health_check_status{{check=~"{names}"}}'
    expression = f"max without(instance, server) ({expression})" if pool else expression
    expression += " >= 1" if status is Health.WARN else " == 2"
    return Rule(name, severity, text, expression, checks, status, for_s)


RULES = (
    _rule(
        "NoMajority",
        "critical",
        "No majority of the voters can be reached: nothing is granted.",
        "quorum",
        for_s=10,
    ),
    _rule(
        "ServerSilent",
        "critical",
        "The pool has no contact with a server.",
        *("silent", "answer"),
        for_s=60,
        pool=True,
    ),
    _rule("GpuFault", "critical", "A GPU is at fault.", *_about("a GPU", Health.FAIL, "throttle")),
    _rule(
        "GpuSuspicious",
        "warning",
        "A GPU shows signs of failing, or was drained because of one.",
        *(*_about("a GPU", Health.WARN), "gpu-count"),
        status=Health.WARN,
        for_s=300,
    ),
    _rule("Disk", "critical", "A server's disk is nearly full or far too slow.", "disk", for_s=30),
    _rule(
        "DiskSoon",
        "warning",
        "A server's disk fills up or is slow.",
        "disk",
        status=Health.WARN,
        for_s=900,
    ),
    _rule(
        "Certificate",
        "warning",
        "A certificate of the pool ends soon.",
        "certificate",
        status=Health.WARN,
        for_s=3600,
    ),
    _rule("Clock", "critical", "A server's clock is wrong.", "clock", for_s=30),
    _rule(
        "PoolTime",
        "critical",
        "The pool's time is ahead of the voters' clocks.",
        "pool-time",
        for_s=30,
        pool=True,
    ),
    _rule("Table", "critical", "A server's table differs.", *("table", "alarm"), pool=True),
    _rule(
        "HistoryOff",
        "warning",
        "A server does not keep the history.",
        "history",
        status=Health.WARN,
        for_s=300,
    ),
    _rule(
        "ServerOverloaded",
        "warning",
        "A server is late, out of descriptors, or its links and workers are slow.",
        *_about("the server", Health.FAIL, "clock"),
        *_about("another ", Health.FAIL),
        for_s=60,
    ),
    _rule(
        "Network",
        "warning",
        "A way between servers loses packets, or takes only small or slow ones.",
        *("link-loss", "link-speed", "mtu"),
        status=Health.WARN,
        for_s=900,
    ),
    _rule(
        "Versions",
        "critical",
        "Servers cannot understand each other.",
        "versions",
        for_s=60,
        pool=True,
    ),
    _rule(
        "Journal",
        "warning",
        "A server's journal grows, and no snapshot shortens it.",
        "journal",
        status=Health.WARN,
        for_s=900,
    ),
    _rule(
        "OperatorToken",
        "warning",
        "An operator's last token ends soon.",
        "tokens",
        status=Health.WARN,
        pool=True,
    ),
    _rule(
        "BackupOld",
        "warning",
        "The newest backup of the pool is older than a week.",
        "backup",
        status=Health.WARN,
        for_s=3600,
        pool=True,
    ),
    Rule(
        "IdleWhileOthersWait",
        "warning",
        # Prometheus knows no leases, so it can only be told how much is idle together.
        "In half an hour as much as a GPU was held and not used, and somebody waits.",
        "sum by (pool) (rate(gpupool_idle_gpu_seconds_total[30m])) >= 1 and "
        "max by (pool) (gpupool_pool_oldest_wait_seconds) > 0",
    ),
    Rule(
        "ClassWaste",
        "warning",
        "More than half of what a class held in a week was idle.",
        "sum by (pool, class) (increase(gpupool_idle_gpu_seconds_total[7d])) > "
        "0.5 * sum by (pool, class) (increase(gpupool_granted_gpu_seconds_total[7d])) "
        "and sum by (pool, class) (increase(gpupool_granted_gpu_seconds_total[7d])) > 86400",
    ),
    Rule(
        "WaitingWithFreeGpus",
        "warning",
        "A request has waited for a quarter of an hour, and GPUs are free.",
        "max by (pool) (gpupool_pool_oldest_wait_seconds) > 900 and "
        'max by (pool) (gpupool_pool_gpus{state="idle"}) > 0',
    ),
)


def holding(health: PoolHealth, view: PoolView, said: tuple[Telemetry, ...]) -> list[Condition]:
    """Return every rule that holds now, for each of its subjects."""
    found: list[Condition] = []
    for rule in RULES:
        for row in health.findings:
            if row.silence is not None:
                continue
            if row.finding.check in rule.checks and row.finding.status >= rule.status:
                hint = visible(row.finding.hint)
                since = int(row.finding.since)
                found.append(Condition(rule, _subject(row), line(row), hint, since))
    by_name = {rule.name: rule for rule in RULES}
    found += _idle_while_others_wait(by_name["IdleWhileOthersWait"], view, said)
    found += _waits_with_free_gpus(by_name["WaitingWithFreeGpus"], view)
    return [each for each in found if not is_silenced(each, view)]


def is_silenced(condition: Condition, view: PoolView) -> bool:
    """Return whether the rule itself is silenced, on a server or of a subject."""
    server = condition.subject.partition("/")[0]
    return any(
        each.covers(condition.rule.name, server, condition.subject) for each in view.silences
    )


def _subject(row: PoolFinding) -> str:
    return visible("/".join((row.server, row.finding.check, row.finding.subject)))


def _idle_while_others_wait(
    rule: Rule, view: PoolView, said: tuple[Telemetry, ...]
) -> Iterator[Condition]:
    if not view.waiting:
        return
    idle_s: dict[LeaseId, float] = {}
    for telemetry in said:
        for session in telemetry.sessions:
            if session.idle_s is not None:
                least = idle_s.get(session.lease, session.idle_s)
                idle_s[session.lease] = min(least, session.idle_s)
    for lease in view.leases:
        if not lease.is_away and idle_s.get(lease.id, 0.0) > IDLE_S:
            minutes = idle_s[lease.id] / 60
            text = f"lease {lease.name} of {lease.user} has not computed for {minutes:.0f} minutes"
            yield Condition(
                rule, f"lease/{lease.name}", visible(text), f"gpupool kill {lease.name}"
            )


def wasteful_classes(sums: Iterable[SampleSum]) -> list[Condition]:
    """Return the classes of which samples of a week say that they used less than half."""
    rule = next(each for each in RULES if each.name == "ClassWaste")
    by_class: dict[str, SampleSum] = {}
    for each in sums:
        known = by_class.get(each.key)
        by_class[each.key] = each if known is None else known.plus(each)
    found: list[Condition] = []
    for name, each in sorted(by_class.items()):
        held_h, wasted_h = each.held / 1e6 / 3600, each.wasted / 1e6 / 3600
        if held_h >= WASTE_HELD_H and wasted_h > WASTE_SHARE * held_h:
            text = f"of {held_h:.0f} GPU-hours of class {name or 'none'} in a week, "
            text += f"{100 * wasted_h / held_h:.0f} % were idle"
            subject = f"class/{name or 'none'}"
            found.append(Condition(rule, visible(subject), visible(text), WASTED))
    return found


def _waits_with_free_gpus(rule: Rule, view: PoolView) -> Iterator[Condition]:
    free: list[GpuId] = [
        gpu.id
        for server in view.servers
        if server.state in ("idle", "mix")
        for gpu in server.gpus
        if gpu.memory_free and gpu.memory_free == gpu.capacity
    ]
    for entry in view.waiting[:1]:
        if free and entry.waited_s > WAITS_S:
            text = f"a request of {entry.user} has waited for {entry.waited_s / 60:.0f} minutes, "
            text += f"and {len(free)} GPUs are free: {entry.reason}"
            yield Condition(rule, "pool/waiting", visible(text), "gpupool leases shows why")
