"""How a client turns a request into a lease, as a state machine without I/O.

The allocator drives it with connections, the simulator with fakes. Inputs are method calls, each of
which returns the actions to carry out (``negotiation_actions``):

    start(servers, count)          begin; these of so many servers are connected
    arrived(server), left(server)  a connection came up, or is gone
    answered(number, answer)       a ``Call`` has its answer, or an error: refused, lost, late
    hinted()                       a server says that there may be room now
    retry_without(server)          the granted lease could not be used: release it, begin again
    poll()                         time has passed; call again at ``wake_at()``

Phases, as in section 3 of the design:

    ASKING ----offers----> CLAIMING ----granted----> DONE
      |  ^                  |     |
      |  |    next offer <--+     +--no definite answer--> CANCELLING --committed--> next offer
      v  |  (definite refusal)
    WAITING (exponential back-off with full jitter, or a hint)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpupool.pool.errors import (
    AuthenticationError,
    DeniedError,
    GpupoolError,
    NeverFitsError,
    NoQuorumError,
    NotNowError,
    UsageError,
)
from gpupool.pool.model.ids import RequestId, ServerId
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import Request
from gpupool.pool.ports import Clock, Randomness
from gpupool.pool.scheduling.ranking import Choice, explain, rank
from gpupool.remoting.client.negotiation_actions import (
    Action,
    Call,
    Explain,
    Failed,
    Granted,
    NegotiationSettings,
    Phase,
    Tell,
    Widen,
)
from gpupool.remoting.client.refusals import Refusals
from gpupool.remoting.protocol import messages as m

FATAL = (AuthenticationError, DeniedError, NeverFitsError, UsageError)
"""Refusals of an ask that every other server would repeat."""


@dataclass(slots=True)
class _Servers:
    """The servers, as the negotiation has met them."""

    width: int  # of a round: so many are asked
    connected: list[ServerId] = field(default_factory=list[ServerId])  # nearest first
    count: int = 0  # of all that exist
    latency_s: dict[ServerId, float] = field(default_factory=dict[ServerId, float])
    avoided: dict[ServerId, float] = field(default_factory=dict[ServerId, float])  # until when


@dataclass(slots=True)
class _Round(Refusals):
    """One round of asking: its questions, their answers, and the refusals of its claims."""

    asked: dict[int, tuple[ServerId, float]] = field(
        default_factory=dict[int, tuple[ServerId, float]]
    )
    expected: int = 0  # servers, once it is widened
    until: float = 0.0


@dataclass(slots=True)
class _Cancelling:
    """The cancel of a claim with an unknown outcome."""

    successor: RequestId  # of the request
    deadline: float
    tries: int = 0


class _Outbox:
    """The actions for the present input."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._number, self.told = 0, ""

    def call(self, server: ServerId, message: m.CallFor[m.Answer], timeout_s: float) -> int:
        self._number += 1
        self.actions.append(Call(self._number, server, message, timeout_s))
        return self._number

    def tell(self, text: str) -> None:
        if text != self.told:
            self.told = text
            self.actions.append(Tell(text))

    def take(self) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions


