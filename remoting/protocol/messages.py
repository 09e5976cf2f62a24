"""Every control message as a frozen dataclass: the whole protocol on one screen.

A client opens with ``Hello`` (or ``FetchCa``, alone, before it has a CA to trust), is answered by
``Welcome`` or ``Refused``, and then makes calls. A call carries a number of the client's choice,
and its one answer the same number; pushes from the server carry number 0. A frame's body is the
CBOR array ``[number, fields]``. Any call may be answered by ``Refused``.

    client                                   server
    Hello, FetchCa                           Welcome, CaCertificate
    Ask                                      Offered
    Claim                                    Claimed
    Cancel, AwaitGpus, Attach, Release ...   Done
    Ping                                     Done
    OpenSession                              SessionOpened
    GetView, GetTelemetry, ListTokens        ViewNow, TelemetryNow, Tokens
    GetPolicy, GetPolicyHistory              PolicyIs, PolicyHistory
    PutPolicy, CheckPolicy                   Done, PolicyVerdict
    GetAudit, GetBackup                      AuditNow, BackupIs
    PutPart, RestoreBackup                   Done
    JoinPool                                 Joined
                                             CapacityAvailable, LeaseEnded, LeaseNotice, Members,
                                             Update, Dismissed   (pushes)
"""

from dataclasses import dataclass, field

from gpupool.pool.errors import (
    AuthenticationError,
    ConflictError,
    DeniedError,
    GpupoolError,
    LeaseLostError,
    LocalProtocolError,
    NeverFitsError,
    NoQuorumError,
    NotNowError,
    ProtocolError,
    RemoteProtocolError,
    StorageError,
    UnreachableError,
    UsageError,
)
from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, RequestId, ServerId, TokenId
from gpupool.pool.model.state import Act, Partition, Request, TokenKind
from gpupool.pool.scheduling.placement import NoOffer, Offer
from gpupool.pool.view import PoolView, Telemetry
from gpupool.remoting.protocol.framing import dump, frame_bytes, load
from gpupool.remoting.protocol.sessions import SessionInfo

PROTOCOL = 3
PROTOCOL_OLDEST = 2
"""What a server speaks: it serves clients of ``PROTOCOL_OLDEST`` up to ``PROTOCOL``.

Servers are updated before clients. So openings, answers and pushes may get fields, with defaults,
and pushes new kinds, under the same number: whoever reads them passes over what it does not know.
Calls are read strictly. A new call, a new field of one, and whatever an older client would misread
make ``PROTOCOL`` grow; what older clients could not do at all, ``PROTOCOL_OLDEST`` too.
"""

# --- opening -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a client, over a connection whose server it has verified."""

    protocol: int
    version: str
    token: TokenId
    secret: bytes
    client: str  # user@host, for people


@dataclass(frozen=True, slots=True)
class FetchCa:
    """First and only message of a client that knows no more of the CA than its SHA-256."""

    protocol: int


@dataclass(frozen=True, slots=True)
class CaCertificate:
    """The certificate of the cluster CA; worthless to whoever does not know its SHA-256."""

    pem: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """Where a server is reached."""

    server: ServerId
    name: str
    address: str  # host:port
    voter: bool


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server knows the token."""

    protocol: int
    version: str
    server: ServerId
    server_name: str
    cluster_id: str
    pool: str
    user: str
    kind: TokenKind
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """An error of ``pool.errors``, by its code."""

    code: str
    what: str
    why: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The call has done what it asked for; ``note`` may say that there was nothing to do."""

    note: str = ""


# --- requests and leases -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Say what this server could give for ``request`` now, and hint later if the client waits."""

    request: Request
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Offered:
    """One of the two is set."""

    offer: Offer | None
    refusal: NoOffer | None


@dataclass(frozen=True, slots=True)
class AwaitGpus:
    """Record or renew the request's place in the waiting line."""

    request: Request
    reason: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Grant exactly this. The connection is attached to the lease that comes of it."""

    request: Request
    ticket_hash: bytes  # SHA-256 of the lease's ticket, a secret of the client
    partitions: tuple[Partition, ...]
    incarnations: dict[ServerId, Incarnation]


@dataclass(frozen=True, slots=True)
class Claimed:
    """``outcome`` is "granted", "refused" (definitely; kinds of ``Result``) or "uncertain"."""

    outcome: str
    lease: LeaseId | None = None
    kind: str = ""
    why: str = ""
    idle_timeout_s: float = 0.0  # of the lease; 0: none
    time_left_s: float = 0.0  # until the lease ends at the latest; 0: no limit


@dataclass(frozen=True, slots=True)
class Cancel:
    """Refuse every later grant of this request, and end its lease; ``Done`` means committed."""

    request: RequestId
    reason: str
    successor: RequestId | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    """Tie the lease to this connection as well: when it closes, the lease ends."""

    lease: LeaseId
    ticket: bytes


@dataclass(frozen=True, slots=True)
class Release:
    """The program is over: end the lease."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Start a worker for one client process; the lease must be attached to this connection."""

    lease: LeaseId
    door: str
    program: str
    settings: dict[str, str] = field(default_factory=dict[str, str])  # of ``settings.ALLOWED``


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Where the worker is reached. ``encryption`` is "tls" or "off", for the data alone."""

    info: SessionInfo
    address: str  # host:port
    encryption: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Say that you are there."""


