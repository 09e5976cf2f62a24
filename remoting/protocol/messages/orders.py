"""The orders: calls by which a person changes the pool, each next to the command that it becomes.

An order declares everything about itself: its rights, its check, the replicated command that the
server proposes for it, and the sentence that the person reads in the end. The server, the client
and the command line (``AdminService``, ``Pool.operate``, ``output.operate``) treat all alike.

    order           command           names a server     numbered
    CreateToken     CreateToken       no                 no: its token id makes it idempotent
    RenewToken      RenewToken        no                 no: done twice, it does the same
    RevokeToken     RevokeToken       no                 no: done twice, it does the same
    RemoveServer    RemoveServer      yes                no: done twice, it does the same
    DrainServer     DrainServer       yes                yes: another order undoes it
    DrainGpu        DrainGpu          yes                yes: another order undoes it
    LabelServer     LabelServer       yes                yes: another order undoes it
    EndLease        EndLease          no                 no: a lease ends once
    SuspendLease    SuspendLease      no                 yes: another order undoes it
    ResumeLease     ResumeLease       no                 yes: another order undoes it
    MoveLease       MoveLease         no                 yes: another order undoes it
    RelocateLease   RelocateLease     no                 yes: another order undoes it
    SetClock        SetClock          no                 no: the era of the table numbers it
    RetireCa        RetireCa          no                 no: done twice, it does the same
    SetSilence      SetSilence        no                 yes: another order undoes it
    ForgetUser      ForgetUser        no                 yes: the number salts its hash

Those about one lease are in ``lease_orders``. ``RotateCa`` is no order: its server makes a key, and
gives it to others, before it proposes.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from gpupool.pool.errors import DeniedError, NotNowError, UsageError
from gpupool.pool.model import commands
from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.commands import Command
from gpupool.pool.model.forgetting import SALT_SIZE, digest_of, pseudonym_of
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId, TokenId
from gpupool.pool.model.silences import SILENCE_MAX_MS, silence_scope
from gpupool.pool.model.state import TOKEN_USES_MAX, TokenKind
from gpupool.pool.transitions.gpu_drains import AUTOMATIC
from gpupool.pool.view import visible
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.declaration import CallFor
from gpupool.remoting.protocol.messages.hello_messages import Done

ORDER_SIZE = 16
REASON_LENGTH_MAX = 200
TOKEN_VALID_MAX_S = 10 * 365 * 86400.0

MEASURED_WITHIN_S = 10
"""The links measure the clocks at their beginning, and every 5 s from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """The circumstances of an order, as the server that takes it knows them."""

    by: str
    operator: bool
    at: Milliseconds
    server: ServerId | None  # the server that the order names
    gpu: GpuId | None = None  # and the GPU
    era: int  # of the table
    target: int | None  # the voters' clocks, in milliseconds; None: no majority agrees
    clocks_missing: int = 0  # of voters that are not measured yet, and are needed for a majority


class Order(CallFor[Done]):
    """See the module."""

    __slots__ = ()

    def named_server(self) -> str | None:
        """Return the name or id of the server that the order is about."""
        return None

    def named_gpu(self) -> str | None:
        """Return the id or the index of the GPU of that server that the order is about."""
        return None

    def named_lease(self) -> LeaseId | None:
        """Return the lease that the order is about; its user may give it, too."""
        return None

    def numbered(self, number: bytes) -> Self:
        """Return the order with a separate number, the same whenever it is repeated.

        An order that another one undoes must not be applied twice: its repetition may arrive after
        the other. All other orders do the same thing when done twice, and have no number.
        """
        return self

    def check(self) -> None:
        """Raise ``UsageError`` when the order makes no sense."""

    def command(self, issue: Issue) -> Command:
        """Return the command that the server proposes."""
        raise NotImplementedError

    def outcome(self, note: str) -> str:
        """Return the sentence about its success; ``note`` is that of the answer."""
        raise NotImplementedError


class ServerOrder(Order):
    """An order about a server, which is its field ``server``: its name or id."""

    __slots__ = ()
    server: str

    def named_server(self) -> str | None:
        """Return the server."""
        return self.server


class NumberedOrder(Order):
    """An order that another one undoes; its number is its field ``order``."""

    __slots__ = ()

    def numbered(self, number: bytes) -> Self:
        """Return the order with its number."""
        numbered: Any = self  # Each kind is a dataclass, by its declaration.
        return replace(numbered, order=number)


