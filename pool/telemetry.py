"""Telemetry that servers measure, for the views, the metrics, the history and the checks.

``Telemetry`` is one server's, with that of its GPUs and of its leases' sessions. Counters grow from
the server's start; None is a reading that is not to be had, which is never shown as 0. Nothing
secret is in it.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from gpupool.pool.model.bounds import Figure, GpuKey, Int, LeaseNumber, Line, Name, ServerKey, Time
from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import GpuId, Milliseconds, ServerId

PerServer = dict[ServerKey, Int]
HISTOGRAMS: dict[str, tuple[float, ...]] = {
    name: tuple(
        start * factor for factor in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    )
    for name, start in {
        "lease_wait_seconds": 0.01,
        "lease_duration_seconds": 1.0,
        "grant_duration_seconds": 0.0005,
        "session_rtt_seconds": 0.00002,
        "worker_start_seconds": 0.005,
        "raft_commit_duration_seconds": 0.0005,
        "raft_fsync_duration_seconds": 0.0001,
    }.items()
}
"""The upper bounds of each histogram's 14 buckets; one more bucket has all that is above."""


class Health(IntEnum):
    """A check's result."""

    OK = 0
    WARN = 1
    FAIL = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result for one subject: a GPU's id, a peer's name, a file system, or nothing."""

    check: Name
    subject: Line
    status: Health
    since: Time  # of this status, by the pool's time
    text: Line
    hint: Line = ""  # with a command
    flaps: bool = field(default=False, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values by bucket, as ``HISTOGRAMS`` bounds them, and the sum of the values."""

    counts: tuple[Int, ...]
    sum: Figure


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """NVML's readings of one GPU; None for a reading that this device does not give."""

    gpu: GpuKey
    memory_used: Int
    utilization: Figure | None = None  # 0 to 1: the share of time in which any kernel ran
    temperature_c: Figure | None = None
    power_w: Figure | None = None
    energy_j: Figure | None = None
    ecc_errors: Int | None = None  # uncorrected
    sm_activity: Figure | None = field(default=None, metadata=OPTIONAL)  # 0 to 1, as the next two
    tensor_activity: Figure | None = field(default=None, metadata=OPTIONAL)
    memory_bandwidth: Figure | None = field(default=None, metadata=OPTIONAL)
    memory_temperature_c: Figure | None = field(default=None, metadata=OPTIONAL)
    shutdown_c: Figure | None = field(default=None, metadata=OPTIONAL)  # it turns itself off there
    power_limit_w: Figure | None = field(default=None, metadata=OPTIONAL)
    sm_clock_hz: Figure | None = field(default=None, metadata=OPTIONAL)
    #: Seconds by reason: power, thermal, hw_thermal, hw_power_brake, sync_boost.
    throttled_s: dict[Name, Figure] = field(default_factory=dict[str, float], metadata=OPTIONAL)
    ecc_corrected: Int | None = field(default=None, metadata=OPTIONAL)
    #: By state: corrected, uncorrected, pending, failed.
    remapped_rows: dict[Name, Int] = field(default_factory=dict[str, int], metadata=OPTIONAL)
    pcie_bytes_in: Int | None = field(default=None, metadata=OPTIONAL)
    pcie_bytes_out: Int | None = field(default=None, metadata=OPTIONAL)
    pcie_replays: Int | None = field(default=None, metadata=OPTIONAL)
    nvlink_errors: Int | None = field(default=None, metadata=OPTIONAL)
    nvlinks_up: Int | None = field(default=None, metadata=OPTIONAL)
    #: The PCIe link now, which rests when idle, and at its best: lanes, and generation.
    pcie_width: Int | None = field(default=None, metadata=OPTIONAL)
    pcie_width_max: Int | None = field(default=None, metadata=OPTIONAL)
    pcie_generation: Int | None = field(default=None, metadata=OPTIONAL)
    pcie_generation_max: Int | None = field(default=None, metadata=OPTIONAL)
    xids: dict[Int, Int] = field(default_factory=dict[int, int], metadata=OPTIONAL)  # times seen
    xid_at: Time = field(default=Milliseconds(0), metadata=OPTIONAL)  # of the last
    recovery_action: Int | None = field(default=None, metadata=OPTIONAL)  # NVML's; 0: none


