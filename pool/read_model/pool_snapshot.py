"""The read model: servers, GPUs, leases and requests as people see them at one moment. Pure.

``status``, ``gpus``, ``leases``, ``top``, ``--json`` and the web page show what stands here, and
derive no state, age, sum or staleness of their own, so that they cannot disagree. A snapshot joins
the view of one server with the measurements of all and the age of each. Rows are made of it, and
work out a field when it is asked for. It keeps none of its rows: a circle with them would stay in
memory. What a silent server said last is in its own rows, and in no sum.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import ClassVar

from gpupool.pool.expected_start import starts_by_s
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.read_model.figures import (
    NO_FIGURES,
    LeaseFigures,
    PoolSums,
    Rate,
    figures_of,
    known,
    mean,
    sum_of_known,
)
from gpupool.pool.read_model.lazy_rows import LazyRows
from gpupool.pool.scheduling.filters import short_model
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry, Telemetry
from gpupool.pool.view import GpuView, LeaseView, PoolView, ServerView, WaitingView


def other_versions(view: PoolView, said: Mapping[ServerId, Telemetry]) -> dict[ServerId, str]:
    """Return the servers with another gpupool than most, and a text about the difference.

    Some speak another version of the links, so that the servers in touch with the one that
    answered cannot understand them.
    """
    found: dict[ServerId, str] = {}
    counts = Counter(server.version for server in view.servers if server.version)
    own = next((s.version for s in view.servers if s.id == view.answered_by), "")
    usual = max(counts, key=lambda version: (counts[version], version == own), default="")
    for server in view.servers:
        if server.version not in ("", usual):
            found[server.id] = f"other version: {server.version}, most have {usual}"
    linked = {view.answered_by, *view.raft.connected}
    for measured in (said[each] for each in linked if each in said):
        consensus = measured.consensus
        for peer in consensus.link_versions.keys() - linked if consensus is not None else ():
            found[peer] = "other version, which the others do not understand"
    return found


STALE_AFTER_S = 4.0
"""A server is silent when its measurements are older, and a view is old: both come once a second.
With the time that a page takes to ask, a silence is told within 6 s."""

GRANTING = ("idle", "mix", "full")
"""The states of servers and GPUs that grant, if they can be reached."""

Points = tuple[tuple[int, float], ...]
"""A Unix second and a value each."""


@dataclass(frozen=True)
class PoolSnapshot:
    """The view and measurements of a pool at one moment, with the age of each."""

    view: PoolView
    view_age_s: float = 0.0
    telemetry: Mapping[ServerId, Telemetry] = field(default_factory=dict[ServerId, Telemetry])
    telemetry_age_s: Mapping[ServerId, float] = field(default_factory=dict[ServerId, float])
    silent: frozenset[ServerId] = frozenset()  # members that do not answer us
    stale_after_s: float = STALE_AFTER_S
    #: Of each lease on each of its servers.
    rates: Mapping[tuple[ServerId, LeaseId], Rate] = field(
        default_factory=dict[tuple[ServerId, LeaseId], Rate]
    )
    ping_s: Mapping[ServerId, float] = field(default_factory=dict[ServerId, float])
    #: The last minutes of a GPU's figures, and the last hour of the pool's shares, by name.
    trends: Mapping[tuple[GpuId, str], Points] = field(
        default_factory=dict[tuple[GpuId, str], Points]
    )
    pool_trend: Mapping[str, Points] = field(default_factory=dict[str, Points])

    @property
    def now_ms(self) -> int:
        """Return the pool's time at this moment."""
        return int(self.view.now + 1000 * self.view_age_s)

    @property
    def answered_by(self) -> str:
        """Return the name of the server that has answered; its id when it knows of none."""
        return self.names.get(self.view.answered_by, self.view.answered_by)

    @property
    def is_old(self) -> bool:
        """Return whether the view may be wrong by now: as a whole it must not look new."""
        return self.view_age_s > self.stale_after_s or not self.view.raft.quorum

    @property
    def nobody_answers(self) -> bool:
        """Return whether no server answers us."""
        return len(self.silent) == len(self.view.servers)

    @property
    def servers(self) -> "list[ServerRow]":
        """Return one row per server, in the order of the table."""
        return [ServerRow(self, server) for server in self.view.servers]

    @property
    def gpus(self) -> "list[GpuRow]":
        """Return one row per GPU of the pool."""
        return [gpu for server in self.servers for gpu in server.gpus]

    @property
    def leases(self) -> "list[LeaseRow]":
        """Return one row per lease."""
        return [LeaseRow(self, lease) for lease in self.view.leases]

    @property
    def requests(self) -> "list[RequestRow]":
        """Return one row per request that waits, the next one first."""
        return [RequestRow(self, waiting) for waiting in self.view.waiting]

    @property
    def all_leases(self) -> "Sequence[LeaseRow | RequestRow]":
        """Return one row per lease, then one per request."""
        held, waiting = self.view.leases, self.view.waiting
        count = len(held)
        return LazyRows(
            count + len(waiting),
            lambda at: (
                LeaseRow(self, held[at]) if at < count else RequestRow(self, waiting[at - count])
            ),
        )

    @cached_property
    def unreachable(self) -> frozenset[ServerId]:
        """Return the servers that do not answer: nothing of them can be had now."""
        ages, limit = self.telemetry_age_s, self.stale_after_s
        lost = [s.id for s in self.view.servers if s.state == "down" or ages.get(s.id, 0.0) > limit]
        return self.silent.union(lost)

    @cached_property
    def heard(self) -> dict[ServerId, Telemetry]:
        """Return the telemetry of servers that answer; that of the others is out of date."""
        return {k: told for k, told in self.telemetry.items() if k not in self.unreachable}

    @property
    def awaited(self) -> set[ServerId]:
        """Return the servers that were not heard yet, and had no time to answer."""
        return self.names.keys() - self.telemetry.keys() - self.unreachable

    @cached_property
    def sessions(self) -> dict[LeaseId, dict[ServerId, SessionTelemetry]]:
        """Return the sessions of each lease on servers that are heard."""
        found: dict[LeaseId, dict[ServerId, SessionTelemetry]] = {}
        for server, telemetry in self.heard.items():
            for session in telemetry.sessions:
                found.setdefault(session.lease, {})[server] = session
        return found

    @cached_property
    def rates_now(self) -> dict[tuple[ServerId, LeaseId], Rate]:
        """Return the rates of servers that are heard."""
        return {part: rate for part, rate in self.rates.items() if part[0] in self.heard}

    @cached_property
    def traffic(self) -> dict[ServerId, Rate]:
        """Return the traffic of servers, where it is known."""
        found: dict[ServerId, Rate] = {}
        for (server, _), rate in self.rates_now.items():
            found[server] = found[server].plus(rate) if server in found else rate
        return found

    @cached_property
    def names(self) -> dict[ServerId, str]:
        """Return the names of servers."""
        return {server.id: server.name for server in self.view.servers}

    @cached_property
    def models(self) -> dict[GpuId, str]:
        """Return the models of GPUs, as people say them."""
        short = {gpu.name: "" for server in self.view.servers for gpu in server.gpus}
        short = {name: short_model(name) for name in short}
        return {gpu.id: short[gpu.name] for s in self.view.servers for gpu in s.gpus}

    @cached_property
    def lease_of(self) -> dict[LeaseId, LeaseView]:
        """Return leases by their ids."""
        return {lease.id: lease for lease in self.view.leases}

    @cached_property
    def starts_by_s(self) -> dict[str, float]:
        """Return after how long enough GPUs are free, by request, as of the view."""
        return starts_by_s(self.view)

    @cached_property
    def other_versions(self) -> dict[ServerId, str]:
        """Return the servers with another gpupool than most, and a text about it."""
        return other_versions(self.view, self.telemetry)

    @cached_property
    def sums(self) -> PoolSums:
        """Return the sums over all GPUs."""
        states, granted, capacity = Counter[str](), 0, 0
        for row in self.servers:
            for gpu in row.server.gpus:
                states[row.state_of(gpu)] += 1
                granted += gpu.memory_granted
                capacity += gpu.capacity
        measured = [gpu for each in self.heard.values() for gpu in each.gpus]
        return PoolSums(
            used=states["mix"] + states["full"],
            idle=states["idle"],
            unreachable=states["down"] + states["away"],
            other=states["drain"] + states["fault"] + states["new"],
            granted=granted,
            capacity=capacity,
            busy=mean([gpu.utilization for gpu in measured]),
            power_w=sum_of_known(gpu.power_w for gpu in measured),
            power_count=len(known(gpu.power_w for gpu in measured)),
        )