# --- looking and operating -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetView:
    """Ask for the view of the whole pool."""


@dataclass(frozen=True, slots=True)
class ViewNow:
    """The pool as the answering server sees it."""

    view: PoolView


@dataclass(frozen=True, slots=True)
class GetTelemetry:
    """Ask what the server measures of itself."""


@dataclass(frozen=True, slots=True)
class TelemetryNow:
    """What the answering server measures of itself."""

    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Push an ``Update`` at this interval from now on, limited to 0.2 s to 60 s; 0 ends it."""

    interval_s: float


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Register a token whose secret only the caller knows."""

    token: TokenId
    kind: TokenKind
    user: str
    secret_hash: bytes
    valid_s: float


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """Refuse a token from now on, and end its leases."""

    token: TokenId


@dataclass(frozen=True, slots=True)
class ListTokens:
    """Ask for all tokens; operators only."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token without its hash. ``state`` is "valid", "expired", "revoked" or "used"."""

    token: TokenId
    kind: TokenKind
    user: str
    created_at: Milliseconds
    expires_at: Milliseconds
    created_by: str
    state: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Every token of the pool."""

    tokens: tuple[TokenView, ...]


@dataclass(frozen=True, slots=True)
class GetAudit:
    """Ask for the administrative acts in the table, as they stand once this call is committed."""


@dataclass(frozen=True, slots=True)
class AuditNow:
    """The latest acts, oldest first; ``count`` is how many there ever were.

    ``former`` are those that came with a restored backup.
    """

    acts: tuple[Act, ...]
    count: int
    former: tuple[Act, ...] = ()


@dataclass(frozen=True, slots=True)
class GetBackup:
    """Ask for a backup of the table, as it stands once this call is committed."""


@dataclass(frozen=True, slots=True)
class BackupIs:
    """The content of a backup's file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PutPart:
    """Keep one part of a packed backup until ``RestoreBackup``."""

    upload: bytes  # 16 random bytes
    part: int  # from 0
    data: bytes


@dataclass(frozen=True, slots=True)
class RestoreBackup:
    """Take the backup whose parts were put into the table, whole or not at all."""

    upload: bytes
    part_count: int
    digest: bytes  # SHA-256 of all parts together


@dataclass(frozen=True, slots=True)
class RemoveServer:
    """Take a server, by name or id, out of the pool for good."""

    server: str


@dataclass(frozen=True, slots=True)
class DrainServer:
    """Stop granting on a server, by name or id; without a reason, resume.

    ``order`` is 16 random bytes, the same whenever the same order is repeated.
    """

    server: str
    reason: str | None
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class GetPolicy:
    """Ask for the text of the pool's policy; version 0 stands for the one in force."""

    version: int = 0


@dataclass(frozen=True, slots=True)
class PolicyIs:
    """One version of the policy; version 0 and an empty text when there never was one."""

    version: int
    by: str
    at: Milliseconds
    packed: bytes  # ``policy_log.unpack_text`` reads it


@dataclass(frozen=True, slots=True)
class GetPolicyHistory:
    """Ask which versions of the policy are kept."""


@dataclass(frozen=True, slots=True)
class PolicyHistory:
    """The versions that are kept, without their texts, the latest last."""

    versions: tuple[PolicyIs, ...]


@dataclass(frozen=True, slots=True)
class PutPolicy:
    """Put a policy in force in the place of version ``base``; operators only."""

    packed: bytes  # made by ``policy_log.pack_text``
    base: int


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """Ask what the policy, or a draft of one, says of a user's request."""

    user: str
    request: Request | None = None
    packed: bytes = b""  # a draft; empty for the policy in force


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """``kind`` is that of a refusal, or empty. The lines explain it."""

    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelServer:
    """Set some labels of a server, by name or id, and take some away; as ``DrainServer``."""

    server: str
    labels: dict[str, str]
    without: tuple[str, ...]
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class EndLease:
    """End a lease by order; one's own, or any for an operator."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class JoinPool:
    """Admit a server, on a connection that a server token opened."""

    server: ServerId
    name: str
    address: str
    witness: bool
    csr_pem: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """What a new server needs: its certificate, the CA, and as a voter the CA's key."""

    certificate_pem: bytes
    ca_pem: bytes
    ca_key_pem: bytes
    voter: bool
    members: tuple[Member, ...]


# --- pushes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CapacityAvailable:
    """A hint: these waiting requests would probably be granted now."""

    requests: tuple[RequestId, ...]


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A lease attached to this connection has ended, not by the client's own release."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseNotice:
    """Something that the user of a lease attached to this connection should read now."""

    lease: LeaseId
    text: str  # such as "it ends in 10m: ..."


@dataclass(frozen=True, slots=True)
class Dismissed:
    """The server is about to close this connection, and why."""

    reason: Refused