@message(48, rights=Rights.OPERATOR)
class CreateToken(Order):
    """Register a token with a secret known only to the caller."""

    token: TokenId
    kind: TokenKind
    user: str
    secret_hash: bytes
    valid_s: float
    uses: int = field(default=1, metadata=OPTIONAL)  # servers that a server token lets in

    def check(self) -> None:
        """Refuse a validity that is empty or too long, and uses that make no sense."""
        _check_valid(self.valid_s)
        if not 1 <= self.uses <= TOKEN_USES_MAX or (
            self.uses > 1 and self.kind is not TokenKind.SERVER
        ):
            raise UsageError(f"a server token lets in 1 to {TOKEN_USES_MAX} servers, others none")

    def command(self, issue: Issue) -> Command:
        """Return the command; the validity begins now, by the clock of this server."""
        return commands.CreateToken(
            token=self.token,
            kind=self.kind,
            user=self.user,
            secret_hash=self.secret_hash,
            expires_at=Milliseconds(issue.at + int(self.valid_s * 1000)),
            by=issue.by,
            uses=self.uses,
        )

    def outcome(self, note: str) -> str:
        """Return that the token is good."""
        return f"token {self.token} is registered"


def _check_valid(valid_s: float) -> None:
    if not 0 < valid_s <= TOKEN_VALID_MAX_S:
        raise UsageError("a token is valid for more than 0 s and at most 10 years")


@message(61, rights=Rights.OPERATOR)
class RenewToken(Order):
    """Let a token be good for so long from now on."""

    token: TokenId
    valid_s: float

    def check(self) -> None:
        """Refuse a validity that is empty or too long."""
        _check_valid(self.valid_s)

    def command(self, issue: Issue) -> Command:
        """Return the command; the validity begins now, by the clock of this server."""
        expires_at = Milliseconds(issue.at + int(self.valid_s * 1000))
        return commands.RenewToken(self.token, expires_at, issue.by)

    def outcome(self, note: str) -> str:
        """Return that the token is good again."""
        return f"token {self.token} is renewed"


@message(49, rights=Rights.OPERATOR)
class RevokeToken(Order):
    """Refuse a token from now on, and end its leases."""

    token: TokenId

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        return commands.RevokeToken(self.token, issue.by)

    def outcome(self, note: str) -> str:
        """Return that the token is refused now."""
        return f"token {self.token} is revoked"


@message(51, rights=Rights.OPERATOR)
class RemoveServer(ServerOrder):
    """Take a server, by name or id, out of the pool for good."""

    server: str

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        assert issue.server is not None
        return commands.RemoveServer(issue.server, issue.by)

    def outcome(self, note: str) -> str:
        """Return the operator's next step."""
        return f"{self.server} is no longer in the pool; stop its gpupool join if it still runs"


@message(52, rights=Rights.OPERATOR)
class DrainServer(ServerOrder, NumberedOrder):
    """Stop granting on a server, by name or id; without a reason, resume."""

    server: str
    reason: str | None
    order: bytes = b""

    def check(self) -> None:
        """Refuse a reason that would not fit into the tables that people read."""
        _check_reason(self.reason)

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        assert issue.server is not None
        return commands.DrainServer(issue.server, self.reason, issue.by, self.order)

    def outcome(self, note: str) -> str:
        """Return the server's new state; a note says that it has not changed."""
        if self.reason is not None:
            return f"{self.server} is drained; what runs there goes on"
        return f"{self.server} {'is not drained' if note else 'takes leases again'}"


@message(58, rights=Rights.OPERATOR)
class DrainGpu(ServerOrder, NumberedOrder):
    """Stop granting on one GPU of a server, both by id or as people name them; or resume."""

    server: str
    gpu: str  # its id, or its index on that server
    reason: str | None
    order: bytes = b""

    def named_gpu(self) -> str | None:
        """Return the GPU."""
        return self.gpu

    def check(self) -> None:
        """Refuse a reason as ``DrainServer`` does, and one that only servers give."""
        _check_reason(self.reason)
        if self.reason == "" or (self.reason or "").startswith(AUTOMATIC):
            raise UsageError(f'a drain needs a reason, which does not begin with "{AUTOMATIC}"')

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        assert issue.server is not None
        assert issue.gpu is not None
        return commands.DrainGpu(issue.server, issue.gpu, self.reason, issue.by, self.order)

    def outcome(self, note: str) -> str:
        """Return the GPU's new state; a note says that it has not changed."""
        what = f"GPU {self.gpu} of {self.server}"
        if self.reason is not None:
            return f"{what} is drained; what runs there goes on"
        return f"{what} {'is not drained' if note else 'takes leases again'}"


def _check_reason(reason: str | None) -> None:
    if reason and (len(reason) > REASON_LENGTH_MAX or not reason.isprintable()):
        raise UsageError(f"a reason is one line of at most {REASON_LENGTH_MAX} characters")


@message(54, rights=Rights.OPERATOR)
class LabelServer(ServerOrder, NumberedOrder):
    """Set some labels of a server, by name or id, and take some away."""

    server: str
    labels: dict[str, str]
    without: tuple[str, ...]
    order: bytes = b""

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        assert issue.server is not None
        labels, without = self.labels, self.without
        return commands.LabelServer(issue.server, labels, without, issue.by, self.order)

    def outcome(self, note: str) -> str:
        """Return the changes, as they are written on the command line."""
        set_now = [f"{name}={value}" for name, value in self.labels.items()]
        return f"{self.server}: {' '.join([*set_now, *(f'{name}-' for name in self.without)])}"


