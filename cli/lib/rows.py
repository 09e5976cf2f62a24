"""A snapshot of the pool, and its servers, GPUs and leases as rows; pure, for ``top`` and lists."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, overload

from gpupool.pool.expected_start import starts_by_s
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.scheduling.filters import short_model
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry, Telemetry
from gpupool.pool.values import size_text
from gpupool.pool.view import GpuView, LeaseView, PoolView, ServerView, WaitingView

T = TypeVar("T")
STALE_AFTER_S = 5.0
"""A server's own measurements older than this are shown dimmed, with their age."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The traffic of a lease over the network."""

    bytes_per_s: float
    calls_per_s: float
    up_per_s: float | None = None  # bytes from the client
    down_per_s: float | None = None
    waits_per_s: float | None = None  # answers that the client waited for
    wire_s: float | None = None  # seconds of each second that it waited for the wire: waits x RTT

    def plus(self, other: "Rate") -> "Rate":
        """Return the sum with another server's; what is not known of one is not known at all."""
        return Rate(
            self.bytes_per_s + other.bytes_per_s,
            self.calls_per_s + other.calls_per_s,
            _sum((self.up_per_s, other.up_per_s)),
            _sum((self.down_per_s, other.down_per_s)),
            _sum((self.waits_per_s, other.waits_per_s)),
            _sum((self.wire_s, other.wire_s)),
        )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None for one that lacks a part: it would pass for the whole."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


@dataclass(frozen=True, slots=True)
class LeaseFigures:
    """What the servers of a lease say of its sessions; None is not known, never 0."""

    rtt_s: float | None = None  # to the farthest of its servers
    busy: float | None = None  # GPUs
    busy_estimated: bool = False
    idle_s: float | None = None  # since any of its sessions computed
    memory_used: int | None = None
    #: Of each GPU's time: what it is due when others want theirs, and what it got of late.
    share_due: float | None = None
    share_got: float | None = None
    not_suspendable: str = ""  # why a server cannot suspend it


