"""Each replicated command as a frozen dataclass, and the envelope in which it enters the log.

Every command is idempotent by its content (a request id, a token id, a server's incarnation), so
one that was proposed twice because its outcome was unknown does no harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.pool.model.codec import OPTIONAL, CodecError, decode, encode
from gpupool.pool.model.forgetting import ForgetUser
from gpupool.pool.model.formats import BEFORE_VERSIONS
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    Plain,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.relocation import ConfirmRelocated, RefuseRelocation, RelocateLease
from gpupool.pool.model.state import Gpu, Partition, Request, TokenKind
from gpupool.pool.model.suspension import (
    ConfirmResumed,
    ConfirmSuspended,
    MoveLease,
    RefuseSuspension,
    ResumeLease,
    SuspendLease,
)

VERSION = 1
"""Of the envelope. A server that meets a newer one stops instead of guessing."""


@dataclass(frozen=True, slots=True)
class CreatePool:
    """First command of every log."""

    cluster_id: str
    name: str
    data_encryption: str


@dataclass(frozen=True, slots=True)
class JoinServer:
    """Admit a server. ``token`` is spent by this; None only for the server that made the pool."""

    server: ServerId
    name: str
    address: str
    witness: bool
    token: TokenId | None


@dataclass(frozen=True, slots=True)
class ServerUp:
    """A server offers its GPUs.

    The proposer promises that no worker of an earlier incarnation lives, so this also frees its
    parts of every lease that an earlier incarnation held.
    """

    server: ServerId
    incarnation: Incarnation
    address: str
    version: str
    driver_version: str
    cuda_version: str
    gpus: tuple[Gpu, ...]
    labels: dict[str, str] = field(default_factory=dict[str, str])
    link_speed: int = 0  # Mbit/s
    rdma: bool = False
    accounts: bool = field(default=False, metadata=OPTIONAL)
    """Its program records leases as they end. The first such command begins the pool's records:
    servers that read the same log with a former program, or from another snapshot, number alike."""
    alerts: bool = field(default=False, metadata=OPTIONAL)  # it can send them
    formats: int = field(default=BEFORE_VERSIONS, metadata=OPTIONAL)  # ``formats.VERSION``
    has_keys: bool = field(default=False, metadata=OPTIONAL)  # of all CAs that are trusted
    names: tuple[str, ...] = field(default=(), metadata=OPTIONAL)  # more addresses; version 12


@dataclass(frozen=True, slots=True)
class ServerContact:
    """The leader lost, or has again, contact with an incarnation of a server."""

    server: ServerId
    incarnation: Incarnation
    reachable: bool


@dataclass(frozen=True, slots=True)
class RemoveServer:
    """A server leaves for good, or an operator declares it lost for good."""

    server: ServerId
    by: str


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Changes of one GPU outside our control: foreign memory and a fault."""

    memory_foreign: int
    fault: str


@dataclass(frozen=True, slots=True)
class ReportGpus:
    """A server's GPU readings that decide its grantable memory; sent only when they move."""

    server: ServerId
    incarnation: Incarnation
    readings: dict[GpuId, GpuReading]


@dataclass(frozen=True, slots=True)
class DrainServer:
    """Stop (or with None, resume) granting on a server.

    ``order`` is 16 random bytes of whoever orders it. What undoes another order must not be applied
    twice: its repetition may arrive after a later order. Empty means that it is never repeated.
    """

    server: ServerId
    reason: str | None
    by: str
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class DrainGpu:
    """Stop (or with None, resume) granting on one GPU; ``order`` as in ``DrainServer``.

    A server drains a GPU by itself for a ``sign`` that it sees. ``onset`` is when the sign came, by
    the pool's time, or 0 when it may have been there before that server looked.
    """

    server: ServerId
    gpu: GpuId
    reason: str | None
    by: str
    order: bytes = b""
    sign: str = ""  # empty: a person orders it
    onset: Milliseconds = Milliseconds(0)