@dataclass(frozen=True)
class ServerRow:
    """One server with its own measurements, the last ones if it is silent."""

    snapshot: PoolSnapshot
    server: ServerView

    @property
    def telemetry(self) -> Telemetry | None:
        """Return the latest telemetry of the server."""
        return self.snapshot.telemetry.get(self.server.id)

    @property
    def age_s(self) -> float:
        """Return how old that is."""
        return self.snapshot.telemetry_age_s.get(self.server.id, 0.0)

    @property
    def ping_s(self) -> float | None:
        """Return how long it takes to answer."""
        return self.snapshot.ping_s.get(self.server.id)

    @property
    def unreachable(self) -> bool:
        """Return whether it does not answer: its figures are old, and nothing of it can be had."""
        return self.server.id in self.snapshot.unreachable

    @property
    def silent_since(self) -> int:
        """Return since when it does not answer, by the pool's time; 1: unknown, 0: it does."""
        if not self.unreachable:
            return 0
        if self.telemetry is not None:
            return int(self.telemetry.at)
        return int(self.server.silent_since) or 1

    @property
    def state(self) -> str:
        """Return sinfo's word, or away for a server that would grant if it could be reached."""
        state = self.server.state
        return "away" if self.unreachable and state in GRANTING else state

    def state_of(self, gpu: GpuView) -> str:
        """Return the word of ``gpu_state`` for a GPU of it, or away as for the server."""
        state = gpu.state(self.server.state)
        return "away" if self.unreachable and state in GRANTING else state

    @property
    def other_version(self) -> str:
        """Return a text about the server's gpupool if it differs from the others, or nothing."""
        return self.snapshot.other_versions.get(self.server.id, "")

    @property
    def reason(self) -> str:
        """Return why it is as it is; another version is why it cannot be reached."""
        said = [self.server.reason, self.other_version]
        return "; ".join(filter(None, reversed(said) if self.unreachable else said))

    @property
    def wrong(self) -> bool:
        """Return whether this server needs an operator's attention."""
        faulty = any(gpu.fault or gpu.drain for gpu in self.server.gpus)
        return self.unreachable or faulty or self.server.state in ("drain", "new")

    @property
    def gpus(self) -> "list[GpuRow]":
        """Return one row per GPU of it."""
        measured = {gpu.gpu: gpu for gpu in self.telemetry.gpus} if self.telemetry else {}
        return [GpuRow(self, gpu, measured.get(gpu.id)) for gpu in self.server.gpus]

    @property
    def granted(self) -> int:
        """Return the bytes of its GPUs that leases have."""
        return sum(gpu.memory_granted for gpu in self.server.gpus)

    @property
    def capacity(self) -> int:
        """Return the bytes that leases may have."""
        return sum(gpu.capacity for gpu in self.server.gpus)

    @property
    def power_w(self) -> float | None:
        """Return the power that its GPUs draw, of those that measure it."""
        gpus = self.telemetry.gpus if self.telemetry is not None else ()
        return sum_of_known(gpu.power_w for gpu in gpus)

    @property
    def temperature_c(self) -> float | None:
        """Return the temperature of its hottest GPU."""
        gpus = self.telemetry.gpus if self.telemetry is not None else ()
        return max(known([gpu.temperature_c for gpu in gpus]), default=None)

    @property
    def rate(self) -> Rate | None:
        """Return the traffic of its sessions."""
        return self.snapshot.traffic.get(self.server.id)


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU, the memory granted on it, and its measurements."""

    server: ServerRow
    gpu: GpuView
    telemetry: GpuTelemetry | None

    @property
    def state(self) -> str:
        """Return its word."""
        return self.server.state_of(self.gpu)

    @property
    def leases(self) -> list[LeaseView]:
        """Return the leases that have a part of it."""
        known = self.server.snapshot.lease_of
        return [known[each] for each in self.gpu.leases if each in known]

    @property
    def held_s(self) -> float | None:
        """Return for how long the oldest of them has been held."""
        ages = [lease.age_s + self.server.snapshot.view_age_s for lease in self.leases]
        return max(ages, default=None)

    @property
    def free(self) -> int | None:
        """Return the bytes that can be had of it; None where nothing of it is there."""
        return None if self.state in ("away", "down", "fault") else self.gpu.memory_free

    @property
    def wrong(self) -> bool:
        """Return whether this GPU needs an operator's attention."""
        errors = self.telemetry.ecc_errors if self.telemetry else None
        return bool(self.gpu.fault or self.gpu.drain) or bool(errors) or self.server.wrong


