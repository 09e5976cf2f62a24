"""The values of one server's metrics, from a sample: each name of ``metric_names`` has one meaning.

An unknown value is an absent series, never 0 and never NaN. A label has few values: users are one
only where ``--metrics-users`` asks for them, leases, processes and programs never are. Pure code:
``http/metrics_text`` writes it as Prometheus reads it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpupool.monitoring.metric_names import LEASE_FAMILY, METRICS
from gpupool.monitoring.metric_series import OTHER, Found, Labels, cut
from gpupool.monitoring.metric_totals import Totals
from gpupool.monitoring.sample import GpuBooks, Sample
from gpupool.pool.measures import RESULTS
from gpupool.pool.model.ids import ServerId
from gpupool.pool.telemetry import GpuTelemetry, Histogram

SERVER_STATES = ("new", "idle", "mix", "full", "drain", "down")
XID_VALUES_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Data of the exporter itself, beside the sample."""

    protocol: int
    table: int
    started_at: float | None = None
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    requests: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    durations: Mapping[str, Histogram] = field(default_factory=dict[str, Histogram])


def read(sample: Sample, totals: Totals, own: Own) -> Found:
    """Return all series of one server at one moment, at most ``SERIES_MAX``."""
    found = Found()
    _read_process(found, sample, own)
    known = {each.gpu: each for each in sample.telemetry.gpus}
    for books in sample.gpus:
        _read_gpu(found, books, known.get(books.gpu))
    _read_leases(found, sample, totals)
    _read_histograms(found, sample, totals)
    _read_raft(found, sample)
    _read_pool(found, sample)
    for finding in sample.telemetry.findings:
        found.add("health_check_status", finding.status, finding.check, finding.subject)
    for file, size in own.files.items():
        found.add("history_bytes", size, file)
    found.add("history_dropped_samples_total", sample.dropped)
    for (route, code), count in own.requests.items():
        found.add("observer_http_requests_total", count, route, code)
    for route, durations in own.durations.items():
        found.add("observer_http_request_duration_seconds", durations, route)
    found.add("metrics_limited", cut(found))
    return found


def labels_of(users: int) -> Callable[[str], Labels]:
    """Return a function of a metric's label names, with rows for so many users."""

    def labels(name: str) -> Labels:
        declared = METRICS[name].labels
        if users and name in LEASE_FAMILY:
            return (declared[0], "user", *declared[1:])
        return declared

    return labels


def _read_process(found: Found, sample: Sample, own: Own) -> None:
    telemetry = sample.telemetry
    found.add("build_info", 1, sample.version, str(own.protocol), str(own.table))
    versions = (sample.driver_version, sample.cuda_version)
    found.add("server_info", 1, telemetry.server, sample.name, *versions)
    for state in SERVER_STATES:
        found.add("server_state", state == sample.state, state)
    found.add("start_time_seconds", own.started_at)
    found.add("loop_lag_seconds", telemetry.loop_lag_s)
    if telemetry.host is not None:
        for process, size in telemetry.host.resident.items():
            found.add("process_resident_bytes", size, process)
        for process, seconds in telemetry.host.cpu_s.items():
            found.add("process_cpu_seconds_total", seconds, process)


LOST = "the gpu has fallen off the bus"
"""So the host's words begin, in small letters, of a GPU that is gone."""


def fault_kind(fault: str) -> str:
    """Return the kind of a fault that is told in words."""
    lowered = fault.lower()
    if lowered.startswith(LOST):
        return "lost"
    return next((kind for kind in ("xid", "lost", "recovery") if kind in lowered), "other")


def _read_gpu(found: Found, books: GpuBooks, read: GpuTelemetry | None) -> None:
    gpu = (str(books.index), books.gpu)
    if books.fault:
        found.add("gpu_fault", 1, *gpu, fault_kind(books.fault))
    if read is None or books.fault.lower().startswith(LOST):
        return  # all that is known; the host keeps what it last read of it
    found.add("gpu_info", 1, *gpu, books.model, books.pci_bus_id, books.parent)
    found.add("gpu_memory_total_bytes", books.memory_total, *gpu)
    found.add("gpu_memory_granted_bytes", books.granted, *gpu)
    found.add("gpu_memory_foreign_bytes", books.foreign, *gpu)
    found.add("gpu_leases", books.leases, *gpu)
    found.add("gpu_drained", books.state == "drain", *gpu)
    found.add("gpu_busy_ratio", read.utilization, *gpu)
    found.add("gpu_sm_activity_ratio", read.sm_activity, *gpu)
    found.add("gpu_tensor_activity_ratio", read.tensor_activity, *gpu)
    found.add("gpu_memory_bandwidth_ratio", read.memory_bandwidth, *gpu)
    found.add("gpu_memory_used_bytes", read.memory_used, *gpu)
    found.add("gpu_temperature_celsius", read.temperature_c, *gpu, "gpu")
    found.add("gpu_temperature_celsius", read.memory_temperature_c, *gpu, "memory")
    found.add("gpu_power_watts", read.power_w, *gpu)
    found.add("gpu_power_limit_watts", read.power_limit_w, *gpu)
    found.add("gpu_sm_clock_hertz", read.sm_clock_hz, *gpu)
    found.add("gpu_energy_joules_total", read.energy_j, *gpu)
    for reason, seconds in read.throttled_s.items():
        found.add("gpu_throttled_seconds_total", seconds, *gpu, reason)
    for xid, count in xids_of(read.xids).items():
        found.add("gpu_xid_errors_total", count, *gpu, xid)
    if read.xid_at:
        found.add("gpu_xid_last_timestamp_seconds", read.xid_at / 1000, *gpu)
    found.add("gpu_ecc_errors_total", read.ecc_errors, *gpu, "uncorrected")
    found.add("gpu_ecc_errors_total", read.ecc_corrected, *gpu, "corrected")
    for state, rows in read.remapped_rows.items():
        found.add("gpu_remapped_rows", rows, *gpu, state)
    found.add("gpu_pcie_bytes_total", read.pcie_bytes_in, *gpu, "in")
    found.add("gpu_pcie_bytes_total", read.pcie_bytes_out, *gpu, "out")
    found.add("gpu_pcie_replays_total", read.pcie_replays, *gpu)
    found.add("gpu_nvlink_errors_total", read.nvlink_errors, *gpu)


