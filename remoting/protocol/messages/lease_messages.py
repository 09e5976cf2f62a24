"""The messages of requests and leases: ask, wait, claim, cancel, attach, release, sessions."""

from dataclasses import field
from enum import StrEnum

from gpupool.pool.model.ids import Incarnation, LeaseId, RequestId, ServerId
from gpupool.pool.model.state import Partition, Request
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.declaration import Answer, CallFor, Push
from gpupool.remoting.protocol.messages.hello_messages import Done
from gpupool.remoting.protocol.sessions import SessionInfo


@message(132)
class Offered(Answer):
    """One of the two is set."""

    offer: Offer | None
    refusal: NoOffer | None


@message(16, rights=Rights.USER)
class Ask(CallFor[Offered]):
    """Ask for an offer for ``request`` now, and for a hint later if the client waits."""

    request: Request
    waits: bool = True


@message(17, rights=Rights.OWNER)
class AwaitGpus(CallFor[Done]):
    """Record or renew the request's place in the waiting line."""

    request: Request
    reason: str


class ClaimOutcome(StrEnum):
    """The outcome of a claim."""

    GRANTED = "granted"
    REFUSED = "refused"  # definitely: it is not granted later
    UNCERTAIN = "uncertain"


@message(133)
class Claimed(Answer):
    """``outcome`` is the value of a ``ClaimOutcome``; ``kind``, of a refusal's ``RefusalKind``."""

    outcome: str
    lease: LeaseId | None = None
    kind: str = ""
    why: str = ""
    idle_timeout_s: float = 0.0  # of the lease; 0: none
    time_left_s: float = 0.0  # until the lease ends at the latest; 0: no limit


@message(18, rights=Rights.OWNER)
class Claim(CallFor[Claimed]):
    """Grant exactly this. The connection is attached to the lease that comes of it."""

    request: Request
    ticket_hash: bytes  # SHA-256 of the lease's ticket, a secret of the client
    partitions: tuple[Partition, ...]
    incarnations: dict[ServerId, Incarnation]


@message(19, rights=Rights.OWNER)
class Cancel(CallFor[Done]):
    """Refuse every later grant of this request, and end its lease; ``Done`` means committed."""

    request: RequestId
    reason: str
    successor: RequestId | None = None


@message(20, rights=Rights.OWNER)
class Attach(CallFor[Done]):
    """Tie the lease to this connection as well: when it closes, the lease ends."""

    lease: LeaseId
    ticket: bytes = field(repr=False)


@message(21, rights=Rights.OWNER)
class Release(CallFor[Done]):
    """The program is over: end the lease."""

    lease: LeaseId
    reason: str


@message(134)
class SessionOpened(Answer):
    """Where the worker is reached. ``encryption`` is a ``DataEncryption``."""

    info: SessionInfo
    address: str  # host:port
    encryption: str


@message(22, rights=Rights.OWNER)
class OpenSession(CallFor[SessionOpened]):
    """Start a worker for one client process; the lease must be attached to this connection."""

    lease: LeaseId
    door: str
    program: str
    settings: dict[str, str] = field(default_factory=dict[str, str])  # of ``settings.ALLOWED``


@message(24, rights=Rights.OWNER)
class GoOn(CallFor[Done]):
    """The program of a lease that is being moved asks to go on with the other server.

    The old server answers once the pool has decided. The new one is asked where the lease is, when
    the old one has not answered: it has the lease stay unless it has gone. ``Done`` means gone.
    """

    lease: LeaseId
    number: int  # of the order, and its server, as ``LeaseLeaving`` has them
    server: ServerId
    stays: str = ""  # why the program does not ask, and stays; then ``Done`` means that it stays


@message(192)
class CapacityAvailable(Push):
    """A hint: these waiting requests would probably be granted now."""

    requests: tuple[RequestId, ...]


@message(193)
class LeaseEnded(Push):
    """A lease attached to this connection has ended, not by the client's own release."""

    lease: LeaseId
    reason: str


@message(200)
class LeaseNotice(Push):
    """Something that the user of a lease attached to this connection should read now."""

    lease: LeaseId
    text: str  # such as "it ends in 10m: ..."


@message(201)
class LeaseLeaving(Push):
    """A lease attached to this connection is to go on with another server.

    Its client attaches the lease there, opens a session if it has one here, and sends ``GoOn``.
    """

    lease: LeaseId
    number: int
    server: ServerId
    partitions: tuple[Partition, ...]  # that it has there
    session: bytes  # of its one process here; empty: it has none
