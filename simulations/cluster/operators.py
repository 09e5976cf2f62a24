"""Operators of the pool: they create it, admit servers, and revoke, drain, end and replace."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from random import Random

from gpupool.pool.model.forgetting import SALT_SIZE
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.pool.transitions.authorities import fingerprint_of
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.remoting.protocol import messages as m
from gpupool.simulations.cluster.caller import Caller
from gpupool.simulations.cluster.client_connections import Credentials
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.kernel.ca_files import FIRST_CA, CaFiles
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.workload.drawn_policies import draw_bulk, draw_policy

UNDRAIN_AGAIN_S = 1.0
"""Seconds until an operator comes back to a GPU with another order under way."""

JOIN_AGAIN_S = 1.0
"""Until ``gpupool join`` is repeated, when the pool was busy."""

FORGET_AGAIN_S = 0.05
"""Until an operator looks again whether a user has nothing left in the pool."""

Place = tuple[ServerId, GpuId]

TOKEN_VALID_S = 30 * 86400.0
"""A leader with a clock that is ahead lets all tokens expire, until an operator sets the time."""

SERVER_TOKEN_VALID_S = 9 * 365 * 86400.0
"""Longer than any clock in a simulation can be wrong: a joining server is not given another token,
and the pool's time is that of one clock while it has one server (seed 10180715)."""


def draw_credentials(random: Random, user: str) -> Credentials:
    """Return a new token with its secret."""
    return Credentials(TokenId(random.randbytes(6).hex()), random.randbytes(32), user)


