"""The calls that show the pool and this server as they are now, and the updates of subscribers.

A view of a small pool is made at once. That of a large one takes 0.3 s, so it is made beside the
loop, in pieces (``MakeView``)::

    who asks ──────► waiting ──── no view is being made ────► making ──── view_made ────► answered
    who is due ────►    │                                        │
                        └── 2.5 s have passed, or it is gone ────┴──► refused, or forgotten

One view is being made at a time, for all that waited when it began. Those who ask meanwhile wait
for the next one, which has all that was committed before they asked. What never holds: that an
answer is older than its question, that a client gets updates out of order, or one after it has
ended its subscription.
"""

import time
from contextlib import closing
from dataclasses import dataclass

import trio

from gpupool.pool.clock_view import clock_view
from gpupool.pool.errors import NotNowError, UsageError
from gpupool.pool.fair_access import UserBound
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view_building import ViewSource
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.sessions import DOCTOR, SIGNER_OPEN, WORKERS_HAVE, WORKERS_LACK
from gpupool.remoting.protocol.view_encoding import (
    MadeView,
    ViewOrder,
    make_view,
    make_view_at_once,
)
from gpupool.remoting.server.actions import MakeView
from gpupool.remoting.server.service_context import Client, Handler, ServiceContext

PAUSE_S = 0.0005
"""Between two pieces: only one thread runs Python, and to sleep lets the loop have it."""


async def make_beside_the_loop(order: ViewOrder) -> MadeView:
    """Return the messages of a view; when cancelled, the thread ends after its present piece."""
    return await trio.to_thread.run_sync(_make, order)


def _make(order: ViewOrder) -> MadeView:
    with closing(make_view(order)) as steps:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            trio.from_thread.check_cancelled()
            time.sleep(PAUSE_S)


UPDATE_EVERY_MIN_S = 0.2
UPDATE_EVERY_MAX_S = 60.0
SUBSCRIPTION_BOUND = UserBound(user=32, token=24)
"""Each update is sent to each subscription."""

VIEW_COUNT_MAX, VIEW_BOUND, VIEW_TOTAL_MAX = 8, UserBound(user=64, token=48), 512
"""Questions for a view that may wait: of one connection, of one user or token, and of all."""
VIEW_TIMEOUT_S = 2.5
"""A question is refused after that: its client waits for 3 s, and can ask another server then."""
BUSY_HINT = "ask again soon"
MOVED = '; if it moved: "gpupool join HOST:PORT" there, with the address of another server'


