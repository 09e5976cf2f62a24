"""The table of all checks: the subject, the interval and the patience of each.

``docs/health.md`` has a table that is generated from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpupool.monitoring.health import gpu_checks, pool_checks, server_checks
from gpupool.monitoring.health.readings import Past, Readings, Result

Run = Callable[[Readings, Past], Iterator[Result]]

FAST_S, SLOW_S = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check; its results carry its name."""

    name: str
    subject: str  # what a finding is about
    warns: str
    fails: str
    every_s: float = SLOW_S
    patience_s: float = 0.0  # for which it must be bad before it is said


CHECKS = (
    Check("gpu-fault", "a GPU", "", "its server calls it faulty or lost", FAST_S),
    Check("xid", "a GPU", "Xid 63, 74", "an Xid of the hardware", FAST_S),
    Check(
        "repeated-xid",
        "a GPU",
        "Xid 13, 31, 43, 45, 94 in 3 leases of 2 users within 24 h",
        "",
        FAST_S,
    ),
    Check("recovery", "a GPU", "", "the driver advises a reset or a restart", FAST_S),
    Check("drained", "a GPU", "it was drained automatically", "", FAST_S),
    Check("foreign-use", "a GPU", "others hold more than 5 % of its memory", "", FAST_S, 5.0),
    Check(
        "ecc",
        "a GPU",
        "corrected errors come 10 times as fast as in a month, or since the start",
        "an uncorrected error since the start",
    ),
    Check("remapped-rows", "a GPU", "rows wait to be remapped", "a remapping failed"),
    Check("temperature", "a GPU", "", "3 C below where it turns itself off, or above"),
    Check(
        "throttle",
        "a GPU",
        "slowed down by heat or the power brake for more than 5 % of 10 minutes",
        "by the hardware for more than 50 % of 10 minutes",
    ),
    Check("pcie", "a GPU", "more than 10 replays in a minute", ""),
    Check(
        "pcie-link",
        "a GPU",
        "under load fewer lanes or a lower speed than its best",
        "",
        patience_s=15.0,  # the link's reading may be ten seconds older than that of the load
    ),
    Check("nvlink", "a GPU", "errors within 10 minutes", "a link is down that was up"),
    Check(
        "self-test",
        "a GPU",
        "10 % slower than in its first test; not of emulated GPUs",
        "it computed wrongly, or could not be tested",
    ),
    Check("gpu-count", "the server", "another number of GPUs than at its last start", ""),
    Check(
        "clock",
        "the server",
        "more than 1 s off the time on which most voters' clocks agree",
        "more than 5 s; no majority of them agrees",
    ),
    Check("pool-time", "the pool", "", "more than 5 s ahead of the voters' clocks"),
    Check(
        "disk",
        "free, sync, write",
        "less than 10 % or 10 GiB free; 1 of 100 syncs takes more than 50 ms",
        "less than 2 GiB free; more than 500 ms; it can only be read",
    ),
    Check("descriptors", "the server", "80 % of the limit", "95 % of the limit"),
    Check("memory", "the server", "80 % of its unit's limit", "95 % of the limit"),
    Check("processes", "the server", "80 % of its unit's limit", "95 % of the limit"),
    Check(
        "event-loop", "the server", "late by 0.1 s in 3 of 10 s", "late by 1 s in 3 of 10 s", FAST_S
    ),
    Check("link", "another voter", "", "no link for 10 s", FAST_S, 10.0),
    Check("address", "another server", "", "it is linked, and not met twice at its address"),
    Check(
        "link-rtt",
        "another server",
        "more than 5 ms, or 3 times the median of all links and 1 ms",
        "",
        FAST_S,
        30.0,
    ),
    Check("link-loss", "another server", "more than 0.1 % of 10 minutes had to be sent again", ""),
    Check("link-speed", "a server", "its interface is slower than most servers'", ""),
    Check(
        "mtu",
        "another server",
        "packets on the way are smaller than the interface allows",
        "64 KiB, sent every 10 minutes, do not arrive in 5 s",
    ),
    Check("journal", "the server", "64 MiB, and 4 times its snapshot", ""),
    Check(
        "apply-lag",
        "the server",
        "more than 100 entries behind",
        "nothing applied for a minute although there is something",
    ),
    Check("elections", "the server", "more than 3 in an hour", "more than 3 in a minute"),
    Check(
        "worker-start",
        "the server",
        "a worker took more than 10 s within 10 minutes",
        "two could not be started within 10 minutes",
    ),
    Check(
        "certificate",
        "server, web, ca, signer",
        "it ends within 30 days, the CA's within 180",
        "it ends within 3 days; the process that signs has ended",
    ),
    Check(
        "history",
        "exporter, samples, database",
        "the exporter ended more than 3 times in an hour; samples were dropped; no room is left;"
        " the clock was set back",
        "its database cannot be used",
    ),
    Check(
        "quorum",
        "the pool",
        "one more loss stops grants; an even number of voters",
        "no majority",
        FAST_S,
        1.0,
    ),
    Check("silent", "a server", "", "the pool has no contact with it", FAST_S),
    Check("table", "a server", "", "its table differs from the others'", FAST_S),
    Check(
        "versions",
        "gpupool, driver, a server",
        "not alike, gpupool for more than a day",
        "it speaks another version of the links",
    ),
    Check(
        "waiting",
        "the pool",
        "the oldest for more than 1 h while fitting GPUs are drained or down",
        "for more than 24 h",
    ),
    Check(
        "tokens",
        "an operator",
        "the last token ends within 14 days",
        "no operator has a valid one",
    ),
    Check("backup", "the pool", "the newest backup is older than 7 days, or there is none", ""),
)

FAST: tuple[Run, ...] = (
    gpu_checks.faults,
    gpu_checks.xids,
    gpu_checks.recovery,
    gpu_checks.drained,
    gpu_checks.foreign_use,
    server_checks.event_loop,
    server_checks.links,
    pool_checks.quorum,
    pool_checks.silent,
)
SLOW: tuple[Run, ...] = (
    gpu_checks.memory_errors,
    gpu_checks.heat,
    gpu_checks.buses,
    gpu_checks.self_tests,
    server_checks.gpu_count,
    server_checks.clock,
    server_checks.pool_time,
    server_checks.disk,
    server_checks.limits,
    server_checks.paths,
    server_checks.journal,
    server_checks.other_versions,
    server_checks.addresses,
    server_checks.replication,
    server_checks.workers,
    server_checks.certificates,
    server_checks.history,
    pool_checks.versions,
    pool_checks.waiting,
    pool_checks.tokens,
    pool_checks.backup,
)

PATIENCE_S = {check.name: check.patience_s for check in CHECKS if check.patience_s}

POOL_CHECKS = (
    *("quorum", "silent", "table", "versions", "waiting", "tokens", "backup"),
    "pool-time",
)
"""Each server has a finding of these about the pool, not about itself."""


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Return the table for people: check, subject, when it warns, when it fails, how often."""
    for check in CHECKS:
        every = f"{check.every_s:g} s"
        if check.patience_s:
            every += f", after {check.patience_s:g} s"
        yield check.name, check.subject, check.warns or "-", check.fails or "-", every
