"""Notices of possible room to waiting requests, and room kept for one for a moment."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import A, B, Pool

from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.model.ids import RequestId, TokenId
from gpupool.pool.model.state import Request
from gpupool.remoting.server import wait_queue
from gpupool.remoting.server.wait_queue import FORGET_S, KEEP_S, WaitQueue


class Line:
    """A pool of two servers with two GPUs each, and the requests that wait at the first one."""

    def __init__(self) -> None:
        self.pool = Pool(gpu_count=2)
        self.wait_queue = WaitQueue()
        self.now = 0.0
        self.names: dict[RequestId, str] = {}

    def wait(self, name: str, request: Request) -> Request:
        self.now += 0.01
        self.names[request.id] = name
        self.wait_queue.add(len(self.names), request, self.now, Holder(name, TokenId(name)))
        return request

    def hints(self) -> list[str]:
        state = self.pool.state
        due = self.wait_queue.due(state, A, self.now, lambda: state)
        return [self.names[request] for _, request in due]

    def free_for(self, request: Request) -> int:
        """Return how many GPUs are shown to ``request`` as free."""
        server = self.pool.state.servers[A]
        shown = self.wait_queue.without_reserved(server, request.id, self.now)
        return sum(gpu.memory_free > 0 for gpu in shown.gpus.values())


def test_one_user_cannot_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_queue, "WAITER_BOUND", UserBound(user=3, token=2))
    line = Line()
    ada, adas_other = (Holder("ada", TokenId(token)) for token in ("one", "two"))
    asked = [line.pool.request() for _ in range(5)]

    def count_with(number: int, holder: Holder) -> int:
        line.wait_queue.add(number, asked[number], 0.0, holder)
        return len(line.wait_queue)

    assert [count_with(number, ada) for number in range(3)] == [1, 2, 2]
    assert [count_with(number, adas_other) for number in (2, 3)] == [3, 3]
    assert count_with(4, Holder("bob", TokenId("three"))) == 4
    line.wait_queue.discard(0, asked[0].id)
    assert count_with(3, ada) == 4


def on(server: str, request: Request) -> Request:
    return replace(request, servers=(server,))


def test_what_only_others_could_complete_is_kept_for_nobody() -> None:
    line = Line()
    pool = line.pool
    for server in (A, B):
        assert pool.do(pool.claim("cy", on(server, pool.request()))).ok
    line.wait("ada", replace(pool.request(3), across=True))
    bob = line.wait("bob", pool.request())
    # Two GPUs are free in all, so nobody may wait for ada, who needs three.
    assert line.hints() == ["bob"]
    assert line.free_for(bob) == 1


def test_a_part_is_kept_while_the_other_servers_have_the_rest() -> None:
    line = Line()
    pool = line.pool
    assert pool.do(pool.claim("cy", on(A, pool.request()))).ok
    ada = line.wait("ada", replace(pool.request(3), across=True))
    bob = line.wait("bob", pool.request())
    assert line.hints() == ["ada"]
    assert (line.free_for(ada), line.free_for(bob)) == (1, 0)


def test_who_does_not_follow_a_hint_loses_the_turn_to_the_next() -> None:
    line = Line()
    pool = line.pool
    assert pool.do(pool.claim("cy", on(A, pool.request()))).ok
    line.wait("ada", pool.request())
    line.wait("bob", pool.request())
    turns: list[list[str]] = []
    for _ in range(4):
        turns.append(line.hints())
        assert line.hints() == [], "one hint is enough"
        line.now = line.wait_queue.wake_at()
    assert turns == [["ada"], ["bob"], ["ada"], ["bob"]]
    assert line.now > 3 * KEEP_S


def test_a_request_that_asks_no_more_is_forgotten() -> None:
    line = Line()
    line.wait("ada", line.pool.request())
    assert line.hints() == ["ada"]
    line.now += FORGET_S + 0.1
    assert line.hints() == []
    assert len(line.wait_queue) == 0