def next_beat(now: float, every_s: float) -> float:
    """Return the next multiple of ``every_s``, but no earlier than half of it from now."""
    beat = (now // every_s + 1) * every_s
    return beat if beat - now > every_s / 2 else beat + every_s


@dataclass(eq=False, frozen=True, slots=True)
class _Asker:
    """A call that a view answers."""

    client: Client
    call: int
    until: float  # monotonic time at which it is refused


@dataclass(slots=True)
class _Making:
    """The view that is being made now."""

    askers: list[_Asker]
    due: list[Client]
    began: float  # monotonic time


class ViewService:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._subscribers: dict[int, Client] = {}
        self._askers: list[_Asker] = []
        self._due: dict[int, Client] = {}  # subscribers that wait for a view
        self._making: _Making | None = None
        self._took_s = 0.0  # the latest view that was made beside the loop

    def handlers(self) -> dict[type[m.Call], Handler]:
        """Return the handler of each call that is served here."""
        return {
            m.GetView: self._get_view,
            m.GetTelemetry: self._get_telemetry,
            m.Subscribe: self._subscribe,
            m.SubscribeTelemetry: self._subscribe,
        }

    def closed(self, client: Client) -> None:
        """Forget a client that is gone."""
        self._unsubscribe(client)
        for asker in self._asking():
            if asker.client is client:
                self._context.clients.end_call(client)
        self._askers = [each for each in self._askers if each.client is not client]
        if self._making is not None:
            mine = [each for each in self._making.askers if each.client is not client]
            self._making.askers = mine

    def wake_at(self) -> float:
        """Return when ``poll`` has to be called next."""
        beats = (client.update_at for client in self._subscribers.values())
        return min((*beats, *(each.until for each in self._asking())), default=float("inf"))

    def poll(self, now: float) -> None:
        """Refuse view calls that waited too long, and send the updates that are due."""
        self._refuse_late(now)
        due = [client for client in self._subscribers.values() if client.update_at <= now]
        if not due:
            return
        telemetry = self.telemetry()
        lean = m.TelemetryUpdate(telemetry)
        for client in due:
            # On beats that are common to all, so that what is shown is made and encoded once for
            # many. One that was missed is not made up for. Views take half of the time at most.
            every_s = client.update_every_s
            if client.wants_view:
                every_s = max(every_s, 2 * self._took_s)
                self._due[client.connection] = client
            else:
                self._context.send(client.connection, 0, lean)
            client.update_at = next_beat(now, every_s)
        self._make_next(telemetry)

    def made(self, made: MadeView) -> None:
        """Take the result of the ``MakeView``, and have the next view made if any is wanted."""
        assert self._making is not None, "one view is made at a time"
        self._took_s = self._context.clock.monotonic() - self._making.began
        self._hand_out(made)
        self._make_next()

    # --- views -----------------------------------------------------------------------------------

    def _get_view(self, client: Client, call: int, _message: m.GetView) -> None:
        asking = self._asking()
        has = VIEW_BOUND.reached(client.holder, (each.client.holder for each in asking))
        of_connection = sum(each.client is client for each in asking)
        if not has and of_connection >= VIEW_COUNT_MAX:
            has = f"this connection of {client.user} has {of_connection}"
        if has:
            text = f"{has} questions for the view that wait for an answer"
            raise NotNowError(text, hint=BUSY_HINT)
        if len(asking) >= VIEW_TOTAL_MAX:
            raise NotNowError("too many questions for the view wait", hint=BUSY_HINT)
        until = self._context.clock.monotonic() + VIEW_TIMEOUT_S
        self._askers.append(_Asker(client, call, until))
        self._make_next()

    def _asking(self) -> list[_Asker]:
        return [*(self._making.askers if self._making is not None else ()), *self._askers]

    def _refuse_late(self, now: float) -> None:
        late = [each for each in self._asking() if each.until <= now]
        if not late:
            return
        self._askers = [each for each in self._askers if each.until > now]
        if self._making is not None:
            self._making.askers = [each for each in self._making.askers if each.until > now]
        error = NotNowError("the view of the pool was not made in time", hint=BUSY_HINT)
        for each in late:
            self._context.answer(each.client, each.call, m.refused(error))

    def _make_next(self, telemetry: Telemetry | None = None) -> None:
        """Make the view for all that wait now, unless another one is being made."""
        if self._making is not None or not (self._askers or self._due):
            return
        context, askers, due = self._context, self._askers, list(self._due.values())
        self._askers, self._due = [], {}
        doctor = any(each.client.name == DOCTOR for each in askers)
        order = ViewOrder(
            self._source(),
            confinement=tuple(self._confinement()) if doctor else None,
            telemetry=(telemetry or self.telemetry()) if due else None,
        )
        self._making = _Making(askers, due, context.clock.monotonic())
        if order.source.row_count <= context.settings.view_rows_at_once:
            self._hand_out(make_view_at_once(order))
        else:
            context.actions.append(MakeView(order))

    def _hand_out(self, made: MadeView) -> None:
        making, self._making = self._making, None
        assert making is not None
        for each in making.askers:
            for_doctor = made.for_doctor if each.client.name == DOCTOR else None
            self._context.answer(each.client, each.call, for_doctor or made.view)
        for client in making.due:
            subscribed = self._subscribers.get(client.connection) is client
            if made.update is not None and subscribed and client.wants_view:
                self._context.send(client.connection, 0, made.update)

    def _source(self) -> ViewSource:
        """Return the inputs for a view of this moment."""
        context = self._context
        return ViewSource(
            context.state,
            context.consensus.health(),
            context.me.id,
            context.now_ms(),
            context.machine.violations,
            clock_view(context.state, context.table_clock.reading()),
            (*context.authorities.problems(), *(f"{s}{MOVED}" for s in context.silent_voters())),
        )

    def _confinement(self) -> list[str]:
        """Return the workers' confinement and the missing parts of it, for ``gpupool doctor``.

        They are said to nobody else: on many servers they are as they should be.
        """
        host = self._context.host
        holds = host.confinement()
        found = [] if self._context.authorities.signer_has_own_user else [SIGNER_OPEN]
        if holds:  # or no worker is warm yet
            found.append(WORKERS_HAVE + ", ".join(holds))
            found += [WORKERS_LACK + text for text in host.unconfined()]
        return found

    # --- measurements and subscriptions ----------------------------------------------------------

    def _get_telemetry(self, client: Client, call: int, _message: m.GetTelemetry) -> None:
        self._context.answer(client, call, m.TelemetryNow(self.telemetry()))

    def telemetry(self) -> Telemetry:
        """Return this server's own measurements."""
        context = self._context
        gpus, sessions = context.host.telemetry()
        return Telemetry(
            server=context.me.id,
            at=Milliseconds(context.clock.wall_ms()),
            gpus=gpus,
            sessions=sessions,
            loop_lag_s=context.me.measures.loop_lag_s,
            counters={
                "connections": len(context.clients.welcomed()),
                "waiting": len(context.wait_queue),
                "proposals": len(context.proposer),
                **context.me.measures.counters,
            },
            host=context.me.measures.host,
            consensus=context.me.measures.consensus,
            histograms=context.me.measures.histograms(),
            findings=context.me.checks.findings,
        )

    def _subscribe(
        self, client: Client, call: int, message: m.Subscribe | m.SubscribeTelemetry
    ) -> None:
        interval_s = message.interval_s
        if interval_s == 0:
            self._unsubscribe(client)
        elif interval_s > 0:
            held = (each.holder for each in self._subscribers.values())
            has = SUBSCRIPTION_BOUND.reached(client.holder, held)
            if has and client.connection not in self._subscribers:
                raise NotNowError(f"{has} subscriptions on this server")
            client.update_every_s = min(max(interval_s, UPDATE_EVERY_MIN_S), UPDATE_EVERY_MAX_S)
            client.update_at = self._context.clock.monotonic()
            client.wants_view = isinstance(message, m.Subscribe)
            self._subscribers[client.connection] = client
        else:
            raise UsageError("an interval is a positive number of seconds")
        self._context.answer(client, call, m.Done())

    def _unsubscribe(self, client: Client) -> None:
        self._subscribers.pop(client.connection, None)
        self._due.pop(client.connection, None)
