"""Figures of leases on all their servers together, and sums over a pool. Pure.

None is not known, which is never shown as 0. A sum that lacks a part is not known either, because
it would pass for the whole.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpupool.pool.telemetry import SessionTelemetry


@dataclass(frozen=True, slots=True)
class Rate:
    """The traffic of a lease over the network, on one of its servers or on all."""

    calls_per_s: float
    up_per_s: float  # bytes from the client
    down_per_s: float
    waits_per_s: float | None = None  # answers that the client waited for
    wire_s: float | None = None  # seconds of each second that it waited for the wire: waits x RTT
    exec_us: float | None = None  # mean time to execute a call that it waited for

    def plus(self, other: "Rate") -> "Rate":
        """Return the sum with another server's; of mean times the longer one."""
        return Rate(
            self.calls_per_s + other.calls_per_s,
            self.up_per_s + other.up_per_s,
            self.down_per_s + other.down_per_s,
            _sum((self.waits_per_s, other.waits_per_s)),
            _sum((self.wire_s, other.wire_s)),
            max(filter(None, (self.exec_us, other.exec_us)), default=None),
        )


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that are known."""
    return [value for value in values if value is not None]


def _all(values: Collection[float | None]) -> list[float]:
    """Return the values if each is known, and nothing otherwise."""
    found = known(values)
    return found if len(found) == len(values) else []


def _sum(values: Collection[float | None]) -> float | None:
    found = _all(values)
    return sum(found) if found else None


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of those that are known."""
    found = known(values)
    return sum(found) if found else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that are known."""
    found = known(values)
    return sum(found) / len(found) if found else None


@dataclass(frozen=True, slots=True)
class LeaseFigures:
    """The measurements of a lease's sessions on all its servers together."""

    rtt_us: int | None = None  # to the farthest of its servers
    busy: float | None = None  # GPUs
    busy_estimated: bool = False
    idle_s: float | None = None  # since any of its sessions computed
    memory_used: int | None = None
    #: Of each GPU's time: what it is due when others want theirs, and what it got of late.
    share_due: float | None = None
    share_got: float | None = None
    not_suspendable: str = ""  # why a server cannot suspend it
    transport: str = ""


NO_FIGURES = LeaseFigures()


def figures_of(sessions: Collection[SessionTelemetry]) -> LeaseFigures:
    """Return the figures of one lease from its sessions, one for each of its servers."""
    if not sessions:
        return NO_FIGURES
    used = _sum([each.memory_used for each in sessions])
    return LeaseFigures(
        rtt_us=max(map(int, _all([each.rtt_us for each in sessions])), default=None),
        busy=_sum([sum(s.busy.values()) if s.busy else None for s in sessions]),
        busy_estimated=any(each.busy_estimated for each in sessions),
        idle_s=min(_all([each.idle_s for each in sessions]), default=None),
        memory_used=None if used is None else int(used),
        share_due=mean([due for each in sessions for due in each.share_due.values()]),
        share_got=mean([got for each in sessions for got in each.share_got.values()]),
        not_suspendable=next((s.not_suspendable for s in sessions if s.not_suspendable), ""),
        transport="+".join(sorted({each.transport for each in sessions if each.transport})),
    )


@dataclass(frozen=True, slots=True)
class PoolSums:
    """Sums over a pool's GPUs. Each is counted once, by the state that lists show."""

    used: int
    idle: int
    unreachable: int
    other: int  # drained, faulty or new
    granted: int  # bytes
    capacity: int
    busy: float | None  # the mean of the GPUs that are measured now, 0 to 1
    power_w: float | None  # of those that measure it
    power_count: int

    @property
    def gpus(self) -> int:
        """Return how many GPUs there are."""
        return self.used + self.idle + self.unreachable + self.other

    def counts_text(self) -> str:
        """Return the counts in words, without those that are nothing special."""
        parts = [f"{self.used} used", f"{self.idle} idle"]
        parts += [f"{self.unreachable} unreachable"] if self.unreachable else []
        parts += [f"{self.other} not offered"] if self.other else []
        return ", ".join([*parts, f"{self.gpus} in all"])