def xids_of(xids: Mapping[int, int]) -> dict[str, int]:
    """Return counts by Xid, the rare ones beyond the most put together."""
    if len(xids) <= XID_VALUES_MAX:
        return {str(xid): count for xid, count in sorted(xids.items())}
    often = sorted(xids, key=lambda xid: (-xids[xid], xid))
    found = {str(xid): xids[xid] for xid in often[:XID_VALUES_MAX]}
    return found | {OTHER.strip("_"): sum(xids[xid] for xid in often[XID_VALUES_MAX:])}


def _read_leases(found: Found, sample: Sample, totals: Totals) -> None:
    for name, rows in totals.read(sample).items():
        for labels, value in rows.items():
            found.add(name, value, *labels)
    sessions = sample.telemetry.sessions
    counters = sample.telemetry.counters
    states = {key.removeprefix("workers_"): key for key in counters if key.startswith("workers_")}
    for state, key in sorted(states.items()):
        found.add("workers", counters[key], state)
    if "serving" not in states:
        found.add("workers", sum(session.workers for session in sessions), "serving")
    for result in RESULTS:
        found.add("grants_total", counters.get(f"grants_{result}"), result)


def _read_histograms(found: Found, sample: Sample, totals: Totals) -> None:
    """Read the histograms: ``name``, or ``name:label`` where there is a label."""
    for key, histogram in sample.telemetry.histograms.items():
        name, _, label = key.partition(":")
        if name not in METRICS or name in totals.HISTOGRAMS_OWN:
            continue
        found.add(name, histogram, *((label,) if METRICS[name].labels else ()))


def _read_raft(found: Found, sample: Sample) -> None:
    raft, me = sample.raft, sample.telemetry.server
    found.add("raft_leader", raft.role == "leader")
    found.add("raft_term", raft.term)
    found.add("raft_commit_index", raft.commit_index)
    found.add("raft_applied_index", raft.applied_index)
    found.add("raft_elections_total", raft.elections)
    others = [voter for voter in raft.voters if voter != me]
    connected = sum(voter in raft.connected for voter in others)
    found.add("raft_peers", connected, "connected")
    found.add("raft_peers", len(others) - connected, "away")
    if raft.majority_age_s < float("inf"):
        found.add("raft_majority_age_seconds", raft.majority_age_s)
    if raft.voters:
        found.add("raft_quorum_margin", raft.reached(me) - (len(raft.voters) // 2 + 1))
    consensus = sample.telemetry.consensus
    if consensus is not None:
        found.add("raft_journal_bytes", consensus.journal_bytes)
        found.add("raft_snapshot_age_seconds", consensus.snapshot_age_s)
        _read_peers(found, "raft_link_rtt_seconds", consensus.link_rtt_s)
        _read_peers(found, "raft_link_clock_offset_seconds", consensus.clock_offset_s)


def _read_peers(found: Found, name: str, by_peer: Mapping[ServerId, float]) -> None:
    for peer, value in by_peer.items():
        found.add(name, value, peer)


def _read_pool(found: Found, sample: Sample) -> None:
    pool = sample.pool
    if pool is None:
        return  # not in touch with a majority: what it knows may be old
    for state, count in pool.servers.items():
        found.add("pool_servers", count, state)
    for state, count in pool.gpus.items():
        found.add("pool_gpus", count, state)
    able = sum(pool.gpus.get(state, 0) for state in ("idle", "mix", "full"))
    found.add("pool_gpu_capacity", able)
    found.add("pool_gpu_granted", pool.gpu_shares)
    for user_class, count in pool.waiting.items():
        found.add("pool_waiting", count, user_class)
    found.add("pool_oldest_wait_seconds", pool.oldest_wait_ms / 1000)
    found.add("pool_policy_version", pool.policy_version)
    found.add("pool_view_age_seconds", sample.raft.majority_age_s)
