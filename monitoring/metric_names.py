"""The metrics of one server by name: kinds, labels and texts of all of them.

docs/metrics.md comes from ``DECLARED``, and ``metrics`` fills it with values.
"""

from dataclasses import dataclass

from gpupool.pool.telemetry import HISTOGRAMS

PREFIX = "gpupool_"
REQUEST_BUCKETS = tuple(0.001 * 2**power for power in range(14))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: ``kind`` is gauge, counter or histogram; its name lacks the prefix."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()


def _of(kind: str, labels: str, rows: str) -> list[Metric]:
    """Return the metrics of lines "name: text"; more labels stand in brackets behind a name."""
    found: list[Metric] = []
    for row in filter(None, map(str.strip, rows.splitlines())):
        said, _, text = row.partition(": ")
        name, _, more = said.partition("(")
        found.append(Metric(name, kind, text, (*labels.split(), *more.rstrip(")").split())))
    return found


DECLARED: tuple[Metric, ...] = (
    *_of(
        "gauge",
        "",
        """
        build_info(version protocol table): The program that runs; always 1.
        server_info(id server driver cuda): The server; always 1.
        server_state(state): 1 for the server's state, 0 for the other words.
        start_time_seconds: When the server's process began, since the Unix epoch.
        loop_lag_seconds: How late the server's event loop woke at its last timer.
        process_resident_bytes(process): Memory that gpupool's processes hold.
        """,
    ),
    *_of("counter", "", "process_cpu_seconds_total(process): Processor time of the processes."),
    *_of(
        "gauge",
        "gpu uuid",
        """
        gpu_info(model pci_bus_id parent): A GPU or MIG instance; always 1.
        gpu_busy_ratio: Share of time in which any kernel ran; says nothing of efficiency.
        gpu_sm_activity_ratio: Share of the multiprocessors that had work.
        gpu_tensor_activity_ratio: Share of time in which the tensor cores had work.
        gpu_memory_bandwidth_ratio: Share of the memory's bandwidth in use.
        gpu_memory_total_bytes: The GPU's memory.
        gpu_memory_used_bytes: Memory in use, by everybody.
        gpu_memory_granted_bytes: Memory that leases have been granted.
        gpu_memory_foreign_bytes: Memory in use by processes that are not the pool's.
        gpu_leases: Leases with a part on the GPU.
        gpu_temperature_celsius(sensor): Temperature of the chip and of the memory.
        gpu_power_watts: Power drawn.
        gpu_power_limit_watts: Power allowed.
        gpu_sm_clock_hertz: Clock of the multiprocessors.
        """,
    ),
    *_of(
        "counter",
        "gpu uuid",
        """
        gpu_energy_joules_total: Energy drawn since the driver was loaded.
        gpu_throttled_seconds_total(reason): Time with lowered clocks.
        gpu_xid_errors_total(xid): Errors that the driver reported, each as often as it came.
        """,
    ),
    *_of("gauge", "gpu uuid", "gpu_xid_last_timestamp_seconds: When the last of them came."),
    *_of("counter", "gpu uuid", "gpu_ecc_errors_total(severity): Memory errors."),
    *_of("gauge", "gpu uuid", "gpu_remapped_rows(state): Rows of memory that were replaced."),
    *_of(
        "counter",
        "gpu uuid",
        """
        gpu_pcie_bytes_total(direction): Bytes over PCIe, as the GPU sees them: in and out.
        gpu_pcie_replays_total: Packets that PCIe repeated.
        gpu_nvlink_errors_total: Errors of the GPU's links.
        """,
    ),
    *_of(
        "gauge",
        "gpu uuid",
        """
        gpu_fault(kind): 1 while the GPU must not be granted: lost, xid, recovery or other.
        gpu_drained: 1 while no new lease is granted on the GPU or its server.
        """,
    ),
    *_of(
        "gauge",
        "class",
        """
        leases(state): Leases with a part here that are held, suspended or ending.
        granted_gpus: GPUs granted here, as shares of their memory.
        """,
    ),
    *_of(
        "counter",
        "class",
        """
        granted_gpu_seconds_total: The same over time.
        busy_gpu_seconds_total: GPU time in which leases computed; a share may reach a whole GPU.
        idle_gpu_seconds_total: Granted GPU time in which leases were known to compute nothing.
        granted_memory_byte_seconds_total: Granted memory over time.
        session_bytes_total(direction transport): Bytes between programs and their workers.
        session_calls_total(door): Calls that programs made.
        session_waits_total: Answers that a program waited for.
        session_wait_seconds_total: Time to execute the calls that a program waited for.
        leases_ended_total(reason): Parts of leases that ended here.
        """,
    ),
    *_of("histogram", "class", "lease_wait_seconds: From the request to the grant."),
    *_of(
        "histogram",
        "",
        """
        lease_duration_seconds: From the grant to the end.
        grant_duration_seconds: From a claim to its decision, on this server.
        session_rtt_seconds(transport): Round trips of the sessions' connections.
        worker_start_seconds(door): Starts of workers.
        raft_commit_duration_seconds: From a proposal to its commit.
        raft_fsync_duration_seconds: Syncs of the journal.
        """,
    ),
    *_of("counter", "", "grants_total(result): Claims that this server answered."),
    *_of("gauge", "", "workers(state): Worker processes."),
    *_of(
        "gauge",
        "",
        """
        raft_leader: 1 on the server that leads.
        raft_term: The term.
        raft_commit_index: The last entry that a majority has.
        raft_applied_index: The last entry that this server has applied.
        """,
    ),
    *_of("counter", "", "raft_elections_total: Elections that this server has seen."),
    *_of(
        "gauge",
        "",
        """
        raft_peers(state): Other voters that are connected, or not.
        raft_majority_age_seconds: Age of the last word of a majority.
        raft_quorum_margin: Voters that may be lost before grants stop; below 0 they have stopped.
        raft_journal_bytes: Size of the journal.
        raft_snapshot_age_seconds: Age of the latest snapshot.
        raft_link_rtt_seconds(peer): Round trip to another server.
        raft_link_clock_offset_seconds(peer): Its clock's time less this server's.
        pool_servers(state): Servers of the pool; as all pool_ metrics, the same from each server.
        pool_gpus(state): GPUs of the pool.
        pool_gpu_capacity: GPUs that leases could have: of servers that are up and not drained.
        pool_gpu_granted: GPUs granted, as shares of their memory.
        pool_waiting(class): Requests that wait.
        pool_oldest_wait_seconds: How long the oldest of them has waited.
        pool_policy_version: The policy in force.
        pool_view_age_seconds: Age of this server's copy of the table.
        health_check_status(check subject): 0 ok, 1 warns, 2 fails.
        history_bytes(file): Size of the exporter's files.
        """,
    ),
    *_of(
        "counter",
        "",
        """
        history_dropped_samples_total: Seconds that the exporter never heard of.
        observer_http_requests_total(route code): Requests that the exporter answered.
        """,
    ),
    *_of("histogram", "", "observer_http_request_duration_seconds(route): Time to answer them."),
    *_of("gauge", "", "metrics_limited: 1 when series were left out."),
)
METRICS = {metric.name: metric for metric in DECLARED}
LEASE_FAMILY = tuple(
    m.name for m in DECLARED if m.labels[:1] == ("class",) and m.name[:4] != "pool"
)
"""The metrics that have the label ``user`` as well where users are asked for."""


def bounds_of(name: str) -> tuple[float, ...]:
    """Return the upper bounds of a histogram's buckets."""
    return HISTOGRAMS.get(name, REQUEST_BUCKETS)