@message(55, rights=Rights.OPERATOR)
class SetClock(Order):
    """Set the pool's time to where the clocks of a majority of the voters are."""

    def command(self, issue: Issue) -> Command:
        """Return the command.

        Raises:
            NotNowError: when the server that was asked has not measured enough clocks yet.
            DeniedError: when it knows no majority that agrees.
        """
        if issue.target is None and issue.clocks_missing:
            clocks = "clock is" if issue.clocks_missing == 1 else "clocks are"
            raise NotNowError(
                "the pool's time cannot be set yet",
                why=f"{issue.clocks_missing} more of the voters' {clocks} needed, and not "
                "measured here: the server has just started, or cannot reach them",
                hint=f"try again in {MEASURED_WITHIN_S} s; if that does not help, start the "
                "servers that are missing; gpupool clock shows them",
            )
        if issue.target is None:
            raise DeniedError(
                "the pool's time cannot be set",
                why="no majority of the voters' clocks agrees here",
                hint="put the clocks right, and start missing servers; gpupool clock shows them",
            )
        return commands.SetClock(Milliseconds(issue.target), issue.era, issue.by)

    def outcome(self, note: str) -> str:
        """Return that the time is right; a note says that somebody else has set it."""
        return note or "the pool's time is where the voters' clocks are"


@message(56, rights=Rights.OPERATOR)
class RotateCa(CallFor[Done]):
    """Make another CA, which signs from now on beside the one that signed before."""

    ca: bytes  # SHA-256 of the one that signs now, so that a repetition changes nothing


@message(57, rights=Rights.OPERATOR)
class RetireCa(Order):
    """Trust the older of two CAs no more; with ``force`` although servers still use it."""

    ca: bytes  # its SHA-256
    force: bool

    def check(self) -> None:
        """Refuse a CA name that is no SHA-256."""
        if len(self.ca) != 32:
            raise UsageError("a CA is named by its SHA-256")

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        return commands.RetireCa(self.ca, self.force, issue.by)

    def outcome(self, note: str) -> str:
        """Return that the CA is dropped; a note names those that must join anew."""
        done = f"CA {self.ca.hex()[:16]} is trusted no more"
        return f"{done}; {note}" if note else done


@message(59, rights=Rights.OPERATOR)
class SetSilence(NumberedOrder):
    """Silence findings and alerts for so long, on one server or everywhere; or no more."""

    of: str  # a check's or a rule's name
    server: str  # its name; empty: any
    subject: str  # empty: any
    reason: str | None  # None: no more
    for_s: float
    order: bytes = b""

    def check(self) -> None:
        """Refuse a reason as ``DrainServer`` does, and an empty one."""
        _check_reason(self.reason)
        if self.reason is not None and not self.reason.strip():
            raise UsageError("a silence needs a reason", hint='--reason "a new disk comes"')
        if self.reason is not None and not 0 < self.for_s * 1000 <= SILENCE_MAX_MS:
            raise UsageError("a silence is for longer than nothing, and for 90 days at most")

    def command(self, issue: Issue) -> Command:
        """Return the command; the silence begins now, by the pool's time."""
        for_s = self.for_s if self.reason is not None else 0.0
        return commands.SetSilence(
            check=self.of,
            server=self.server,
            subject=self.subject,
            reason=self.reason,
            until=Milliseconds(issue.at + int(for_s * 1000)),
            by=issue.by,
            order=self.order,
        )

    def outcome(self, note: str) -> str:
        """Return whether the findings or alerts are silenced now."""
        where = silence_scope(self.server, self.subject)
        what = f"{self.of} {where}" if where else self.of
        if self.reason is None:
            return f"{what} is not silenced{' any more' if not note else ''}"
        return f"{what} is silenced"


@message(65, rights=Rights.OPERATOR)
class ForgetUser(NumberedOrder):
    """Replace a user's name by a pseudonym in the accounts and histories of all servers.

    The name goes no further than the server that takes the order; its number salts the hash.
    """

    user: str
    order: bytes = b""

    def check(self) -> None:
        """Refuse an order without a name, or without a number."""
        if not self.user or len(self.order) != SALT_SIZE:
            raise UsageError("this order names a user, and has a number")

    def command(self, issue: Issue) -> Command:
        """Return the command, which has the hash."""
        return commands.ForgetUser(self.order, digest_of(self.order, self.user), issue.by)

    def outcome(self, note: str) -> str:
        """Return the pseudonym."""
        name = pseudonym_of(digest_of(self.order, self.user))
        return f"the accounts and histories know {visible(self.user)} as {name}"