@dataclass(frozen=True, slots=True)
class LabelServer:
    """Set some labels of a server, and take some away; ``order`` as in ``DrainServer``."""

    server: ServerId
    labels: dict[str, str]
    without: tuple[str, ...]
    by: str
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class Grant:
    """Grant a lease, whole or not at all."""

    request: Request
    user: str
    token: TokenId
    ticket_hash: bytes
    partitions: tuple[Partition, ...]
    incarnations: dict[ServerId, Incarnation]  # as the offers stated them


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Nobody waits for this request any more: end its lease, and refuse any later grant.

    A client that goes on under a new request id names it as ``successor``, which inherits the
    place in the waiting line. ``user`` must own the request; empty when the pool itself cancels.
    """

    request: RequestId
    reason: str
    user: str = ""
    successor: RequestId | None = None


@dataclass(frozen=True, slots=True)
class EndLease:
    """First step of ending: sessions must stop now.

    ``by`` is the user who ordered it, and empty when the pool itself ends the lease. Ended by
    somebody else than its user, which takes an operator, it is an administrative act.
    """

    lease: LeaseId
    reason: str
    by: str = ""
    operator: bool = False
    away: bool = field(default=False, metadata=OPTIONAL)  # for as long as it is suspended alone


@dataclass(frozen=True, slots=True)
class NoteIdle:
    """One server of a lease on several says whether its part is about to be idle for too long."""

    lease: LeaseId
    server: ServerId
    incarnation: Incarnation
    idle: bool


@dataclass(frozen=True, slots=True)
class FreeLease:
    """Second step, by the server that owns the GPUs: its workers are gone."""

    lease: LeaseId
    server: ServerId
    incarnation: Incarnation
    number: int = field(default=0, metadata=OPTIONAL)  # of its latest relocation, not over yet


@dataclass(frozen=True, slots=True)
class Wait:
    """Record or renew a waiting entry."""

    request: Request
    user: str
    token: TokenId
    reason: str


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Register a new token's public half."""

    token: TokenId
    kind: TokenKind
    user: str
    secret_hash: bytes
    expires_at: Milliseconds
    by: str
    uses: int = field(default=1, metadata=OPTIONAL)  # servers that a server token lets in


@dataclass(frozen=True, slots=True)
class RenewToken:
    """Let a token that is not revoked be good until ``expires_at``."""

    token: TokenId
    expires_at: Milliseconds
    by: str


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """Refuse a token from now on, and end the leases that it got."""

    token: TokenId
    by: str


@dataclass(frozen=True, slots=True)
class StagePart:
    """Keep one part of a document until the command that uses the whole."""

    upload: bytes  # 16 random bytes
    part: int  # from 0
    data: bytes


@dataclass(frozen=True, slots=True)
class ApplyPolicy:
    """Put a staged policy in force, in the place of version ``base``."""

    upload: bytes
    part_count: int
    digest: bytes  # SHA-256 of all parts together
    base: int
    by: str


@dataclass(frozen=True, slots=True)
class RestoreBackup:
    """Take a staged backup into the table."""

    upload: bytes
    part_count: int
    digest: bytes  # SHA-256 of all parts together
    by: str