class Negotiation:
    """One request on its way to a lease; see the module."""

    def __init__(
        self,
        request: Request,
        *,
        ticket_hash: bytes,
        wait_s: float | None,
        clock: Clock,
        rng: Randomness,
        settings: NegotiationSettings | None = None,
    ) -> None:
        """Prepare an allocation.

        Args:
            request: the wanted GPUs; its id is replaced whenever an earlier one was cancelled.
            ticket_hash: SHA-256 of the lease's ticket.
            wait_s: how long to wait for GPUs; 0 for one try, None for ever.
            clock: of the client.
            rng: for jitter and new request ids.
            settings: durations.
        """
        self.request = request
        self.phase = Phase.NEW
        self._ticket_hash = ticket_hash
        self._wait_s = wait_s
        self._clock = clock
        self._rng = rng
        self._settings = settings or NegotiationSettings()
        self._deadline = self._wake_at = float("inf")
        self._servers = _Servers(width=self._settings.ask_first_count)
        self._outbox = _Outbox()
        self._round, self._round_count = _Round(), 0
        # The claim, or the cancel of it.
        self._choices: list[Choice] = []
        self._choice: Choice | None = None
        self._pending: int | None = None
        self._cancelling: _Cancelling | None = None
        self._cancel_turn = 0
        # Waiting.
        self._renewed_at = float("-inf")
        self._was_hinted = False

    # --- inputs ----------------------------------------------------------------------------------

    def start(self, servers: Sequence[ServerId], count: int = 0) -> list[Action]:
        """Begin, with the servers that are connected, nearest first, of ``count`` that exist."""
        self._servers.count = count
        now = self._clock.monotonic()
        if self._wait_s is not None:
            self._deadline = now + self._wait_s
        self._servers.connected = list(servers)
        self._ask()
        return self._outbox.take()

    def arrived(self, server: ServerId) -> list[Action]:
        """Note a new connection; one that comes while asking is asked as well."""
        if server not in self._servers.connected:
            self._servers.connected.append(server)
            if self.phase is Phase.ASKING and len(self._servers.connected) <= self._servers.width:
                self._ask_one(server)
            elif self.phase is Phase.WAITING and len(self._servers.connected) == 1:
                self._ask()  # there was no server to ask before
        return self._outbox.take()

    def left(self, server: ServerId) -> list[Action]:
        """Note that a connection is gone; its calls are answered with errors one by one."""
        if server in self._servers.connected:
            self._servers.connected.remove(server)
        return self._outbox.take()

    def answered(self, number: int, answer: m.Message | GpupoolError) -> list[Action]:
        """Take the answer to a call, or the error in its place."""
        if self.phase is Phase.ASKING and number in self._round.asked:
            self._take_offer(number, answer)
        elif number == self._pending:
            self._pending = None
            if self.phase is Phase.CLAIMING:
                self._take_claimed(answer)
            elif self.phase is Phase.CANCELLING:
                self._take_cancelled(answer)
        return self._outbox.take()

    def hinted(self) -> list[Action]:
        """Ask again at once, because a server reports that there may be room."""
        if self.phase is Phase.WAITING:
            self._round_count = 0
            self._ask()
        else:
            self._was_hinted = True
        return self._outbox.take()

    def retry_without(self, server: ServerId) -> list[Action]:
        """Begin again after ``Granted``: the caller has released the lease."""
        now = self._clock.monotonic()
        self._servers.avoided[server] = now + self._settings.avoid_s
        self._renew_request()
        self._ask()
        return self._outbox.take()

    def poll(self) -> list[Action]:
        """Act on the passing of time."""
        now = self._clock.monotonic()
        if now < self._wake_at:
            return []
        self._wake_at = float("inf")
        match self.phase:
            case Phase.ASKING:
                self._gathered(now)
            case Phase.CANCELLING if self._pending is None:
                self._cancel()
            case Phase.WAITING:
                if now >= self._deadline:
                    self._fail_waiting()
                else:
                    self._ask()
            case _:
                pass
        return self._outbox.take()

    @property
    def leaves_trace(self) -> bool:
        """Return whether the pool may know of the request: then it has to be cancelled."""
        return self._renewed_at > float("-inf") or self._choice is not None

    def wake_at(self) -> float:
        """Return the monotonic time of the next ``poll``."""
        return self._wake_at

    # --- asking ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        self.phase = Phase.ASKING
        self._round, self._was_hinted = _Round(), False
        self._round_count += 1
        self._ask_until(self._settings.ask_timeout_s)
        for server in self._servers.connected[: self._servers.width]:
            self._ask_one(server)
        if not self._round.asked:
            self._judge()

    def _ask_until(self, timeout_s: float) -> None:
        self._round.until = self._clock.monotonic() + timeout_s
        self._wake_at = self._round.until

    def _gathered(self, now: float) -> None:
        """End the round, unless its offers are not enough and more may come."""
        if self._round.asked and now < self._round.until and not self._ranked():
            self._wake_at = self._round.until
        else:
            self._judge()

    def _ranked(self) -> list[Choice]:
        return rank(self._round.offers, self.request, self._servers.latency_s)

    def _ask_one(self, server: ServerId) -> None:
        timeout_s = self._settings.ask_timeout_s
        number = self._outbox.call(server, m.Ask(self.request, self._wait_s != 0), timeout_s)
        self._round.asked[number] = (server, self._clock.monotonic())

    def _take_offer(self, number: int, answer: m.Message | GpupoolError) -> None:
        server, asked_at = self._round.asked.pop(number)
        now = self._clock.monotonic()
        if isinstance(answer, m.Offered) and answer.offer is not None:
            self._servers.latency_s[server] = now - asked_at
            if self._servers.avoided.get(server, now) <= now:
                self._round.offers.append(answer.offer)
                self._wake_at = min(self._wake_at, now + self._settings.gather_s)
            else:
                self._round.left_out.append(answer.offer.name)
        elif isinstance(answer, m.Offered) and answer.refusal is not None:
            self._round.of_asks.append(answer.refusal)
        elif isinstance(answer, FATAL):
            self._fail(answer)
            return
        elif isinstance(answer, GpupoolError):
            self._round.failures.append(answer)
        if not self._round.asked and len(self._servers.connected) >= self._round.expected:
            self._judge()

    def _judge(self) -> None:
        """End the round: claim the best offer, ask more servers, wait, or give up."""
        self._round.asked.clear()
        self._choices = self._ranked()
        if self._choices:
            offers, refusals = self._round.offers, self._round.of_asks
            latency_s = self._servers.latency_s
            lines = explain(self._choices, offers, refusals, self.request, latency_s)
            self._outbox.actions.append(Explain(lines))
            self._claim_next()
            return
        error = self._round.lasting_error(self.request)
        if error is not None:
            self._fail(error)
        elif self._servers.width < max(self._servers.count, len(self._servers.connected)):
            self._widen()
        else:
            self._wait()

    def _widen(self) -> None:
        """Go on with the round: ask as many servers again; connect to them if need be."""
        first = self._servers.width
        self._servers.width *= 2
        self._round.expected = min(self._servers.width, self._servers.count)
        self._outbox.actions.append(Widen(self._servers.width))
        self._ask_until(self._settings.widen_timeout_s)
        for server in self._servers.connected[first : self._servers.width]:
            self._ask_one(server)
        if not self._round.asked and len(self._servers.connected) >= self._round.expected:
            self._judge()

    # --- claiming --------------------------------------------------------------------------------

    def _claim_next(self) -> None:
        if not self._choices:
            self._wait()
            return
        self._choice = self._choices.pop(0)
        self.phase = Phase.CLAIMING
        self._wake_at = float("inf")
        claim = m.Claim(
            self.request, self._ticket_hash, self._choice.partitions, self._choice.incarnations
        )
        timeout_s = self._settings.claim_timeout_s
        self._pending = self._outbox.call(self._choice.server, claim, timeout_s)

    def _take_claimed(self, answer: m.Message | GpupoolError) -> None:
        assert self._choice is not None
        if (
            isinstance(answer, m.Claimed)
            and answer.outcome == m.ClaimOutcome.GRANTED
            and answer.lease
        ):
            self.phase = Phase.DONE
            ends = (answer.idle_timeout_s, answer.time_left_s)
            self._outbox.actions.append(Granted(answer.lease, self.request, self._choice, *ends))
        elif isinstance(answer, m.Claimed) and answer.outcome == m.ClaimOutcome.REFUSED:
            self._take_refusal(answer)
        elif isinstance(answer, NoQuorumError | NotNowError | UsageError | DeniedError):
            # The server refused before it proposed anything, which is definite.
            if isinstance(answer, NoQuorumError | NotNowError):
                lost = isinstance(answer, NoQuorumError)
                self._round.of_claim = str(answer)
                self._round.claim_kind = RefusalKind.NO_QUORUM if lost else RefusalKind.BUSY
                self._claim_next()
            else:
                self._fail(answer)
        else:
            self._begin_cancel()

    def _take_refusal(self, claimed: m.Claimed) -> None:
        self._round.of_claim = claimed.why
        self._round.claim_kind = claimed.kind
        match claimed.kind:
            case RefusalKind.DENIED:
                self._fail(DeniedError("the pool refuses the request", why=claimed.why))
            case RefusalKind.INVALID:
                self._fail(UsageError("the pool cannot make sense of the claim", why=claimed.why))
            case RefusalKind.CLOSED:
                # An earlier claim of this id has had its lease, and that is over.
                self._renew_request()
                self._claim_next()
            case _:
                self._claim_next()

    # --- cancelling ------------------------------------------------------------------------------

    def _begin_cancel(self) -> None:
        """Cancel a claim with an unknown outcome before the next claim is made."""
        self.phase = Phase.CANCELLING
        self._round.of_claim = "its claim was not answered in time"
        now = self._clock.monotonic()
        patience = now + self._settings.cancel_patience_s
        successor = RequestId(self._rng.randbytes(16))
        self._cancelling = _Cancelling(successor, max(self._deadline, patience))
        self._cancel()

    def _cancel(self) -> None:
        assert self._choice is not None
        assert self._cancelling is not None
        if self._clock.monotonic() >= self._cancelling.deadline:
            self._fail(
                NoQuorumError(
                    "the pool did not answer a claim, and its cancel could not be confirmed",
                    why="no server that can be reached is in touch with a majority",
                    hint="if the claim was granted after all, its lease ends by itself",
                )
            )
            return
        # The server of the claim has just failed, so another server is tried first.
        failed = self._choice.server
        others = sorted(self._servers.connected, key=lambda server: server == failed)
        if not others:
            self._cancel_later()
            return
        server = others[self._cancel_turn % len(others)]
        self._cancel_turn += 1
        self._outbox.tell("the pool did not answer; making sure that the request is cancelled")
        cancel = m.Cancel(self.request.id, "no answer to its claim", self._cancelling.successor)
        self._pending = self._outbox.call(server, cancel, self._settings.cancel_timeout_s)

    def _cancel_later(self) -> None:
        assert self._cancelling is not None
        self._cancelling.tries += 1
        limit_s = self._backoff_s(self._cancelling.tries)
        self._wake_at = self._clock.monotonic() + limit_s * (0.5 + 0.5 * self._rng.random())

    def _take_cancelled(self, answer: m.Message | GpupoolError) -> None:
        if isinstance(answer, m.Done):
            assert self._cancelling is not None
            self.request = replace(self.request, id=self._cancelling.successor)
            if self._clock.monotonic() >= self._deadline and not self._choices:
                self._wait()
            elif self._choices:
                self._claim_next()
            else:
                self._ask()
        elif isinstance(answer, FATAL):
            self._fail(answer)
        else:
            self._cancel_later()

    # --- waiting ---------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for a hint or the end of the back-off, because no GPU is free now."""
        self.phase = Phase.WAITING
        now = self._clock.monotonic()
        if now >= self._deadline:
            self._fail_waiting()
            return
        self._outbox.tell(
            self._round.waiting_text(self.request, connected=bool(self._servers.connected))
        )
        short = self._round.of_claim or self._round.offers
        if short or RefusalKind.BUSY in self._round.kinds():
            self._keep_place(now)
        delay_s = self._backoff_s(self._round_count) * self._rng.random()
        if self._was_hinted:
            # The hint came while this round was under way, and may be the only one.
            delay_s = min(delay_s, self._settings.backoff_base_s)
        self._wake_at = min(now + delay_s, self._deadline)

    def _keep_place(self, now: float) -> None:
        """Record or renew the waiting entry, with one server."""
        if now - self._renewed_at < self._settings.renew_every_s or not self._servers.connected:
            return
        self._renewed_at = now
        server = self._servers.connected[int(self._rng.random() * len(self._servers.connected))]
        entry = m.AwaitGpus(self.request, self._outbox.told[:200])
        self._outbox.call(server, entry, self._settings.ask_timeout_s)

    def _backoff_s(self, tries: int) -> float:
        base_s, max_s = self._settings.backoff_base_s, self._settings.backoff_max_s
        return min(max_s, base_s * 2 ** min(max(tries - 1, 0), 20))

    def _fail_waiting(self) -> None:
        """Give up because the time to wait is over."""
        error = self._round.final_error(self.request, self._wait_s)
        if isinstance(error, NotNowError):
            self._give_place_back()
        self._fail(error)

    def _give_place_back(self) -> None:
        if self._renewed_at > float("-inf") and self._servers.connected:
            cancel = m.Cancel(self.request.id, "waited long enough")
            self._outbox.call(self._servers.connected[0], cancel, self._settings.cancel_timeout_s)

    # --- ends ------------------------------------------------------------------------------------

    def _renew_request(self) -> None:
        self.request = replace(self.request, id=RequestId(self._rng.randbytes(16)))
        self._renewed_at = float("-inf")

    def _fail(self, error: GpupoolError) -> None:
        choice = self._choice if self.phase is Phase.CANCELLING else None
        unsettled = choice.server if choice is not None else None
        self.phase = Phase.DONE
        self._wake_at = float("inf")
        self._outbox.actions.append(Failed(error, unsettled))