@dataclass(frozen=True, slots=True)
class SessionTelemetry:
    """Traffic over the wire for one lease on one server, since its sessions opened."""

    lease: LeaseNumber
    workers: Int
    calls: Int
    bytes_in: Int
    bytes_out: Int
    memory_reserved: Int
    memory_used: Int | None = field(default=None, metadata=OPTIONAL)
    waits: Int | None = field(default=None, metadata=OPTIONAL)  # answers that a caller waited for
    wait_us: Int | None = field(default=None, metadata=OPTIONAL)  # time to execute those
    door: Name = field(default="", metadata=OPTIONAL)  # array or cuda
    transport: Name = field(default="", metadata=OPTIONAL)  # tcp, tls, unix
    rtt_us: Int | None = field(default=None, metadata=OPTIONAL)  # the kernel's smoothed estimate
    rtt_var_us: Int | None = field(default=None, metadata=OPTIONAL)
    retransmits: Int | None = field(default=None, metadata=OPTIONAL)
    #: The share of each GPU's computing time in the last second, 0 to 1; a GPU's is absent where
    #: the driver does not say.
    busy: dict[GpuKey, Figure] = field(default_factory=dict[GpuId, float], metadata=OPTIONAL)
    busy_estimated: bool = field(default=False, metadata=OPTIONAL)
    idle_s: Figure | None = field(default=None, metadata=OPTIONAL)  # since it last computed
    #: The share of each GPU's time that it is due when others want theirs, and that it got of
    #: late; the latter is absent where nobody else wanted any.
    share_due: dict[GpuKey, Figure] = field(default_factory=dict[GpuId, float], metadata=OPTIONAL)
    share_got: dict[GpuKey, Figure] = field(default_factory=dict[GpuId, float], metadata=OPTIONAL)
    not_suspendable: Line = field(default="", metadata=OPTIONAL)  # why, as its host sees it


@dataclass(frozen=True, slots=True)
class HostTelemetry:
    """Linux's figures of one server's machine and gpupool's processes there; sizes in bytes."""

    cpu_busy: Figure | None = None  # 0 to 1, of all processors
    memory_total: Int | None = None
    memory_available: Int | None = None
    network_in: Int | None = None  # counters of the advertised interface
    network_out: Int | None = None
    network_speed: Int | None = None  # Mbit/s
    disk_total: Int | None = None  # of the state directory's file system
    disk_free: Int | None = None
    #: By process: server, exporter, privileged helper, workers.
    resident: dict[Name, Int] = field(default_factory=dict[str, int])
    cpu_s: dict[Name, Figure] = field(default_factory=dict[str, float])
    descriptors: Int | None = None  # of the server, with its limit
    descriptors_max: Int | None = None
    disk_read_only: bool = field(default=False, metadata=OPTIONAL)
    network_mtu: Int | None = field(default=None, metadata=OPTIONAL)  # of the interface
    #: Of the server's cgroup, without what the kernel can take back; absent without a limit.
    memory_charged: Int | None = field(default=None, metadata=OPTIONAL)
    memory_limit: Int | None = field(default=None, metadata=OPTIONAL)
    pids: Int | None = field(default=None, metadata=OPTIONAL)
    pids_max: Int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class ConsensusTelemetry:
    """Telemetry of a server's replication."""

    journal_bytes: Int = 0
    snapshot_age_s: Figure | None = None
    #: Of each peer that is linked, by its id: seconds, and its clock's less this server's.
    link_rtt_s: dict[ServerKey, Figure] = field(default_factory=dict[ServerId, float])
    clock_offset_s: dict[ServerKey, Figure] = field(default_factory=dict[ServerId, float])
    snapshot_bytes: Int | None = field(default=None, metadata=OPTIONAL)  # of the newest
    #: Of each link: the path's MTU, segments sent, and those sent again, since it came up.
    link_mtu: PerServer = field(default_factory=dict[ServerId, int], metadata=OPTIONAL)
    link_sent: PerServer = field(default_factory=dict[ServerId, int], metadata=OPTIONAL)
    link_resent: PerServer = field(default_factory=dict[ServerId, int], metadata=OPTIONAL)
    #: Seconds for which 64 KiB have been under way to a peer; absent unless it is some.
    link_stalls_s: dict[ServerKey, Figure] = field(
        default_factory=dict[ServerId, float], metadata=OPTIONAL
    )
    table_ahead_s: Figure = field(default=0.0, metadata=OPTIONAL)
    """The table's time less that of the voters' clocks; not negative."""
    #: Peers that speak another version of the links, with theirs.
    link_versions: PerServer = field(default_factory=dict[ServerId, int], metadata=OPTIONAL)
    #: Linked peers that were not met at their address in the table, and how often in a row.
    link_away: PerServer = field(default_factory=dict[ServerId, int], metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Telemetry of one server."""

    server: ServerKey
    at: Time
    gpus: tuple[GpuTelemetry, ...] = ()
    sessions: tuple[SessionTelemetry, ...] = ()
    loop_lag_s: Figure = 0.0
    counters: dict[Name, Int] = field(default_factory=dict[str, int])
    host: HostTelemetry | None = field(default=None, metadata=OPTIONAL)
    consensus: ConsensusTelemetry | None = field(default=None, metadata=OPTIONAL)
    histograms: dict[Name, Histogram] = field(
        default_factory=dict[str, Histogram], metadata=OPTIONAL
    )
    findings: tuple[Finding, ...] = field(default=(), metadata=OPTIONAL)