def lease_figures(sessions: Sequence[SessionTelemetry]) -> LeaseFigures:
    """Return the figures of one lease from its sessions, one for each of its servers."""
    if not sessions:
        return LeaseFigures()
    rtts = [each.rtt_us for each in sessions if each.rtt_us is not None]
    idle = [each.idle_s for each in sessions]
    known = [each for each in idle if each is not None]
    used = _sum(each.memory_used for each in sessions)
    return LeaseFigures(
        rtt_s=max(rtts) / 1e6 if len(rtts) == len(sessions) else None,
        busy=_sum(sum(each.busy.values()) if each.busy else None for each in sessions),
        busy_estimated=any(each.busy_estimated for each in sessions),
        idle_s=min(known) if len(known) == len(idle) else None,
        memory_used=None if used is None else int(used),
        share_due=_mean(due for each in sessions for due in each.share_due.values()),
        share_got=_mean(got for each in sessions for got in each.share_got.values()),
        not_suspendable=next((s.not_suspendable for s in sessions if s.not_suspendable), ""),
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The view and measurements of a pool at one moment, with the age of each."""

    view: PoolView
    view_age_s: float = 0.0
    telemetry: Mapping[ServerId, Telemetry] = field(default_factory=dict[ServerId, Telemetry])
    telemetry_age_s: Mapping[ServerId, float] = field(default_factory=dict[ServerId, float])
    ping_s: Mapping[ServerId, float] = field(default_factory=dict[ServerId, float])
    rates: Mapping[LeaseId, Rate] = field(default_factory=dict[LeaseId, Rate])
    silent: frozenset[ServerId] = frozenset()  # members that have no connection with us
    #: The last minutes of a GPU's figures: a Unix second and a mean each.
    trends: Mapping[tuple[GpuId, str], tuple[tuple[int, float], ...]] = field(
        default_factory=dict[tuple[GpuId, str], tuple[tuple[int, float], ...]]
    )
    trouble: str = ""  # why nothing newer arrives
    #: Of each lease on each of its servers.
    session_rates: Mapping[tuple[ServerId, LeaseId], Rate] = field(
        default_factory=dict[tuple[ServerId, LeaseId], Rate]
    )
    #: The last hour of the whole pool, by name: a Unix second and a share each.
    pool_trend: Mapping[str, tuple[tuple[int, float], ...]] = field(
        default_factory=dict[str, tuple[tuple[int, float], ...]]
    )


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One server with its own measurements."""

    server: ServerView
    telemetry: Telemetry | None
    age_s: float  # of the telemetry
    ping_s: float | None
    silent: bool = False
    other_version: str = ""  # what of its gpupool is not that of the others

    @property
    def reason(self) -> str:
        """Return why it is as it is; another version is why it cannot be reached."""
        said = [self.server.reason, self.other_version]
        return "; ".join(filter(None, reversed(said) if self.unreachable else said))

    @property
    def stale(self) -> bool:
        """Return whether this server's measurements are missing or old."""
        return self.silent or self.telemetry is None or self.age_s > STALE_AFTER_S

    @property
    def state(self) -> str:
        """Return sinfo's word, with its ``*`` for a server that does not answer now."""
        if self.unreachable and self.server.state == "idle":
            return "away"  # nothing can be granted there
        return self.server.state + ("*" if self.stale else "")

    @property
    def unreachable(self) -> bool:
        """Return whether this server does not answer: nothing of it can be had now."""
        old = self.telemetry is not None and self.age_s > STALE_AFTER_S
        return self.silent or old or self.server.state == "down"

    @property
    def wrong(self) -> bool:
        """Return whether this server needs an operator's attention."""
        faulty = any(gpu.fault or gpu.drain for gpu in self.server.gpus)
        return self.stale or faulty or self.server.state in ("down", "drain", "new")


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU, the memory granted on it, and its measurements."""

    server: ServerRow
    gpu: GpuView
    telemetry: GpuTelemetry | None
    leases: tuple[LeaseView, ...]

    @property
    def state(self) -> str:
        """Return the word of ``gpu_state``, or away: nothing can be granted there now."""
        state = self.gpu.state(self.server.server.state)
        return "away" if state == "idle" and self.server.unreachable else state

    @property
    def may_be_had(self) -> bool:
        """Return whether what is not granted of it is there at all."""
        return not self.server.unreachable and self.state != "fault"

    @property
    def wrong(self) -> bool:
        """Return whether this GPU needs an operator's attention."""
        errors = self.telemetry.ecc_errors if self.telemetry else None
        return bool(self.gpu.fault or self.gpu.drain) or bool(errors) or self.server.wrong


@dataclass(frozen=True, slots=True)
class LeaseContext:
    """What the rows of leases are made from besides the leases; one for all rows of a snapshot."""

    snapshot: PoolSnapshot
    models: Mapping[GpuId, str]
    names: Mapping[ServerId, str]
    sessions: Mapping[LeaseId, Mapping[ServerId, SessionTelemetry]]
    free_in_s: Mapping[str, float]  # by request that waits


@dataclass(frozen=True)
class LeaseRow:
    """One lease, or one request that waits for one.

    Each field is worked out when it is asked for: a list of thousands is sorted by one of them.
    """

    source: LeaseView | WaitingView
    context: LeaseContext

    @property
    def id(self) -> str:
        """Return the name of the lease; of a request, the beginning of its own."""
        each = self.source
        return each.name if isinstance(each, LeaseView) else each.request[:4] + "?"

    @property
    def user(self) -> str:
        """Return whose it is."""
        return self.source.user

    @property
    def client(self) -> str:
        """Return what the program's machine calls itself."""
        return self.source.client

    @property
    def program(self) -> str:
        """Return the program's name."""
        return self.source.program

    @property
    def user_class(self) -> str:
        """Return the class of its user; empty without a policy."""
        return self.source.user_class

    @property
    def state(self) -> str:
        """Return the word for its state."""
        return self.source.state if isinstance(self.source, LeaseView) else "waiting"

    @cached_property
    def reason(self) -> str:
        """Return why it is in its state."""
        if isinstance(self.source, LeaseView):
            return _lease_reason(self.source, self.figures)
        return self.source.reason

    @cached_property
    def gpus(self) -> str:
        """Return how many GPUs of which model on which servers, or how much is asked for."""
        if isinstance(self.source, LeaseView):
            return _gpus_of(self.source, self.context)
        waiting = self.source
        if waiting.memory or waiting.fraction < 1:
            part = size_text(waiting.memory) if waiting.memory else f"{waiting.fraction:.0%}"
            return f"{waiting.count} x {part}"
        return "1 whole GPU" if waiting.count == 1 else f"{waiting.count} whole GPUs"

    @property
    def memory(self) -> int:
        """Return the bytes that it has or wants on all GPUs."""
        source = self.source
        return source.memory if isinstance(source, LeaseView) else source.memory * source.count

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been held, or has waited."""
        if isinstance(self.source, LeaseView):
            return self.source.age_s + self.context.snapshot.view_age_s
        return self.source.waited_s

    @property
    def free_in_s(self) -> float | None:
        """Return after how long enough GPUs are free for a request at the latest; None: unknown."""
        source = self.source
        if isinstance(source, LeaseView):
            return None
        return self.context.free_in_s.get(source.request)

    @property
    def rate(self) -> Rate | None:
        """Return its traffic; None where it is not known."""
        if isinstance(self.source, LeaseView):
            return self.context.snapshot.rates.get(self.source.id)
        return None

    @cached_property
    def figures(self) -> LeaseFigures:
        """Return what the servers say of its sessions."""
        if isinstance(self.source, LeaseView):
            return lease_figures(tuple(self.context.sessions.get(self.source.id, {}).values()))
        return LeaseFigures()

    @property
    def priority(self) -> int | None:
        """Return the priority of a request that waits, where the pool has a policy."""
        if isinstance(self.source, LeaseView) or not self.context.snapshot.view.policy_version:
            return None
        return self.source.priority

    @property
    def wrong(self) -> bool:
        """Return whether this lease needs attention: it waits, or its server is unreachable."""
        return self.state in ("unreachable", "waiting")


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """How many GPUs of a pool are what; each is one of these."""

    used: int
    idle: int
    unreachable: int
    other: int  # drained, faulty or new

    @property
    def total(self) -> int:
        """Return how many there are."""
        return self.used + self.idle + self.unreachable + self.other

    def text(self) -> str:
        """Return the counts in words, without those that are nothing special."""
        parts = [f"{self.used} used", f"{self.idle} idle"]
        parts += [f"{self.unreachable} unreachable"] if self.unreachable else []
        parts += [f"{self.other} not offered"] if self.other else []
        return ", ".join([*parts, f"{self.total} in all"])


def gpu_counts(snapshot: PoolSnapshot) -> GpuCounts:
    """Count the GPUs of a pool; one that does not answer is neither used nor idle."""
    counts = {"used": 0, "idle": 0, "unreachable": 0, "other": 0}
    for row in server_rows(snapshot):
        for gpu in row.server.gpus:
            if row.unreachable:
                kind = "unreachable"
            elif gpu.memory_granted:
                kind = "used"
            elif gpu.fault or gpu.drain or row.server.state in ("drain", "new"):
                kind = "other"
            else:
                kind = "idle"
            counts[kind] += 1
    return GpuCounts(**counts)


def server_rows(snapshot: PoolSnapshot) -> list[ServerRow]:
    """Return one row per server, in the order of the table."""
    others = other_versions(snapshot)
    return [
        ServerRow(
            server,
            snapshot.telemetry.get(server.id),
            snapshot.telemetry_age_s.get(server.id, 0.0),
            snapshot.ping_s.get(server.id),
            server.id in snapshot.silent,
            others.get(server.id, ""),
        )
        for server in snapshot.view.servers
    ]


def other_versions(snapshot: PoolSnapshot) -> dict[ServerId, str]:
    """Return the servers that have another gpupool than most, and what is to be said of it.

    Some speak another version of the links, so that the servers in touch with the one that
    answered cannot understand them. All others are in the middle of an upgrade.
    """
    view, found = snapshot.view, dict[ServerId, str]()
    counts = Counter(server.version for server in view.servers if server.version)
    own = next((s.version for s in view.servers if s.id == view.answered_by), "")
    usual = max(counts, key=lambda version: (counts[version], version == own), default="")
    for server in view.servers:
        if server.version not in ("", usual):
            found[server.id] = f"other version: {server.version}, most have {usual}"
    linked = {view.answered_by, *view.raft.connected}
    for each in linked:
        measured = snapshot.telemetry.get(each)
        consensus = measured.consensus if measured is not None else None
        for peer in consensus.link_versions.keys() - linked if consensus is not None else ():
            found[peer] = "other version, which the others do not understand"
    return found


def gpu_rows(snapshot: PoolSnapshot, server: ServerId | None = None) -> list[GpuRow]:
    """Return one row per GPU of the pool, or of one server."""
    leases = {lease.id: lease for lease in snapshot.view.leases}
    rows: list[GpuRow] = []
    for row in server_rows(snapshot):
        if server is not None and row.server.id != server:
            continue
        measured: dict[GpuId, GpuTelemetry] = {}
        if row.telemetry is not None:
            measured = {gpu.gpu: gpu for gpu in row.telemetry.gpus}
        for gpu in row.server.gpus:
            owners = tuple(leases[each] for each in gpu.leases if each in leases)
            rows.append(GpuRow(row, gpu, measured.get(gpu.id), owners))
    return rows


class LazyRows(Sequence[T]):
    """Rows that are made when they are looked at: a screen shows few of many thousands."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._make(at) for at in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._make(index % self._count)


def sessions_of(snapshot: PoolSnapshot) -> dict[LeaseId, dict[ServerId, SessionTelemetry]]:
    """Return what the servers say of each lease's sessions now; what is old is left out."""
    found: dict[LeaseId, dict[ServerId, SessionTelemetry]] = {}
    for server, telemetry in snapshot.telemetry.items():
        if snapshot.telemetry_age_s.get(server, 0.0) > STALE_AFTER_S:
            continue  # what it said is not so now
        for session in telemetry.sessions:
            found.setdefault(session.lease, {})[server] = session
    return found


def lease_shares(snapshot: PoolSnapshot) -> dict[str, dict[str, float | None]]:
    """Return what leases are due of their GPUs' time and got, by name; only where others want it.

    Both are parts of one GPU, 0 to 1; what was got is None while nobody else wants any.
    """
    names = {lease.id: lease.name for lease in snapshot.view.leases}
    found: dict[str, dict[str, float | None]] = {}
    for lease, sessions in sessions_of(snapshot).items():
        figures = lease_figures(tuple(sessions.values()))
        if figures.share_due is not None and lease in names:
            found[names[lease]] = {"due": figures.share_due, "got": figures.share_got}
    return found


def leases_as_hosts_say(snapshot: PoolSnapshot) -> list[LeaseView]:
    """Return leases; of those that their hosts cannot suspend, with why."""
    found = sessions_of(snapshot)
    says = {lease: lease_figures(tuple(s.values())).not_suspendable for lease, s in found.items()}
    return [
        replace(each, not_suspendable=each.not_suspendable or says[each.id])
        if says.get(each.id)
        else each
        for each in snapshot.view.leases
    ]


def all_lease_rows(snapshot: PoolSnapshot, *, held: bool = True) -> Sequence[LeaseRow]:
    """Return leases unless ``held`` is false, then requests that wait, the next one first."""
    view, context = snapshot.view, lease_context(snapshot)
    sources = (*view.leases, *view.waiting) if held else view.waiting
    return LazyRows(len(sources), lambda at: LeaseRow(sources[at], context))


def lease_context(snapshot: PoolSnapshot) -> LeaseContext:
    """Return what rows of leases are made from."""
    models = {gpu.id: gpu.name for s in snapshot.view.servers for gpu in s.gpus}
    names = {server.id: server.name for server in snapshot.view.servers}
    starts = starts_by_s(snapshot.view)
    return LeaseContext(snapshot, models, names, sessions_of(snapshot), starts)


def _gpus_of(lease: LeaseView, context: LeaseContext) -> str:
    groups: dict[tuple[str, str], int] = {}
    for part in lease.partitions:
        model = short_model(context.models[part.gpu]) if part.gpu in context.models else "GPU"
        key = (model, context.names.get(part.server, part.server))
        groups[key] = groups.get(key, 0) + 1
    return ", ".join(f"{count} x {model} on {name}" for (model, name), count in groups.items())


def _lease_reason(lease: LeaseView, figures: LeaseFigures) -> str:
    """Return why a lease is in its state; of one that is held, why it is not taken away."""
    if lease.state == "suspended" and lease.waits_to_resume:
        return f"{lease.reason}; it goes on when there is room"
    if not lease.reason and lease.not_moved:
        return f"not moved: {lease.not_moved}"
    if not lease.reason and lease.not_suspended:
        return f"not suspended: {lease.not_suspended}"
    never = lease.not_suspendable or figures.not_suspendable
    return f"cannot be suspended: {never}" if lease.state == "held" and never else lease.reason
