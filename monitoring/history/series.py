"""Schema of the history: its tables, their columns, the tiers, and the metrics made of them.

A row has sums with counts, and maxima; never means. So a row of a coarser tier is that of the finer
one added up, exactly. Samples come once a second, so a sum of samples is one over seconds. Pure.
"""

from dataclasses import dataclass, replace

SLOT_S = 10
WAIT_UNITS_A_MS = 100
"""``wait_time`` is in tens of microseconds: its rows are shorter than those of microseconds."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Rows of one step; each table exists once for each tier."""

    name: str
    step_s: int


TIERS = (Tier("10s", SLOT_S), Tier("1m", 60), Tier("1h", 3600))
"""The finest first."""


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of one table; all are integers."""

    name: str
    keys: tuple[str, ...]  # after the time
    sums: tuple[str, ...]
    maxima: tuple[str, ...]
    later: tuple[str, ...] = ()
    """Sums that came later: the last columns, which files of an earlier schema lack."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns, in their order."""
        return ("t", *self.keys, *self.sums, *self.maxima, *self.later)

    def at(self, tier: Tier) -> str:
        """Return the table's name in a tier."""
        return f"{self.name}_{tier.name}"


GPU = Table(
    "sample",
    ("gpu",),
    (
        "n",  # samples
        *("granted", "outside", "leases"),  # MiB; outside: of processes that are not ours
        *("memory_n", "memory"),  # MiB in use by anybody
        *("busy_n", "busy"),  # busy in thousandths, of the samples that say it
        *("power_n", "power"),  # W
        *("temperature_n", "temperature"),  # degrees C
        *("activity_n", "sm", "tensor", "bandwidth"),  # thousandths
    ),
    ("busy_max", "memory_max", "power_max", "temperature_max"),
)
LEASE = Table(
    "lease_sample",
    ("lease", "gpu"),
    (
        "n",
        *("memory", "granted"),  # MiB
        *("slots", "idle"),  # of 10 s: those of which it is known, and those without any work
        *("busy_n", "busy"),  # thousandths of the GPU's computing time
        *("bytes_in", "bytes_out"),  # KiB, of the whole lease here, with its first GPU
        *("waits", "rtt_n", "rtt"),  # of the whole lease as well; microseconds
    ),
    ("busy_max", "memory_max"),
    ("calls", "wait_time"),  # of the whole lease as well; tens of microseconds
)
SERVER = Table(
    "server_sample",
    (),
    (
        "n",
        *("cpu_n", "cpu"),  # thousandths of all processors
        *("host_memory_n", "host_memory"),  # MiB in use
        *("network_n", "network_in", "network_out"),  # KiB
        *("disk_n", "disk_free"),  # MiB
        *("lag", "leases", "connections", "elections"),  # lag in microseconds
        *("commits", "commit_time", "link_rtt_n", "link_rtt"),  # microseconds
        *("resident", "dropped"),  # MiB of gpupool's processes; samples that were lost
    ),
    ("lag_max", "link_rtt_max"),
)
POOL = Table(
    "pool_sample",
    (),
    (
        "n",
        *("servers", "servers_down", "gpus", "gpus_idle", "gpus_out"),
        *("capacity", "granted", "outside"),  # MiB
        *("leases", "waiting", "oldest_wait"),  # oldest wait in milliseconds
    ),
    ("waiting_max", "oldest_wait_max"),
)
CAPACITY = Table(
    "capacity_sample",
    ("model",),  # a row of the table "model"
    # Millionths of the pool's GPUs; what is in no part was free.
    ("n", "gpus", "granted", "outside", "drained", "down", "fault"),
    (),
)
MARK = Table("mark_sample", ("gpu", "mark"), ("amount",), ())
"""Events of a GPU, in the slots with any: ``time_slots`` defines marks."""
TABLES = (GPU, LEASE, SERVER, POOL, CAPACITY, MARK)


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure: a sum of columns through a count of one, in a unit.

    Several GPUs or leases together: an additive figure is that of all of them, any other a mean.
    With ``times`` the sum is multiplied, row by row, by the mean of another column; rows that have
    none of it do not count.
    """

    sums: tuple[str, ...]
    count: str
    maximum: str = ""
    scale: float = 1.0  # of the columns' unit, to that of the figure
    unit: str = ""
    additive: bool = True
    times: tuple[str, str] | None = None  # a column, and that of its count

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that are needed for the sum and the count, these two first."""
        return (self.count, *self.sums, *(self.times or ()))

    @property
    def statements(self) -> tuple[str, str]:
        """Return the sum and the count of one row, in SQL."""
        total = " + ".join(self.sums)
        if self.times is None:
            return total, self.count
        by, count = self.times
        known = f"CASE WHEN {count} > 0 THEN"
        return f"{known} ({total}) * {by} / {count} ELSE 0 END", f"{known} {self.count} ELSE 0 END"


_RATIO = 0.001
_MEMORY = Metric(("memory",), "n", "memory_max", 1 / 1024, "GiB")
_GRANTED = Metric(("granted",), "n", "", 1 / 1024, "GiB")
_OUTSIDE = Metric(("outside",), "n", "", 1 / 1024, "GiB")
_LEASES = Metric(("leases",), "n", "", 1.0, "leases")

