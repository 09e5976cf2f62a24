"""A simulated program on its way to another server, as ``remoting.client.moving_lease`` has it.

Its client attaches the lease there, opens a session if the program has one, lets some time pass
for the state, and asks the old server. Where that does not answer, it asks the new one.
"""

from collections.abc import Callable
from random import Random

from gpupool.pool.errors import DeniedError, GpupoolError, LeaseLostError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol import messages as m
from gpupool.simulations.cluster.client_connections import ClientConnections
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.kernel.process import Process

STATE_S = 0.3
"""Mean time that the state of a program is under way."""

STAYS = 0.15
"""The share of programs with state that cannot be sent."""

TIMEOUT_S = 4.0
OPEN_TIMEOUT_S = 5.0
RETRY_S = 0.3
IN_DOUBT_S = 60.0


class ProgramMove:
    """One order, from the client's side."""

    def __init__(
        self,
        environment: Environment,
        process: Process,
        connections: ClientConnections,
        order: m.LeaseLeaving,
        source: ServerId,
        ticket: bytes,
        random: Random,
        over: Callable[["ProgramMove"], None],
    ) -> None:
        self.order, self.source = order, source
        self.gone = False
        self.decided = True
        """Whether it is known where the lease is."""
        self._environment, self._process, self._connections = environment, process, connections
        self._ticket, self._random, self._over = ticket, random, over
        self._until = 0.0

    def start(self) -> None:
        """Hold the lease by the new server as well."""
        attach = m.Attach(self.order.lease, self._ticket)
        self._connections.call(self.order.server, attach, TIMEOUT_S, self._attached)

    def _attached(self, answer: m.Message | GpupoolError) -> None:
        if not isinstance(answer, m.Done):
            self._stay(f"{answer}")
        elif self.order.session:
            opening = m.OpenSession(self.order.lease, "arrays", "simulated")
            self._connections.call(self.order.server, opening, OPEN_TIMEOUT_S, self._opened)
        else:
            self._ask()

    def _opened(self, answer: m.Message | GpupoolError) -> None:
        if not isinstance(answer, m.SessionOpened):
            self._stay(f"{answer}")
        elif self._random.random() < STAYS:
            self._stay("it has what cannot be sent")
        else:
            self._process.after(STATE_S * self._random.expovariate(1.0), self._ask)

    # --- where it goes on -------------------------------------------------------------------------

    def _ask(self) -> None:
        self.decided = False
        self._until = self._process.scheduler.now + IN_DOUBT_S
        self._connections.call(self.source, self._question(), TIMEOUT_S, self._answered)

    def _answered(self, answer: m.Message | GpupoolError) -> None:
        if not self._is_told(answer):
            self._ask_the_new_one()

    def _ask_the_new_one(self) -> None:
        target = self.order.server
        if not self._connections.has(target) or self._process.scheduler.now > self._until:
            self._over(self)  # in doubt, the program stays
            return
        self._connections.call(target, self._question(), TIMEOUT_S, self._answered_there)

    def _answered_there(self, answer: m.Message | GpupoolError) -> None:
        if not self._is_told(answer):
            self._process.after(RETRY_S, self._ask_the_new_one)

    def _question(self) -> m.GoOn:
        return m.GoOn(self.order.lease, self.order.number, self.order.server)

    def _is_told(self, answer: m.Message | GpupoolError) -> bool:
        """Take an answer; return whether it says where the lease is."""
        self.gone = isinstance(answer, m.Done)
        self.decided = self.gone or isinstance(answer, DeniedError | LeaseLostError)
        if self.decided:
            checkers = self._environment.checkers
            checkers.relocations.told(self.order, gone=self.gone, state=checkers.logs.state)
            self._over(self)
        return self.decided

    def _stay(self, why: str) -> None:
        stays = m.GoOn(self.order.lease, self.order.number, self.order.server, why)
        self._connections.call(self.source, stays, TIMEOUT_S, lambda _answer: None)
        self._over(self)
