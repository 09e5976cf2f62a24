"""Checks of one server's machine, processes, links and replication: pure, as ``gpu_checks``."""

from collections.abc import Iterator
from statistics import median

from gpupool.monitoring.health.readings import LAGS, Past, Readings, Result
from gpupool.monitoring.history.history_settings import PASSING
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import ServerStatus
from gpupool.pool.model.units import DAY_S, GIB, MIB
from gpupool.pool.table_clock import BOUND_S, agreed_time
from gpupool.pool.telemetry import HISTOGRAMS, Health, Histogram

WARN, FAIL = Health.WARN, Health.FAIL

DISK_WARN_SHARE, DISK_WARN, DISK_FAIL = 0.10, 10 * GIB, 2 * GIB
FSYNC_WARN_S, FSYNC_FAIL_S, FSYNC_COUNT_MIN = 0.05, 0.5, 20
OFFSET_WARN_S, OFFSET_FAIL_S = 1.0, 5.0
USED_WARN, USED_FAIL = 0.80, 0.95
LAG_WARN_S, LAG_FAIL_S, LAG_COUNT = 0.1, 1.0, 3
"""Of the latest ten seconds three must be slow: one alone is a busy machine's."""
RTT_WARN_S, RTT_TIMES, RTT_TIMES_MIN_S = 0.005, 3.0, 0.001
APPLY_LAG_WARN = 100
LOSS_WARN, SEGMENTS_MIN = 0.001, 5000
MTU_MAX = 60_000
"""The loopback's MTU is larger than TCP reports of a path."""
JOURNAL_TIMES, JOURNAL_MIN = 4, 64 * MIB
STANDS_S = 55.0
ELECTIONS_A_MINUTE = ELECTIONS_AN_HOUR = 3
SPAWN_WARN_S = 10.0
RESTARTS_AN_HOUR = 3
CERTIFICATE_WARN_S, CERTIFICATE_FAIL_S, CA_WARN_S = 30 * DAY_S, 3 * DAY_S, 180 * DAY_S


def quantile(name: str, histogram: Histogram, share: float) -> float:
    """Return the upper bound of the bucket in which the value at ``share`` of all lies."""
    bounds, left = HISTOGRAMS[name], share * sum(histogram.counts)
    for bound, count in zip(bounds, histogram.counts, strict=False):
        left -= count
        if left <= 0:
            return bound
    return float("inf")


def _since(name: str, readings: Readings, past: Past, within_s: float) -> Histogram | None:
    """Return a histogram's growth in the latest seconds."""
    now = readings.telemetry.histograms.get(name)
    moment = past.since(within_s, readings.now_s)
    if now is None or moment is None:
        return None
    then = moment.telemetry.histograms.get(name)
    if then is None:
        return now
    counts = tuple(max(0, a - b) for a, b in zip(now.counts, then.counts, strict=True))
    return Histogram(counts, max(0.0, now.sum - then.sum))


def _name(readings: Readings, server: ServerId) -> str:
    known = readings.state.servers.get(server)
    return known.name if known is not None else server


