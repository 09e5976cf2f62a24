"""A pool in virtual time: tasks go through its own offers, choices, ``apply`` and waiting rules.

Nothing here decides where a task goes. ``make_offer`` says what each server has, ``rank`` which of
it a client takes, and ``apply`` grants it or refuses. What a real pool does between machines takes
no time here: a request is answered at once, and each release is followed by the turns of those who
wait, the longest waiting first. So a wait that is found is one for GPUs alone.

Most servers of a large pool are in the same condition, and then differ for a client by their ids
only. One of each condition is asked, that with the lowest id, which the order of choices prefers.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpupool.pool.model.commands import Command, EndLease, Envelope, FreeLease, Grant, Tick, Wait
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import (
    WAITING_COUNT_MAX,
    Gpu,
    PoolState,
    Request,
    Server,
    ServerStatus,
    Token,
    TokenKind,
    Waiting,
    with_changes,
)
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.scheduling.fairness import reserved_for_others
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.scheduling.placement import make_offer, may_have_room
from gpupool.pool.scheduling.ranking import rank
from gpupool.pool.transitions.apply import apply

Shape = tuple[int, float, int]
"""How many GPUs, and the share or the bytes of each."""

BEGIN_MS = 1_000_000
FAR_MS = Milliseconds(2**62)
GPU_MEMORY = 80 << 30
"""Of a GPU of the pool, where a trace knows its requests as shares."""

LOOK_EVERY = 256
"""Events between two looks at whether the goal is missed already."""


@dataclass(frozen=True, slots=True)
class Task:
    """A request for GPUs for a while, perhaps several times with pauses between."""

    submit_s: float
    count: int
    fraction: float  # of each GPU; 0 when ``memory`` is given
    memory: int  # bytes on each GPU
    holds: tuple[
        tuple[float, float], ...
    ]  # seconds that it holds, then seconds until it asks again
    user: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The servers of a simulated pool: all alike, but the last one has the remainder."""

    gpu_count: int
    per_server: int = 8
    gpu_memory: int = GPU_MEMORY

    def servers(self) -> dict[ServerId, Server]:
        """Return its servers by id."""
        made: dict[ServerId, Server] = {}
        for number in range(-(-self.gpu_count // self.per_server)):
            server = ServerId(f"{number:012x}")
            width = min(self.per_server, self.gpu_count - number * self.per_server)
            gpus = [
                Gpu(GpuId(f"GPU-{number}-{index}"), index, "GPU", self.gpu_memory)
                for index in range(width)
            ]
            made[server] = Server(
                id=server,
                name=f"server-{number}",
                address="",
                voter=False,
                status=ServerStatus.UP,
                formats=VERSION,
                incarnation=Incarnation(1),
                gpus={gpu.id: gpu for gpu in gpus},
            )
        return made


@dataclass(slots=True)
class Outcome:
    """Outcome of the tasks on one fleet."""

    gpu_count: int
    waits_s: list[float] = field(default_factory=list[float])  # one for each grant
    refused: int = 0  # requests that the fleet could never serve
    held_gpu_s: float = 0.0  # shares of GPUs times seconds
    last_s: float = 0.0  # when the last one gave its GPUs back, from the beginning
    complete: bool = True  # or given up, because the goal could not be met any more

    def wait_at(self, share: float) -> float:
        """Return the wait that this share of all requests does not exceed."""
        return percentile(self.waits_s, share)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all does not exceed."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


@dataclass(slots=True)
class _Asking:
    """A request of a task that has no GPUs yet."""

    task: Task
    at: int  # which of its holds
    request: Request
    since_ms: int


@dataclass(slots=True)
class _Books:
    """Servers by their condition: of those in the same one, the lowest id is asked."""

    by_condition: dict[tuple[int, ...], list[ServerId]]
    condition: dict[ServerId, tuple[int, ...]]

    @staticmethod
    def of(servers: Iterable[Server]) -> "_Books":
        books = _Books({}, {})
        for server in servers:
            books.update(server)
        return books

    def update(self, server: Server) -> None:
        """Record the memory granted on a server now."""
        now = tuple(gpu.memory_granted for gpu in server.gpus.values())
        was = self.condition.get(server.id)
        if was == now:
            return
        if was is not None:
            alike = self.by_condition[was]
            del alike[bisect_left(alike, server.id)]
            if not alike:
                del self.by_condition[was]
        insort(self.by_condition.setdefault(now, []), server.id)
        self.condition[server.id] = now


class VirtualPool:
    """One fleet, and the tasks that it serves."""

    def __init__(self, fleet: Fleet, *, strict: bool = False) -> None:
        """Make an empty pool.

        Args:
            fleet: its servers.
            strict: nobody overtakes: only the request that waits longest is tried. The pool is not
                like that; it is for comparison.
        """
        self.strict = strict
        self.fleet = fleet
        servers = fleet.servers()
        self._state = PoolState(cluster_id="replay", name="replay", servers=PersistentMap(servers))
        self._books = _Books.of(servers.values())
        self._tokens: dict[str, TokenId] = {}
        self._index = 0
        self._now_ms = BEGIN_MS
        self._number = 0
        self._events: list[tuple[int, int, int, _Asking | LeaseId]] = []
        self._waiting: dict[RequestId, _Asking] = {}
        self._hopeless: set[Shape] = set()  # shapes without room, as things are
        self._possible: set[Shape] = set()  # of shapes that the fleet could serve
        self._answers: dict[ServerId, dict[Shape, Offer | NoOffer]] = {}
        self._sizes: dict[LeaseId, tuple[float, _Asking]] = {}
        self.outcome = Outcome(fleet.gpu_count)

    def run(self, tasks: Sequence[Task], *, goal_s: float = -1.0, share: float = 0.95) -> Outcome:
        """Return the outcome of ``tasks``, which are sorted by the time of their submission.

        With a goal it ends as soon as more than the rest of ``share`` have waited longer.
        """
        first = tasks[0].submit_s if tasks else 0.0
        for task in tasks:
            at_ms = BEGIN_MS + round((task.submit_s - first) * 1000)
            self._ask(task, 0, at_ms)
        asked = sum(len(task.holds) for task in tasks)
        allowed = asked - max(0, -int(-share * asked // 1))
        events = self._events
        heapq.heapify(events)
        count = 0
        while events:
            self._now_ms = events[0][0]
            self._apply(Tick())  # offers go by the table's time, as grants do
            freed = False
            while events and events[0][0] == self._now_ms:
                what = heapq.heappop(events)[3]
                if isinstance(what, _Asking):
                    self._arrive(what, freed)
                    freed = False
                else:
                    self._release(what)
                    freed = True
            if freed:
                self._serve_waiting()
            count += 1
            if goal_s >= 0 and count % LOOK_EVERY == 0 and self._is_late(goal_s, allowed):
                self.outcome.complete = False
                break
        self.outcome.refused += len(self._waiting) if not events else 0
        self.outcome.last_s = (self._now_ms - BEGIN_MS) / 1000
        return self.outcome

    def _is_late(self, goal_s: float, allowed: int) -> bool:
        limit_ms = self._now_ms - goal_s * 1000
        late = sum(wait > goal_s for wait in self.outcome.waits_s)
        return late + sum(each.since_ms < limit_ms for each in self._waiting.values()) > allowed

    def _ask(self, task: Task, at: int, at_ms: int) -> None:
        self._number += 1
        request = Request(
            # In the order of arrival, by which the pool tells those of the same millisecond apart.
            id=RequestId(self._number.to_bytes(16, "big")),
            count=task.count,
            fraction=0.0 if task.memory else task.fraction,
            memory=task.memory,
            across=task.count > self.fleet.per_server,
        )
        event = (at_ms, 1, self._number, _Asking(task, at, request, at_ms))
        if at:
            heapq.heappush(self._events, event)
        else:
            self._events.append(event)

    def _arrive(self, asking: _Asking, freed: bool) -> None:
        if freed:
            self._serve_waiting()
        if not (self.strict and self._waiting) and self._grant(asking):
            return
        if asking.request.id not in self._waiting:
            if len(self._waiting) < WAITING_COUNT_MAX:
                self._apply(self._wait_command(asking))
                self._keep_for_ever(asking.request.id)
            self._waiting[asking.request.id] = asking

    def _wait_command(self, asking: _Asking) -> Wait:
        user = asking.task.user
        return Wait(asking.request, user, self._token(user), "busy")

    def _keep_for_ever(self, request: RequestId) -> None:
        # Real clients renew their entry every few seconds, which is all that would happen here.
        entry: Waiting | None = self._state.waiting.get(request)
        if entry is not None:
            waiting = self._state.waiting.set(request, replace(entry, renewed=FAR_MS))
            self._state = with_changes(self._state, waiting=waiting)

    def _serve_waiting(self) -> None:
        self._hopeless.clear()
        for asking in list(self._waiting.values()):
            if self._grant(asking):
                self._hopeless.clear()  # what was kept for it is kept no longer
            elif self.strict:
                return

    def _grant(self, asking: _Asking) -> bool:
        """Grant a request as the pool would; return whether it waits no more."""
        request, task = asking.request, asking.task
        shape = (request.count, request.fraction, request.memory)
        if shape in self._hopeless:
            return False
        offers, refusal = self._offers(request, task.user)
        if refusal is not None and refusal.kind == RefusalKind.NEVER.value:
            self.outcome.refused += 1
            self._waiting.pop(request.id, None)
            return True
        choices = rank(offers, request)
        if not choices:
            self._hopeless.add(shape)
            return False
        choice = choices[0]
        result = self._apply(
            Grant(
                request=request,
                user=task.user,
                token=self._token(task.user),
                ticket_hash=bytes(32),
                partitions=choice.partitions,
                incarnations=choice.incarnations,
            )
        )
        if not result.ok or result.lease is None:
            raise AssertionError(f"an offer was not granted: {result}")
        self._granted(asking, result.lease, sum(part.memory for part in choice.partitions))
        return True

    def _granted(self, asking: _Asking, lease: LeaseId, size: int) -> None:
        self._waiting.pop(asking.request.id, None)
        hold_s = asking.task.holds[asking.at][0]
        share = size / self.fleet.gpu_memory
        self.outcome.waits_s.append((self._now_ms - asking.since_ms) / 1000)
        self.outcome.held_gpu_s += share * hold_s
        self._sizes[lease] = (share, asking)
        for server in self._state.leases[lease].parts:
            self._changed(server)
        end_ms = self._now_ms + round(hold_s * 1000)
        self._number += 1
        heapq.heappush(self._events, (end_ms, 0, self._number, lease))

    def _changed(self, server: ServerId) -> None:
        self._books.update(self._state.servers[server])
        self._answers.pop(server, None)

    def _offers(self, request: Request, user: str) -> tuple[list[Offer], NoOffer | None]:
        """Return the offers of the servers that could be chosen, and a refusal of one of them."""
        state = self._state
        shape = (request.count, request.fraction, request.memory)
        roomy = [
            alike
            for alike in self._books.by_condition.values()
            if may_have_room(state.servers[alike[0]], request)
        ]
        if not roomy:
            if shape in self._possible:
                return [], None
            # Whether it could ever be served is the same for every server, and for all time.
            answer = make_offer(state, next(iter(state.servers.values())), request, user)
            if isinstance(answer, NoOffer) and answer.kind == RefusalKind.NEVER.value:
                return [], answer
            self._possible.add(shape)
            return [], None
        reserved = reserved_for_others(state, request.id, user)
        kept = {server for server, _ in reserved.gpus} if reserved is not None else set[ServerId]()
        offers: list[Offer] = []
        refusal: NoOffer | None = None
        for alike in roomy:
            for server in self._to_ask(alike, kept, across=request.across):
                known = state.servers[server]
                answer = self._answer(known, request, user, free=server not in kept)
                if isinstance(answer, Offer):
                    offers.append(answer)
                else:
                    refusal = answer
        return offers, refusal

    def _answer(
        self, server: Server, request: Request, user: str, *, free: bool
    ) -> Offer | NoOffer:
        """Return a server's answer; the cached one, while the server is unchanged.

        Nothing is remembered of servers whose GPUs are kept for who has waited longest.
        """
        if not free:
            return make_offer(self._state, server, request, user)
        shape = (request.count, request.fraction, request.memory)
        known = self._answers.setdefault(server.id, {})
        if shape not in known:
            known[shape] = make_offer(self._state, server, request, user)
        return known[shape]

    @staticmethod
    def _to_ask(alike: list[ServerId], kept: set[ServerId], *, across: bool) -> list[ServerId]:
        if across:
            return alike
        if not kept:
            return alike[:1]
        # A server of which GPUs are kept for somebody is in a condition of its own.
        free = next((each for each in alike if each not in kept), None)
        own = [each for each in alike if each in kept]
        return [*own, free] if free is not None else own

    def _release(self, lease: LeaseId) -> None:
        _, asking = self._sizes.pop(lease)
        parts = list(self._state.leases[lease].parts)
        self._apply(EndLease(lease, "released"))
        for server in parts:
            self._apply(FreeLease(lease, server, Incarnation(1)))
            self._changed(server)
        pause_s = asking.task.holds[asking.at][1]
        if asking.at + 1 < len(asking.task.holds):
            self._ask(asking.task, asking.at + 1, self._now_ms + round(pause_s * 1000))

    def _token(self, user: str) -> TokenId:
        known = self._tokens.get(user)
        if known is None:
            known = TokenId(f"{len(self._tokens):012x}")
            self._tokens[user] = known
            token = Token(known, TokenKind.USER, user, bytes(32), Milliseconds(0), FAR_MS)
            tokens = self._state.tokens | {known: token}
            self._state = with_changes(self._state, tokens=tokens)
        return known

    def _apply(self, command: Command) -> Result:
        self._index += 1
        at = Milliseconds(self._now_ms)
        self._state, result = apply(self._state, self._index, Envelope(command, at, at))
        return result
