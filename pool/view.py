"""One read model of the pool, for ``status``, ``gpus``, ``leases``, ``top`` and ``/metrics``.

A ``PoolView`` is what one server can say, with its age. The ``Telemetry`` of ``telemetry.py`` is
joined in by the program that shows it. Nothing secret is in either.
"""

import re
from dataclasses import dataclass, field

from gpupool.pool.model.bounds import Int, Line, ServerKey
from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import (
    Event,
    Partition,
)
from gpupool.pool.model.suspension import Span
from gpupool.pool.ports import RaftHealth

SCHEMA = 1
"""Of the JSON that ``--json`` prints; changes are additive only."""

MAJORITY_FRESH_S = 2.0
"""A server that heard from a majority so recently may act for the pool."""


LONG_AGO_S = 1e8
"""During the first election, before any leader, contact with a majority is infinitely long ago."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU with its books."""

    id: GpuId
    index: int
    name: str
    memory_total: int
    capacity: int
    memory_granted: int
    memory_foreign: int
    memory_free: int
    compute_capability: str
    pci_bus_id: str
    emulated: bool
    mig: bool
    fault: str
    leases: tuple[LeaseId, ...]
    drain: str = field(default="", metadata=OPTIONAL)  # why nothing is granted on it by order

    def state(self, server: str) -> str:
        """Return its word, given the one for its server."""
        return gpu_state(
            server,
            fault=bool(self.fault),
            drained=bool(self.drain),
            granted=self.memory_granted,
            free=self.memory_free,
            capacity=self.capacity,
        )


@dataclass(frozen=True, slots=True)
class ServerView:
    """One server. ``state`` is one of idle, mix, full, drain, down, new (sinfo's words)."""

    id: ServerId
    name: str
    address: str
    state: str
    reason: str
    voter: bool
    witness: bool
    leader: bool
    incarnation: Incarnation
    version: str
    driver_version: str
    cuda_version: str
    labels: dict[str, str]
    gpus: tuple[GpuView, ...]
    lease_count: int
    joined_at: Milliseconds
    link_speed: int = 0  # Mbit/s
    rdma: bool = False
    silent_since: Milliseconds = field(default=Milliseconds(0), metadata=OPTIONAL)
    """When the pool lost contact with it; 0: it has contact."""
    formats: int = field(default=0, metadata=OPTIONAL)
    """The version of the formats that its program knows; 0: it was never up, or nobody says."""
    has_keys: bool | None = field(default=None, metadata=OPTIONAL)
    """Whether it has the keys of all CAs that are trusted; None: the pool's table does not know."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The time of a lease on one server, as the accounts count it.

    Of stays that are over there are those of which the table still has the record.
    """

    server: ServerId
    since: Milliseconds
    until: Milliseconds = field(default=Milliseconds(0), metadata=OPTIONAL)  # 0: it is not over


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease.

    ``state`` is held, ending, unreachable, moving, suspending, suspended or resuming. One that is
    moving to another server has partitions on both.
    """

    id: LeaseId
    name: str
    user: str
    client: str
    program: str
    state: str
    reason: str
    partitions: tuple[Partition, ...]
    granted_at: Milliseconds
    age_s: float
    user_class: str = ""  # by the policy now in force
    requested_at: Milliseconds = field(default=Milliseconds(0), metadata=OPTIONAL)  # 0: as granted
    granted_class: str = field(default="", metadata=OPTIONAL)  # by the policy of its grant
    department: str = field(default="", metadata=OPTIONAL)
    freed: tuple[ServerId, ...] = field(default=(), metadata=OPTIONAL)  # parts that are recorded
    ends_at: Milliseconds = field(default=Milliseconds(0), metadata=OPTIONAL)  # 0: no limit of time
    kept_bytes: int = field(default=0, metadata=OPTIONAL)  # of servers' memory, while suspended
    waits_to_resume: bool = field(default=False, metadata=OPTIONAL)  # it goes on once there is room
    not_suspended: str = field(default="", metadata=OPTIONAL)  # why the latest attempt failed
    not_moved: str = field(default="", metadata=OPTIONAL)  # the same, if that was to move it
    not_suspendable: str = field(default="", metadata=OPTIONAL)  # why no attempt can succeed
    is_away: bool = field(default=False, metadata=OPTIONAL)  # suspended: others may have its memory
    away: tuple[Span, ...] = field(default=(), metadata=OPTIONAL)  # when it was; up to now
    stays: tuple[Stay, ...] = field(default=(), metadata=OPTIONAL)
    """Where it has been and is, if it was moved to another server; empty: as granted."""
    left: tuple[Partition, ...] = field(default=(), metadata=OPTIONAL)
    """The partitions on its former server that are not freed yet."""

    @property
    def memory(self) -> int:
        """Return the bytes of GPU memory that it holds now."""
        return 0 if self.is_away else sum(part.memory for part in self.partitions)


@dataclass(frozen=True, slots=True)
class WaitingView:
    """One request that waits."""

    request: str  # hex
    user: str
    client: str
    program: str
    count: int
    fraction: float
    memory: int
    waited_s: float
    reason: str
    filters: tuple[str, ...] = ()
    across: bool = False
    servers: tuple[str, ...] = ()
    priority: int = 0  # of the user's class; higher ones go first
    user_class: str = ""  # by the policy now in force


@dataclass(frozen=True, slots=True)
class RaftView:
    """The state of consensus as the answering server sees it."""

    role: Line
    leader: Line  # a server's name, or empty
    term: Int
    commit_index: Int
    applied_index: Int
    voters: tuple[ServerKey, ...]
    connected: tuple[ServerKey, ...]
    quorum: bool  # in touch with a majority
    majority_age_s: float
    elections: Int

    def reached(self, by: ServerId) -> int:
        """Return how many voters are in touch with the one that answered, itself included."""
        return len({*self.voters} & {by, *self.connected})


@dataclass(frozen=True, slots=True)
class AuthorityView:
    """One CA that is trusted, and the servers with a certificate of it, by name."""

    sha256: str  # of its certificate in DER, in hex
    signs: bool
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SilenceView:
    """An operator's silence for findings and alerts of a check or a rule."""

    check: str
    server: str  # its name; empty: any
    subject: str  # empty: any
    until: Milliseconds
    reason: str
    by: str
    at: Milliseconds

    def covers(self, check: str, server: str, subject: str) -> bool:
        """Return whether a finding is silenced by it."""
        fits = self.server in ("", server) and self.subject in ("", subject)
        return fits and check == self.check