@dataclass(frozen=True)
class LeaseRow:
    """One lease."""

    snapshot: PoolSnapshot
    source: LeaseView
    #: It waits for nothing.
    free_in_s: ClassVar[float | None] = None
    priority: ClassVar[int | None] = None

    @property
    def id(self) -> str:
        """Return its name."""
        return self.source.name

    @property
    def state(self) -> str:
        """Return the word for its state."""
        return self.source.state

    @property
    def memory(self) -> int:
        """Return the bytes that it has on all GPUs."""
        return self.source.memory

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been held."""
        return self.source.age_s + self.snapshot.view_age_s

    @property
    def waited_ms(self) -> int:
        """Return for how long it was waited for."""
        lease = self.source
        return max(0, lease.granted_at - (lease.requested_at or lease.granted_at))

    @property
    def places(self) -> Counter[tuple[str, str]]:
        """Return how many GPUs it has, by model and server."""
        models, names = self.snapshot.models, self.snapshot.names
        parts = self.source.partitions
        return Counter(
            (models.get(part.gpu, "GPU"), names.get(part.server, part.server)) for part in parts
        )

    @property
    def sessions(self) -> Mapping[ServerId, SessionTelemetry]:
        """Return its sessions on servers that are heard."""
        return self.snapshot.sessions.get(self.source.id, {})

    @cached_property
    def figures(self) -> LeaseFigures:
        """Return the measurements of its sessions."""
        return figures_of(self.sessions.values())

    @cached_property
    def rate(self) -> Rate | None:
        """Return its traffic; None where it is not known."""
        rates = [rate for server in self.sessions if (rate := self.rate_on(server)) is not None]
        return reduce(Rate.plus, rates) if rates else None

    def rate_on(self, server: ServerId) -> Rate | None:
        """Return its traffic on one server that is heard."""
        return self.snapshot.rates_now.get((server, self.source.id))

    @property
    def not_suspendable(self) -> str:
        """Return why no attempt to suspend it can succeed, as the table or a server's host says."""
        return self.source.not_suspendable or self.figures.not_suspendable

    @property
    def reason(self) -> str:
        """Return why it is in its state; of one that is held, why it is not taken away."""
        lease = self.source
        if lease.state == "suspended" and lease.waits_to_resume:
            return f"{lease.reason}; it goes on when there is room"
        if not lease.reason and lease.not_moved:
            return f"not moved: {lease.not_moved}"
        if not lease.reason and lease.not_suspended:
            return f"not suspended: {lease.not_suspended}"
        never = self.not_suspendable if lease.state == "held" else ""
        return f"cannot be suspended: {never}" if never else lease.reason

    @property
    def wrong(self) -> bool:
        """Return whether this lease needs attention: its server is unreachable."""
        return self.state == "unreachable"