def clock(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of a wall clock that is off the time on which a majority of the voters' clocks agree.

    No one clock is a measure for the others, the leader's included.
    """
    consensus, me = readings.telemetry.consensus, readings.telemetry.server
    if consensus is None:
        return
    offsets = {**consensus.clock_offset_s, me: 0.0}  # of each clock, from this server's
    voters = readings.health.voters
    walls = [round(1000 * offsets[voter]) for voter in voters if voter in offsets]
    if len(walls) < len(voters) // 2 + 1:
        return
    agreed_ms = agreed_time(walls, len(voters))
    hint = "set the time with chrony or systemd-timesyncd; gpupool clock shows all"
    if agreed_ms is None:
        apart_s = (max(walls) - min(walls)) / 1000
        text = f"no majority of the voters' clocks agrees: they are up to {apart_s:.1f} s apart"
        yield Result("clock", "", FAIL, text, hint)
    elif abs(agreed_ms) > 1000 * OFFSET_WARN_S:
        way = "behind" if agreed_ms > 0 else "ahead of"
        text = f"the clock of {_name(readings, me)} is {abs(agreed_ms) / 1000:.1f} s {way} the time"
        text += " on which most voters' clocks agree"
        status = FAIL if abs(agreed_ms) > 1000 * OFFSET_FAIL_S else WARN
        yield Result("clock", "", status, text, hint)


def pool_time(readings: Readings, past: Past) -> Iterator[Result]:
    """Report a table with a time ahead of the clocks."""
    consensus = readings.telemetry.consensus
    if consensus is not None and consensus.table_ahead_s > BOUND_S:
        text = f"the pool's time is {consensus.table_ahead_s:.0f} s ahead of the voters' clocks"
        hint = "it runs at half speed until they have caught up; gpupool clock --mend sets it back"
        yield Result("pool-time", "", FAIL, text, hint)


def disk(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of a disk that fills up or is slow."""
    host = readings.telemetry.host
    if host is not None and host.disk_read_only:
        text = "the disk of the state directory can only be read"
        yield Result("disk", "write", FAIL, text, "dmesg says why; then mount it anew")
    if host is not None and host.disk_free is not None:
        free, total = host.disk_free, host.disk_total
        small = free < DISK_WARN and (total is None or total > 2 * DISK_WARN)
        if free < DISK_FAIL or small or (total and free < DISK_WARN_SHARE * total):
            text = f"{free / GIB:.1f} GiB are free on the disk of the state directory"
            hint = "make room; gpupool needs 2 GiB to be safe"
            yield Result("disk", "free", FAIL if free < DISK_FAIL else WARN, text, hint)
    synced = _since("raft_fsync_duration_seconds", readings, past, 60.0)
    if synced is not None and sum(synced.counts) >= FSYNC_COUNT_MIN:
        slow_s = quantile("raft_fsync_duration_seconds", synced, 0.99)
        if slow_s > FSYNC_WARN_S:
            text = f"1 of 100 syncs of the journal takes {min(slow_s, 9.9) * 1000:.0f} ms or more"
            hint = "give the state directory a disk of its own"
            yield Result("disk", "sync", FAIL if slow_s > FSYNC_FAIL_S else WARN, text, hint)


def limits(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of a server that is about to run out of file descriptors, memory or processes."""
    if (host := readings.telemetry.host) is None:
        return
    used, most = host.memory_charged, host.memory_limit
    memory = f"{(used or 0) / GIB:.1f} of {(most or 0) / GIB:.1f} GiB of its unit's memory are used"
    rows = (
        (
            *("descriptors", host.descriptors, host.descriptors_max, "LimitNOFILE"),
            f"{host.descriptors} of {host.descriptors_max} file descriptors are open",
        ),
        ("memory", used, most, "MemoryMax", memory),
        (
            *("processes", host.pids, host.pids_max, "TasksMax"),
            f"{host.pids} of {host.pids_max} processes and threads of its unit exist",
        ),
    )
    for check, count, limit, setting, text in rows:
        if count is not None and limit and count > USED_WARN * limit:
            status = FAIL if count > USED_FAIL * limit else WARN
            yield Result(check, "", status, text, f"raise {setting} of its unit")


def gpu_count(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of GPUs that came or went between two starts."""
    server, before = readings.server, readings.gpus_before
    if server is not None and before is not None and before != len(server.gpus):
        text = f"it has {len(server.gpus)} GPUs, and had {before} at its last start"
        hint = "nvidia-smi on that server shows what the driver sees; its next start forgets this"
        yield Result("gpu-count", "", WARN, text, hint)


def paths(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of links that lose packets, and of paths that take only small ones."""
    consensus, host = readings.telemetry.consensus, readings.telemetry.host
    if consensus is None:
        return
    then = past.since(600.0, readings.now_s)
    before = then.telemetry.consensus if then is not None else None
    for peer, sent in consensus.link_sent.items():
        old = before.link_sent.get(peer, 0) if before is not None else 0
        lost = consensus.link_resent.get(peer, 0)
        if before is not None and 0 <= old <= sent:
            sent, lost = sent - old, lost - before.link_resent.get(peer, 0)
        if sent >= SEGMENTS_MIN and lost > LOSS_WARN * sent:
            name = _name(readings, peer)
            text = f"{lost / sent:.1%} of what was sent to {name} was sent again"
            yield Result("link-loss", name, WARN, text, "look at the cables and the switch between")
    own = min((host.network_mtu if host is not None else None) or 0, MTU_MAX)
    for peer in {**consensus.link_mtu, **consensus.link_stalls_s}:
        name, path = _name(readings, peer), consensus.link_mtu.get(peer, own)
        if (stalls_s := consensus.link_stalls_s.get(peer)) is not None:
            text = f"64 KiB have been under way to {name} for {stalls_s:.0f} s"
            hint = "does something between drop large packets? compare the MTU on the way"
            yield Result("mtu", name, FAIL, text, hint)
        elif 0 < path < own:
            text = f"the way to {name} takes packets of {path} bytes, the interface {own}"
            hint = "set the MTU of all interfaces and switches between to the same"
            yield Result("mtu", name, WARN, text, hint)


def journal(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of a journal that no snapshot has shortened."""
    consensus = readings.telemetry.consensus
    size = consensus.journal_bytes if consensus is not None else 0
    snapshot = (consensus.snapshot_bytes if consensus is not None else None) or 0
    if size > JOURNAL_MIN and size > JOURNAL_TIMES * snapshot:
        text = f"the journal has {size / MIB:.0f} MiB, and its snapshot {snapshot / MIB:.0f}"
        yield Result("journal", "", WARN, text, "its log says why no snapshot is written")


def other_versions(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of servers that this one cannot understand."""
    consensus = readings.telemetry.consensus
    for peer, version in (consensus.link_versions if consensus is not None else {}).items():
        name = _name(readings, peer)
        text = f"{name} speaks version {version} of the links, which others do not understand"
        yield Result("versions", name, FAIL, text, "install the same gpupool on all servers")


def addresses(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of servers that reach this one, and cannot be reached where they say."""
    consensus, me = readings.telemetry.consensus, _name(readings, readings.telemetry.server)
    for peer, times in (consensus.link_away if consensus is not None else {}).items():
        server = readings.state.servers.get(peer)
        if server is not None and times > 1:
            text = f"{server.address}, the address of {server.name}, cannot be reached from {me}"
            hint = "open that port there, or start it with --advertise HOST:PORT that others reach"
            yield Result("address", server.name, FAIL, text, hint)


def event_loop(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of a control loop that is late."""
    for limit_s, status in ((LAG_FAIL_S, FAIL), (LAG_WARN_S, WARN)):
        slow = [lag for lag in past.lags if lag > limit_s]
        if len(slow) >= LAG_COUNT:
            text = f"the control loop was late by {max(slow):.1f} s in {len(slow)} of {LAGS} s"
            yield Result("event-loop", "", status, text, "is the machine overloaded?")
            return


def links(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of slow links to other servers, and of voters without one."""
    consensus, health = readings.telemetry.consensus, readings.health
    me, voters = readings.telemetry.server, set(health.voters)
    if me in voters:
        for peer in sorted(voters - {me} - set(health.connected)):
            server = readings.state.servers.get(peer)
            if server is not None and server.status is ServerStatus.UP:
                text = f"no link to {server.name}"
                yield Result("link", server.name, FAIL, text, "does a firewall stand between?")
    if consensus is None:
        return
    times = consensus.link_rtt_s
    usual = median(times.values()) if len(times) >= 3 else 0.0
    for peer, rtt_s in times.items():
        odd = usual and rtt_s > RTT_TIMES * usual and rtt_s > RTT_TIMES_MIN_S
        if rtt_s > RTT_WARN_S or odd:
            name = _name(readings, peer)
            text = f"the round trip to {name} takes {rtt_s * 1000:.1f} ms"
            yield Result(
                "link-rtt", name, WARN, text, "gpupool doctor --servers measures all links"
            )


def replication(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of a table that is behind, and of elections that do not end."""
    health = readings.health
    behind = health.commit_index - health.applied_index
    if behind > APPLY_LAG_WARN:
        text = f"{behind} committed entries are not applied here yet"
        yield Result("apply-lag", "", WARN, text, "is the machine overloaded?")
    then = past.since(70.0, readings.now_s)
    stands = then is not None and then.applied_index == health.applied_index
    if behind and then is not None and stands and readings.now_s - then.now_s >= STANDS_S:
        text = "committed entries have not been applied here for a minute"
        yield Result("apply-lag", "", FAIL, text, "see its log; restart this server")
    minute, hour = (past.counted(s, readings.now_s) for s in (70.0, 3660.0))
    if minute is not None and health.elections - minute.elections > ELECTIONS_A_MINUTE:
        text = f"{health.elections - minute.elections} elections in a minute"
        yield Result("elections", "", FAIL, text, "are links or disks of voters slow?")
    elif hour is not None and health.elections - hour.elections > ELECTIONS_AN_HOUR:
        text = f"{health.elections - hour.elections} elections in an hour"
        yield Result("elections", "", WARN, text, "are links or disks of voters slow?")


def workers(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of worker processes that start slowly or not at all."""
    name = "worker_start_seconds"
    started = _since(name, readings, past, 600.0)
    if started is not None:
        above = sum(bound <= SPAWN_WARN_S for bound in HISTOGRAMS[name])
        if slow := sum(started.counts[above + 1 :]):
            workers_say = "1 worker" if slow == 1 else f"{slow} workers"
            text = f"{workers_say} took more than 10 s to start in the last 10 minutes"
            yield Result("worker-start", "", WARN, text, "is the machine overloaded?")
    moment = past.since(600.0, readings.now_s)
    if moment is not None:
        counters, key = readings.telemetry.counters, "worker_start_failures"
        failed = counters.get(key, 0) - moment.telemetry.counters.get(key, 0)
        if failed >= 2:
            text = f"{failed} workers could not be started in the last 10 minutes"
            yield Result("worker-start", "", FAIL, text, "the log of this server says why")


def certificates(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of certificates that end soon, and of a server that can make no new ones."""
    for name, left_s in readings.certificates.items():
        limit_s = CA_WARN_S if name == "ca" else CERTIFICATE_WARN_S
        if left_s < limit_s:
            fails = left_s < CERTIFICATE_FAIL_S and name != "ca"
            text = f"the {name} certificate ends in {max(0.0, left_s) / DAY_S:.0f} days"
            hint = "gpupool ca rotate" if name == "ca" else "the log says why it is not renewed"
            yield Result("certificate", name, FAIL if fails else WARN, text, hint)
    if not readings.has_signer:
        text = "the process that signs certificates has ended: no server can join by this one"
        yield Result("certificate", "signer", FAIL, text, "restart this server")


def history(readings: Readings, past: Past) -> Iterator[Result]:
    """Report an exporter that does not keep its history."""
    exporter = readings.exporter
    if exporter is None:
        return
    if exporter.problem:
        status = WARN if exporter.problem in PASSING else FAIL
        yield Result("history", "database", status, exporter.problem, "see the log of this server")
    hour = past.counted(3660.0, readings.now_s)
    if hour is not None:
        restarts = exporter.restarts - hour.exporter.restarts
        if restarts > RESTARTS_AN_HOUR:
            text = f"the exporter has ended {restarts} times in an hour"
            yield Result("history", "observer", WARN, text, "see the log of this server")
    recent = past.counted(600.0, readings.now_s)
    if recent is not None and (dropped := exporter.dropped - recent.exporter.dropped) > 0:
        text = f"{dropped} samples of the last 10 minutes were dropped"
        yield Result("history", "samples", WARN, text, "see the log of this server")