@dataclass(frozen=True, slots=True)
class ServerClock:
    """The wall clock of one server."""

    server: ServerId
    ahead_s: float  # of the pool's time; negative: behind
    error_s: float  # of the measurement


@dataclass(frozen=True, slots=True)
class ClockView:
    """The answering server's view of the time. ``problems`` is empty when all is well."""

    table: Milliseconds  # the time of the last command
    pool: Milliseconds  # what the pool's time follows
    wall: Milliseconds  # the wall clock of the answering server
    source: str  # what the pool's time follows: "voters", "held" or "own"
    table_ahead_s: float  # of the pool's time
    servers: tuple[ServerClock, ...]  # those whose clocks are known
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolView:
    """One server's view of the whole pool."""

    schema: int
    name: str
    cluster_id: str
    answered_by: ServerId
    now: Milliseconds  # the pool's time
    data_encryption: str
    raft: RaftView
    servers: tuple[ServerView, ...]
    leases: tuple[LeaseView, ...]
    waiting: tuple[WaitingView, ...]
    events: tuple[Event, ...]
    warnings: tuple[str, ...] = ()
    policy_version: int = 0  # in force; 0: the pool has no policy
    clock: ClockView | None = field(default=None, metadata=OPTIONAL)
    authorities: tuple[AuthorityView, ...] = field(default=(), metadata=OPTIONAL)
    """The CAs that are trusted, the one that signs last; empty when there was never another one."""
    record_count: int = field(default=0, metadata=OPTIONAL)
    """Of parts of leases that were recorded as freed; all others are among ``leases``."""
    silences: tuple[SilenceView, ...] = field(default=(), metadata=OPTIONAL)


NO_KEY, ONE_KEY = "no server has the key", "only one server has the key"
"""Begin the warnings that nobody has the CA's key, or one server alone, for ``ca status``."""

MISSING_HINT = (
    'start the missing servers; if they have moved: "gpupool join HOST:PORT" on each, with the '
    "address of another; if most are lost for good: gpupool recover on one"
)

ALARM = "alarm: "
"""Begins a warning that makes the pool unhealthy although it may still grant."""


def gpu_state(
    server: str, *, fault: bool, drained: bool, granted: int, free: int, capacity: int
) -> str:
    """Return the word for one GPU in all that people see.

    Args:
        server: the word for its server, of ``server_state``.
        fault: whether it has failed, or another server offers it too.
        drained: whether it alone was drained.
        granted: bytes that leases have.
        free: bytes that can be granted.
        capacity: bytes that leases may have in all.
    """
    if server == "down":
        return "down"
    if fault:
        return "fault"
    if drained or server == "drain":
        return "drain"
    if server == "new":
        return "new"
    if not granted:
        return "idle"
    return "full" if free < capacity // FULL_SHARE else "mix"


FULL_SHARE = 20
"""A GPU with less than this part of its memory free is full."""


def readable(text: str) -> str:
    """Return a text of the table for people: all servers must keep the same one for ever."""
    text = GPUS.sub(lambda m: f"{m[1]} GPU" if m[1] == "1" else f"{m[1]} GPUs", text)
    text = HOURS.sub(lambda m: f"good for {round(int(m[1]) / 24)} days", text)
    return re.sub(r"\bgood for 0 h\b", "good for less than 1 h", text)


GPUS = re.compile(r"\b(\d+) GPU\(s\)")
HOURS = re.compile(r"\bgood for (\d{3,}|[5-9]\d) h\b")


def visible(text: str) -> str:
    """Return ``text`` without characters that move a terminal's cursor or change its colours.

    Reasons, programs and clients are texts that users have written.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def has_quorum(health: RaftHealth) -> bool:
    """Return whether this server may act for the pool: it is in touch with a majority."""
    return health.leader is not None and health.majority_age_s < MAJORITY_FRESH_S