class Operator:
    """One operator, which repeats every order until it is confirmed."""

    def __init__(
        self,
        environment: Environment,
        *,
        admin: Credentials,
        random: Random,
        targets: Callable[[], list[str]],
    ) -> None:
        self._environment = environment
        self._random = random
        self._draining: set[ServerId | Place] = set()
        self.process = Process(environment.scheduler, "operator")
        self._caller = Caller(
            self.process, environment.network, hello=admin.hello("operator"), targets=targets
        )

    def create_token(
        self, kind: TokenKind, user: str, created: Callable[[Credentials], None]
    ) -> None:
        """Make a token; ``created`` gets it once the pool has it."""
        credentials = draw_credentials(self._random, user)
        order = m.CreateToken(
            token=credentials.token,
            kind=kind,
            user=user,
            secret_hash=sha256(credentials.secret).digest(),
            valid_s=SERVER_TOKEN_VALID_S if kind is TokenKind.SERVER else TOKEN_VALID_S,
        )
        self._order(order, lambda _at: created(credentials))

    def revoke(self, token: TokenId) -> None:
        """Revoke a token."""
        policy = self._environment.checkers.policy
        self._order(m.RevokeToken(token), lambda at: policy.revoked(token, at))

    def drain(self, server: ServerId, for_s: float) -> None:
        """Stop granting on a server for a while, unless it is being drained already."""
        policy = self._environment.checkers.policy
        if server in self._draining:
            return
        self._draining.add(server)

        def drained(at: float) -> None:
            policy.drained(server, at)
            self.process.after(for_s, partial(self._undrain, server))

        refused = partial(self._draining.discard, server)
        order = m.DrainServer(server, "maintenance", self._random.randbytes(16))
        self._order(order, drained, refused)

    def _undrain(self, server: ServerId) -> None:
        self._environment.checkers.policy.drained(server, None)
        order = m.DrainServer(server, None, self._random.randbytes(16))
        undrained = partial(self._draining.discard, server)
        self._order(order, lambda _at: undrained(), undrained)

    def drain_gpu(self, server: ServerId, gpu: GpuId, for_s: float) -> None:
        """Stop granting on one GPU for a while, unless it is being drained already."""
        place = server, gpu
        if place in self._draining:
            return
        self._draining.add(place)

        def drained(at: float) -> None:
            self._environment.checkers.policy.drained(place, at)
            self.process.after(for_s, partial(self._order_undrain, place))

        refused = partial(self._draining.discard, place)
        order = m.DrainGpu(server, gpu, "maintenance", self._random.randbytes(16))
        self._order(order, drained, refused)

    def undrain_gpu(self, server: ServerId, gpu: GpuId) -> None:
        """Resume granting on a GPU that is drained for any reason."""
        place = server, gpu
        if place in self._draining:
            self.process.after(UNDRAIN_AGAIN_S, partial(self.undrain_gpu, server, gpu))
            return
        self._draining.add(place)
        self._order_undrain(place)

    def _order_undrain(self, place: Place) -> None:
        self._environment.checkers.policy.drained(place, None)
        order = m.DrainGpu(*place, None, self._random.randbytes(16))
        undrained = partial(self._draining.discard, place)
        self._order(order, lambda _at: undrained(), undrained)

    def relabel(self, server: ServerId, labels: dict[str, str]) -> None:
        """Set labels of a server."""
        self._order(m.LabelServer(server, labels, (), self._random.randbytes(16)), lambda _at: None)

    def put_policy(self, text: str, base: int, done: Callable[[], None]) -> None:
        """Put a policy in force that is made from version ``base``; ``done`` follows in any case.

        That version may be older than the one in force, when an earlier order was lost: then the
        pool refuses.
        """
        stays = self._environment.checkers.policy.put

        def in_force(_at: float) -> None:
            stays(base + 1)
            done()

        self._order(m.PutPolicy(pack_text(text), base), in_force, done)

    def end_lease(self, lease: LeaseId) -> None:
        """End a lease by order."""
        self._environment.checkers.causes.ordered.add(lease)
        self._order(m.EndLease(lease, "by order"), lambda _at: None)

    def suspend(self, lease: LeaseId, for_s: float) -> None:
        """Suspend a lease, and resume it after ``for_s`` seconds."""

        def suspended(_at: float) -> None:
            self.process.after(for_s, resume)

        def resume() -> None:
            order = m.ResumeLease(lease, self._random.randbytes(16))
            self._order(order, lambda _at: None)

        order = m.SuspendLease(lease, "to make room", self._random.randbytes(16))
        self._order(order, suspended)

    def move(self, lease: LeaseId, server: ServerId, to: tuple[GpuId, ...]) -> None:
        """Move a lease to other GPUs of a server; the pool chooses them if ``to`` is empty."""
        number = self._random.randbytes(16)
        self._order(m.MoveLease(lease, server, (), to, number), lambda _at: None)

    def relocate(self, lease: LeaseId, server: ServerId) -> None:
        """Move a lease to another server."""
        order = m.RelocateLease(lease, server, self._random.randbytes(16))
        self._order(order, lambda _at: None)

    def silence(self, check: str, server: str, for_s: float) -> None:
        """Silence a check for so long, on one server or on all; 0: no more."""
        reason, number = "known" if for_s else None, self._random.randbytes(16)
        self._order(m.SetSilence(check, server, "", reason, for_s, number), lambda _at: None)

    def forget_user(self, user: str, patience_s: float) -> None:
        """Order the accounts to forget a user; wait up to ``patience_s`` for its leases to end."""
        state = self._environment.checkers.logs.state
        held = [*state.leases.values(), *state.waiting.values()]
        if patience_s > 0 and any(each.user == user for each in held):
            later = partial(self.forget_user, user, patience_s - FORGET_AGAIN_S)
            self.process.after(FORGET_AGAIN_S, later)
            return
        salt = self._random.randbytes(SALT_SIZE)
        self._environment.checkers.forgotten.ordered(user, salt)
        self._order(m.ForgetUser(user, salt), lambda _at: None)

    def back_up(self) -> None:
        """Order a backup, which the table takes note of."""
        self._order(m.GetBackup(), lambda _at: None)

    def set_clock(self) -> None:
        """Set the table's time to where the voters' clocks are."""
        self._order(m.SetClock(), lambda _at: None)

    def rotate_ca(self) -> None:
        """Exchange the CA that signs for another one."""
        known = self._environment.checkers.logs.state.authorities or (FIRST_CA,)
        self._order(m.RotateCa(fingerprint_of(known[-1])), lambda _at: None)

    def retire_ca(self) -> None:
        """Trust the older of two CAs no more."""
        known = self._environment.checkers.logs.state.authorities
        if len(known) > 1:
            self._order(m.RetireCa(fingerprint_of(known[0]), False), lambda _at: None)

    def remove(self, server: ServerId, removed: Callable[[bool], None]) -> None:
        """Take a server out of the pool for good; ``removed`` gets whether the pool agreed."""
        self._order(
            m.RemoveServer(server),
            lambda _at: removed(True),
            lambda: removed(False),
        )

    def _order(
        self,
        order: m.Call,
        done: Callable[[float], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Give an order; ``done`` gets the instant of its confirmation."""
        trace = self._environment.trace
        trace.note("operator", "orders", describe(order))

        def answered(answer: m.Message, at: float) -> None:
            if isinstance(answer, m.Done | m.BackupIs):
                trace.note("operator", "confirmed", describe(order))
                done(at)
            else:
                trace.note("operator", "refused", f"{describe(order)}: {answer}")
                refused()

        self._caller.call(order, answered)


class PolicyWriter:
    """A writer that puts one policy after the other in force."""

    def __init__(self, environment: Environment, operator: Operator, random: Random) -> None:
        self._environment = environment
        self._operator = operator
        self._random = random
        self._numbers = itertools.count(1)

    def put_later(self) -> None:
        """Put a policy in force, and after a while another one."""
        environment = self._environment
        delay_s = environment.options.policy_s * self._random.expovariate(1.0)
        environment.scheduler.after(delay_s, self._put)

    def _put(self) -> None:
        environment = self._environment
        state, options = environment.checkers.logs.state, environment.options
        number = next(self._numbers)
        random = environment.scheduler.random(f"policy/{number}")
        text = draw_policy(random, options, state.now)
        # No two documents are the same, so that each is a version of its own.
        text += f"# {number}\n"
        environment.trace.note("operator", "policy", " ".join(text.split()))
        text += draw_bulk(random, options.bulk_kib)
        self._operator.put_policy(text, state.policy.version, self.put_later)


class Joiner:
    """``gpupool join`` on one machine, until the pool has let its server in."""

    def __init__(
        self,
        environment: Environment,
        machine: str,
        server: ServerId,
        *,
        credentials: Credentials,
        targets: Callable[[], list[str]],
        joined: Callable[[list[ServerId]], None],
    ) -> None:
        self._joined = joined
        self._environment = environment
        self._machine = machine
        self.process = Process(environment.scheduler, machine)
        caller = Caller(
            self.process, environment.network, hello=credentials.hello(machine), targets=targets
        )
        self._caller = caller
        name = f"{machine}-{server[:4]}"
        self._order = m.JoinPool(
            server, name, self._environment.machines[machine].address, witness=False, csr_pem=b"csr"
        )
        self._ask()

    def _ask(self) -> None:
        self._caller.call(self._order, self._answered)

    def _answered(self, answer: m.Message, at: float) -> None:
        if isinstance(answer, m.Joined):
            self.process.kill()
            ca, keys = answer.ca_pem, {answer.ca_key_pem} if answer.ca_key_pem else set[bytes]()
            self._environment.machines[self._machine].authorities = CaFiles((ca,), ca, ca, keys)
            self._joined([member.server for member in answer.members])
        else:
            self._environment.trace.note(self._machine, "not-joined", f"{answer}")
            if isinstance(answer, m.Refused) and answer.code == "busy":
                self.process.after(JOIN_AGAIN_S, self._ask)  # as its hint says (seed 9067)
            elif isinstance(answer, m.Refused) and "named" in answer.why:
                # Its former self has that name (seed 10168658).
                self._order = replace(self._order, name=f"{self._machine}-{self._order.server}")
                self._ask()


def describe(order: m.Call) -> str:
    """Return an order as a few words."""
    match order:
        case m.CreateToken():
            return f"token for {order.user}"
        case m.RenewToken():
            return f"renew {order.token}"
        case m.RevokeToken():
            return f"revoke {order.token}"
        case m.DrainServer():
            return f"{'drain' if order.reason else 'undrain'} {order.server}"
        case m.DrainGpu():
            return f"{'drain' if order.reason else 'undrain'} {order.gpu} of {order.server}"
        case m.LabelServer():
            return f"label {order.server} {order.labels}"
        case m.PutPolicy():
            return f"policy after version {order.base}"
        case m.EndLease():
            return f"end lease {order.lease}"
        case m.SuspendLease() | m.ResumeLease():
            return f"{type(order).__name__} {order.lease}"
        case m.MoveLease():
            return f"move lease {order.lease} to {order.to or 'any'} of {order.server}"
        case m.RelocateLease():
            return f"move lease {order.lease} to {order.server}"
        case m.RemoveServer():
            return f"remove {order.server}"
        case m.SetSilence():
            what = f"silence of {order.of} on {order.server or 'all'}"
            return f"{what} for {order.for_s:.2f} s" if order.reason else f"no {what}"
        case m.ForgetUser():
            return f"forget {order.user}"
        case _:
            return type(order).__name__