@dataclass(frozen=True, slots=True)
class GiveNotice:
    """A window has opened or closed, and its rules end this lease after a period of grace."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Tick:
    """Advance table time, so that entries past their time lapse."""


@dataclass(frozen=True, slots=True)
class SetClock:
    """Set the table's time, also back: to where the voters' clocks are.

    ``era`` is that of the table as its author saw it: a repetition that comes late sets nothing.
    """

    to: Milliseconds
    era: int
    by: str


@dataclass(frozen=True, slots=True)
class RotateCa:
    """Trust a second CA, which signs from now on. Certificates are in DER."""

    old: bytes  # the one that signed before; a table before the first exchange does not have it
    new: bytes
    by: str
    keepers: tuple[ServerId, ...] = field(default=(), metadata=OPTIONAL)  # of the new one's key


@dataclass(frozen=True, slots=True)
class RetireCa:
    """Trust a CA no more, although servers may still use it if ``force`` says so."""

    ca: bytes  # SHA-256 of its certificate
    force: bool
    by: str


@dataclass(frozen=True, slots=True)
class ReportIssuer:
    """A server reports the CA that signed its current certificate."""

    server: ServerId
    incarnation: Incarnation
    issuer: bytes  # SHA-256 of the CA's certificate


@dataclass(frozen=True, slots=True)
class SetSilence:
    """Silence findings and alerts until a time (or with None as reason, no more).

    ``order`` as in ``DrainServer``.
    """

    check: str
    server: str  # empty: of any
    subject: str  # empty: any
    reason: str | None
    until: Milliseconds
    by: str
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class NoteBackup:
    """An operator gets a backup of the table as it is then."""

    by: str


Command = (
    CreatePool
    | JoinServer
    | ServerUp
    | ServerContact
    | RemoveServer
    | ReportGpus
    | DrainServer
    | DrainGpu
    | LabelServer
    | Grant
    | CancelRequest
    | EndLease
    | NoteIdle
    | FreeLease
    | Wait
    | CreateToken
    | RevokeToken
    | RenewToken
    | StagePart
    | ApplyPolicy
    | RestoreBackup
    | GiveNotice
    | Tick
    | SetClock
    | RotateCa
    | RetireCa
    | ReportIssuer
    | SetSilence
    | SuspendLease
    | ConfirmSuspended
    | RefuseSuspension
    | ResumeLease
    | ConfirmResumed
    | MoveLease
    | NoteBackup
    | ForgetUser
    | RelocateLease
    | ConfirmRelocated
    | RefuseRelocation
)

KINDS: dict[str, type[Command]] = {
    "create-pool": CreatePool,
    "join-server": JoinServer,
    "server-up": ServerUp,
    "server-contact": ServerContact,
    "remove-server": RemoveServer,
    "report-gpus": ReportGpus,
    "drain-server": DrainServer,
    "drain-gpu": DrainGpu,
    "label-server": LabelServer,
    "grant": Grant,
    "cancel-request": CancelRequest,
    "end-lease": EndLease,
    "note-idle": NoteIdle,
    "free-lease": FreeLease,
    "wait": Wait,
    "create-token": CreateToken,
    "revoke-token": RevokeToken,
    "renew-token": RenewToken,
    "stage-part": StagePart,
    "apply-policy": ApplyPolicy,
    "restore-backup": RestoreBackup,
    "give-notice": GiveNotice,
    "tick": Tick,
    "set-clock": SetClock,
    "rotate-ca": RotateCa,
    "retire-ca": RetireCa,
    "report-issuer": ReportIssuer,
    "set-silence": SetSilence,
    "suspend-lease": SuspendLease,
    "confirm-suspended": ConfirmSuspended,
    "refuse-suspension": RefuseSuspension,
    "resume-lease": ResumeLease,
    "confirm-resumed": ConfirmResumed,
    "move-lease": MoveLease,
    "note-backup": NoteBackup,
    "forget-user": ForgetUser,
    "relocate-lease": RelocateLease,
    "confirm-relocated": ConfirmRelocated,
    "refuse-relocation": RefuseRelocation,
}
NAMES = {kind: name for name, kind in KINDS.items()}

SINCE: Mapping[str, int] = {
    "set-silence": 7,
    "note-backup": 7,
    "suspend-lease": 7,
    "confirm-suspended": 7,
    "refuse-suspension": 7,
    "resume-lease": 7,
    "confirm-resumed": 7,
    "move-lease": 7,
    "forget-user": 7,
    "relocate-lease": 9,
    "confirm-relocated": 9,
    "refuse-relocation": 9,
}
"""The version (``formats``) with which each command came; all others are older than versions."""


def objection(command: str, formats: int) -> str:
    """Return why a pool of the version ``formats`` cannot take a command; empty when it can."""
    since = SINCE.get(command, 0)
    if since <= formats:
        return ""
    return f"it needs version {since} on all servers, and the oldest has {formats}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A command with the pool's time, and the table time after which it is refused.

    ``era`` is that of the table by which its proposer knew the time; see ``PoolState``.
    """

    command: Command
    at: Milliseconds
    expires: Milliseconds  # 0: never
    era: int = 0


def wrap(command: Command, *, at_ms: int, ttl_ms: int, era: int = 0) -> Plain:
    """Return the plain value that goes into the log for ``command``."""
    envelope: dict[str, Plain] = {
        "v": VERSION,
        "t": at_ms,
        "x": at_ms + ttl_ms if ttl_ms else 0,
        "k": NAMES[type(command)],
        "c": encode(command),
    }
    # Left out of a table whose time was never set, as from every envelope before there were eras.
    return {**envelope, "e": era} if era else envelope


def unwrap(plain: Plain) -> Envelope:
    """Return the envelope that ``plain`` stands for.

    Raises:
        CodecError: when it is not exactly one of our envelopes.
    """
    if not isinstance(plain, dict) or plain.keys() - {"e"} != {"v", "t", "x", "k", "c"}:
        raise CodecError("not an envelope")
    version, at, expires, name = plain["v"], plain["t"], plain["x"], plain["k"]
    era = plain.get("e", 0)
    if version != VERSION:
        raise CodecError(f"envelope version {version}, this server knows {VERSION}")
    if type(at) is not int or type(expires) is not int or type(era) is not int:
        raise CodecError("envelope fields of the wrong type")
    if not isinstance(name, str):
        raise CodecError("envelope fields of the wrong type")
    kind = KINDS.get(name)
    if kind is None:
        raise CodecError(f"unknown command {name[:40]!r}")
    command = decode(kind, plain["c"])
    return Envelope(command, Milliseconds(at), Milliseconds(expires), era)