METRICS: dict[str, dict[str, tuple[Table, Metric]]] = {
    "gpu": {
        "busy": (GPU, Metric(("busy",), "busy_n", "busy_max", _RATIO, "GPUs")),
        "memory": (GPU, replace(_MEMORY, count="memory_n")),
        "granted": (GPU, _GRANTED),
        "outside": (GPU, _OUTSIDE),
        "power": (GPU, Metric(("power",), "power_n", "power_max", 1.0, "W")),
        "temperature": (
            GPU,
            Metric(("temperature",), "temperature_n", "temperature_max", 1.0, "C", additive=False),
        ),
        "sm": (GPU, Metric(("sm",), "activity_n", "", _RATIO, "GPUs")),
        "tensor": (GPU, Metric(("tensor",), "activity_n", "", _RATIO, "GPUs")),
        "bandwidth": (GPU, Metric(("bandwidth",), "activity_n", "", _RATIO, "GPUs")),
        "leases": (GPU, _LEASES),
    },
    "lease": {
        "busy": (LEASE, Metric(("busy",), "busy_n", "busy_max", _RATIO, "GPUs")),
        "memory": (LEASE, _MEMORY),
        "granted": (LEASE, _GRANTED),
        "bytes": (LEASE, Metric(("bytes_in", "bytes_out"), "n", "", 1 / 1024, "MiB/s")),
        "bytes-in": (LEASE, Metric(("bytes_in",), "n", "", 1 / 1024, "MiB/s")),
        "bytes-out": (LEASE, Metric(("bytes_out",), "n", "", 1 / 1024, "MiB/s")),
        "waits": (LEASE, Metric(("waits",), "n", "", 1.0, "/s")),
        "calls": (LEASE, Metric(("calls",), "n", "", 1.0, "/s")),
        "call-time": (
            LEASE,
            Metric(("wait_time",), "waits", "", 1 / WAIT_UNITS_A_MS, "ms", additive=False),
        ),
        "rtt": (LEASE, Metric(("rtt",), "rtt_n", "", 0.001, "ms", additive=False)),
        "wire": (
            LEASE,
            Metric(("waits",), "n", "", 1e-6, "s/s", times=("rtt", "rtt_n")),
        ),
        "idle": (LEASE, Metric(("idle",), "slots", "", 1.0, "", additive=False)),
    },
    "server": {
        "cpu": (SERVER, Metric(("cpu",), "cpu_n", "", 100 * _RATIO, "%")),
        "host-memory": (SERVER, Metric(("host_memory",), "host_memory_n", "", 1 / 1024, "GiB")),
        "network": (
            SERVER,
            Metric(("network_in", "network_out"), "network_n", "", 1 / 1024, "MiB/s"),
        ),
        "disk": (SERVER, Metric(("disk_free",), "disk_n", "", 1 / 1024, "GiB")),
        "lag": (SERVER, Metric(("lag",), "n", "lag_max", 0.001, "ms", additive=False)),
        "rtt": (
            SERVER,
            Metric(("link_rtt",), "link_rtt_n", "link_rtt_max", 0.001, "ms", additive=False),
        ),
        "commit": (SERVER, Metric(("commit_time",), "commits", "", 0.001, "ms", additive=False)),
    },
    "pool": {
        "granted": (POOL, _GRANTED),
        "capacity": (POOL, Metric(("capacity",), "n", "", 1 / 1024, "GiB")),
        "outside": (POOL, _OUTSIDE),
        "leases": (POOL, _LEASES),
        "waiting": (POOL, Metric(("waiting",), "n", "waiting_max", 1.0, "requests")),
        "oldest-wait": (
            POOL,
            Metric(("oldest_wait",), "n", "oldest_wait_max", 0.001, "s", additive=False),
        ),
        "gpus": (POOL, Metric(("gpus",), "n", "", 1.0, "GPUs")),
        "gpus-idle": (POOL, Metric(("gpus_idle",), "n", "", 1.0, "GPUs")),
        "servers": (POOL, Metric(("servers",), "n", "", 1.0, "servers")),
    },
}
"""By subject and by name. A server has its GPUs' metrics as well, a user the leases'."""


def tier_for(range_s: int, oldest_kept: dict[str, int], since_s: int) -> Tier:
    """Return the coarsest tier with at least 400 steps in the range, of those that reach back.

    A tier whose rows of the range's beginning are gone gives way to the next coarser one.

    Args:
        range_s: of what is looked at.
        oldest_kept: the time before which a tier has nothing, by its name.
        since_s: when the range begins.
    """
    fine = [tier for tier in TIERS if tier.step_s * 400 <= range_s] or [TIERS[0]]
    chosen, begun = fine[-1], oldest_kept.get(TIERS[-1].name, 0)
    for tier in TIERS[TIERS.index(chosen) :]:
        chosen = tier
        if oldest_kept.get(tier.name, 0) <= max(since_s, begun + TIERS[-1].step_s):
            break
    return chosen