@dataclass(frozen=True)
class RequestRow:
    """One request that waits for a lease."""

    snapshot: PoolSnapshot
    source: WaitingView
    state: ClassVar[str] = "waiting"  # the word that stands in lists among those of leases
    wrong: ClassVar[bool] = True
    #: It has no sessions.
    figures: ClassVar[LeaseFigures] = NO_FIGURES
    rate: ClassVar[Rate | None] = None

    @property
    def id(self) -> str:
        """Return the beginning of its id."""
        return self.source.request[:4] + "?"

    @property
    def reason(self) -> str:
        """Return why it waits."""
        return self.source.reason

    @property
    def memory(self) -> int:
        """Return the bytes that it wants on all GPUs, where it asks for a size."""
        return self.source.memory * self.source.count

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has waited."""
        return self.source.waited_s + self.snapshot.view_age_s

    @property
    def since(self) -> int:
        """Return when it came, by the pool's time."""
        return round(self.snapshot.view.now - 1000 * self.source.waited_s)

    @property
    def free_at(self) -> int | None:
        """Return by when enough GPUs are free, by the pool's time; None: nobody knows."""
        by_s = self.snapshot.starts_by_s.get(self.source.request)
        return None if by_s is None else self.snapshot.view.now + round(1000 * by_s)

    @property
    def free_in_s(self) -> float | None:
        """Return after how long that is."""
        by_s = self.snapshot.starts_by_s.get(self.source.request)
        return None if by_s is None else max(0.0, by_s - self.snapshot.view_age_s)

    @property
    def priority(self) -> int | None:
        """Return its priority, where the pool has a policy."""
        return self.source.priority if self.snapshot.view.policy_version else None