@dataclass(frozen=True, slots=True)
class Members:
    """The membership has changed."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """What a subscription delivers."""

    view: PoolView
    telemetry: Telemetry


Opening = Hello | FetchCa
Call = (
    Ask
    | AwaitGpus
    | Claim
    | Cancel
    | Attach
    | Release
    | OpenSession
    | Ping
    | GetView
    | GetTelemetry
    | Subscribe
    | CreateToken
    | RevokeToken
    | ListTokens
    | GetAudit
    | GetBackup
    | PutPart
    | RestoreBackup
    | RemoveServer
    | DrainServer
    | LabelServer
    | EndLease
    | GetPolicy
    | GetPolicyHistory
    | PutPolicy
    | CheckPolicy
    | JoinPool
)
Answer = (
    Welcome
    | CaCertificate
    | Refused
    | Done
    | Offered
    | Claimed
    | SessionOpened
    | ViewNow
    | TelemetryNow
    | Tokens
    | PolicyIs
    | PolicyHistory
    | PolicyVerdict
    | AuditNow
    | BackupIs
    | Joined
)
Push = CapacityAvailable | LeaseEnded | LeaseNotice | Members | Update | Dismissed
Message = Opening | Call | Answer | Push

# The number of each message on the wire. Numbers are never reused.
OPENINGS: dict[int, type[Opening]] = {1: Hello, 2: FetchCa}
CALLS: dict[int, type[Call]] = {
    16: Ask,
    17: AwaitGpus,
    18: Claim,
    19: Cancel,
    20: Attach,
    21: Release,
    22: OpenSession,
    23: Ping,
    32: GetView,
    33: GetTelemetry,
    34: Subscribe,
    48: CreateToken,
    49: RevokeToken,
    50: ListTokens,
    51: RemoveServer,
    52: DrainServer,
    53: EndLease,
    54: LabelServer,
    64: JoinPool,
    80: GetPolicy,
    81: GetPolicyHistory,
    82: PutPolicy,
    83: CheckPolicy,
    96: GetAudit,
    97: GetBackup,
    98: PutPart,
    99: RestoreBackup,
}
ANSWERS: dict[int, type[Answer]] = {
    128: Welcome,
    129: CaCertificate,
    130: Refused,
    131: Done,
    132: Offered,
    133: Claimed,
    134: SessionOpened,
    135: ViewNow,
    136: TelemetryNow,
    137: Tokens,
    138: Joined,
    160: PolicyIs,
    161: PolicyHistory,
    162: PolicyVerdict,
    176: AuditNow,
    177: BackupIs,
}
PUSHES: dict[int, type[Push]] = {
    192: CapacityAvailable,
    193: LeaseEnded,
    194: Members,
    195: Update,
    196: Dismissed,
    200: LeaseNotice,
}
PUSH_MIN = 192
"""Kinds from here on are pushes, also those that a newer server may have."""

KINDS: dict[int, type[Message]] = {**OPENINGS, **CALLS, **ANSWERS, **PUSHES}
NUMBERS: dict[type[Message], int] = {kind: number for number, kind in KINDS.items()}

CALL_NUMBER_MAX = 2**32 - 1


def to_frame(call: int, message: Message, *, size_max: int) -> bytes:
    """Return ``message`` as one frame, as call number ``call`` or an answer to it."""
    return frame_bytes(NUMBERS[type(message)], dump([call, encode(message)]), size_max=size_max)


def from_body(kind: int, body: bytes) -> tuple[int, Message]:
    """Return the call number and the message of a frame.

    Raises:
        RemoteProtocolError: for an unknown kind, or a body that is not exactly its message.
    """
    expected = KINDS.get(kind)
    if expected is None:
        raise RemoteProtocolError("unknown message", why=f"kind {kind}")
    plain = load(body)
    if not isinstance(plain, list) or len(plain) != 2:
        raise RemoteProtocolError("malformed message", why="not a pair of number and fields")
    call, fields = plain
    if type(call) is not int or not 0 <= call <= CALL_NUMBER_MAX:
        raise RemoteProtocolError("malformed message", why="call number out of range")
    try:
        return call, decode(expected, fields, unknown_fields=kind not in CALLS)
    except CodecError as error:
        raise RemoteProtocolError("malformed message", why=str(error)[:200]) from error


_ERRORS: dict[str, type[GpupoolError]] = {
    kind.code: kind
    for kind in (
        GpupoolError,
        UsageError,
        UnreachableError,
        AuthenticationError,
        ConflictError,
        DeniedError,
        NeverFitsError,
        NotNowError,
        NoQuorumError,
        LeaseLostError,
        StorageError,
    )
}
# Both ends must be able to say so; which end broke the rules is seen from the other side.
_ERRORS[ProtocolError.code] = LocalProtocolError


def refused(error: GpupoolError) -> Refused:
    """Return the message that carries ``error`` to the other side."""
    return Refused(error.code, error.what[:200], error.why[:500], error.hint[:200])


def to_error(message: Refused) -> GpupoolError:
    """Return the error that ``message`` carries."""
    kind = _ERRORS.get(message.code, GpupoolError)
    return kind(message.what, why=message.why, hint=message.hint)
