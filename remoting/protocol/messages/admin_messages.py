"""The messages that show the pool: views, telemetry, tokens, the audit; and admit a server."""

from dataclasses import dataclass, field
from enum import Enum

from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import Milliseconds, ServerId, TokenId
from gpupool.pool.model.state import Act, TokenKind
from gpupool.pool.record_query import RecordPage, RecordQuery
from gpupool.pool.telemetry import Finding, Telemetry
from gpupool.pool.view import PoolView
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.declaration import Answer, CallFor, Push
from gpupool.remoting.protocol.messages.hello_messages import Done, Member


@message(135)
class ViewNow(Answer):
    """The pool as the answering server sees it."""

    view: PoolView


@message(32, rights=Rights.VIEWER)
class GetView(CallFor[ViewNow]):
    """Ask for the view of the whole pool."""


@message(136)
class TelemetryNow(Answer):
    """The answering server's telemetry of itself."""

    telemetry: Telemetry


@message(33, rights=Rights.VIEWER)
class GetTelemetry(CallFor[TelemetryNow]):
    """Ask for the server's own measurements."""


@message(34, rights=Rights.VIEWER)
class Subscribe(CallFor[Done]):
    """Push an ``Update`` at this interval from now on, limited to 0.2 s to 60 s; 0 ends it."""

    interval_s: float


@message(35, rights=Rights.VIEWER)
class SubscribeTelemetry(CallFor[Done]):
    """As ``Subscribe``, which it replaces; pushes a ``TelemetryUpdate``, without the pool's view.

    The view is the same from all servers, and the larger part in a large pool.
    """

    interval_s: float


@message(195)
class Update(Push):
    """An update of a subscription."""

    view: PoolView
    telemetry: Telemetry


@message(197)
class TelemetryUpdate(Push):
    """An update of a subscription to telemetry."""

    telemetry: Telemetry


class TokenState(Enum):
    """Whether a token is good for anything."""

    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"
    USED = "used"  # by a server, which it let in


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token without its hash."""

    token: TokenId
    kind: TokenKind
    user: str
    created_at: Milliseconds
    expires_at: Milliseconds
    created_by: str
    state: str  # a ``TokenState``; a newer server may know more of them
    uses: int = field(default=1, metadata=OPTIONAL)  # servers that a server token lets in
    used: int = field(default=0, metadata=OPTIONAL)  # servers that one for several has let in


@message(137)
class Tokens(Answer):
    """Every token of the pool."""

    tokens: tuple[TokenView, ...]


@message(50, rights=Rights.OPERATOR)
class ListTokens(CallFor[Tokens]):
    """Ask for all tokens; operators only."""


@message(176)
class AuditNow(Answer):
    """The latest acts, oldest first; ``count`` is how many there ever were.

    ``former`` are those that came with a restored backup.
    """

    acts: tuple[Act, ...]
    count: int
    former: tuple[Act, ...] = ()


@message(96, rights=Rights.VIEWER)
class GetAudit(CallFor[AuditNow]):
    """Ask for the administrative acts in the table, as they stand once this call is committed."""


@message(178)
class UsageIs(Answer):
    """A page of the answering server's records of ended leases."""

    page: RecordPage


@message(100, rights=Rights.VIEWER)
class GetUsage(CallFor[UsageIs]):
    """Ask for the records of ended leases; of other users' leases, users are told sums.

    The answer is of one server, with or without a majority. ``query.user`` is an operator's choice.
    """

    query: RecordQuery


@message(180)
class ChecksDone(Answer):
    """The answering server's findings from testing its links and its idle GPUs now."""

    findings: tuple[Finding, ...]


@message(102, rights=Rights.OPERATOR)
class RunChecks(CallFor[ChecksDone]):
    """Test the links and idle GPUs of a server, which takes some seconds."""


@message(181)
class BandwidthIs(Answer):
    """The bandwidth between two servers, in bits per second."""

    there: int  # from the answering server
    back: int


@message(103, rights=Rights.OPERATOR)
class MeasureBandwidth(CallFor[BandwidthIs]):
    """Measure a server's bandwidth to another server, which takes about a second."""

    peer: ServerId


@message(179)
class HistoryIs(Answer):
    """A part of the answering server's measurements."""

    page: HistoryPage


@message(101, rights=Rights.VIEWER)
class GetHistory(CallFor[HistoryIs]):
    """Ask for a server's measurements; of leases, users see only theirs.

    The answer is of one server, with or without a majority. ``query.user`` is an operator's choice.
    """

    query: HistoryQuery


@message(138)
class Joined(Answer):
    """The data for a new server: its certificate, the CA, and for a voter the CA's key."""

    certificate_pem: bytes
    ca_pem: bytes
    ca_key_pem: bytes = field(repr=False)
    voter: bool
    members: tuple[Member, ...]


@message(64, rights=Rights.SERVER)
class JoinPool(CallFor[Joined]):
    """Admit a server, on a connection that a server token opened."""

    server: ServerId
    name: str
    address: str
    witness: bool
    csr_pem: bytes
