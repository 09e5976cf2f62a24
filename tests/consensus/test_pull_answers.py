"""A voter that answers pulls, with followers that are played by the test."""

import pytest
from around_pulls import FIRST, Around, responder_of

from gpupool.consensus.protocol.raft_settings import WAITING_PULLS_MAX
from gpupool.pool.model.ids import ServerId


@pytest.mark.parametrize(("lag", "near"), [(0, True), (100, True), (101, False)])
@pytest.mark.parametrize("by", ["alive", "pull"])
def test_a_follower_has_caught_up_when_it_lacks_a_few_entries(
    lag: int, near: bool, by: str
) -> None:
    around = Around(commit_index=1000)
    responder = responder_of(around)
    if by == "alive":
        responder.on_alive(FIRST, {"applied_index": 1000 - lag})
    else:
        responder.on_pull(FIRST, {"next_index": 1001 - lag})
    assert responder.caught_up() == ({FIRST} if near else set())
    around.peers.remove(FIRST)
    assert responder.caught_up() == set()
    around.peers.add(FIRST)
    responder.forget(FIRST)
    assert responder.caught_up() == set()


def test_no_more_pulls_wait_than_may_and_those_that_wait_are_renewed() -> None:
    around = Around()
    responder = responder_of(around)
    names = [ServerId(f"s{number:04}") for number in range(WAITING_PULLS_MAX + 1)]
    for name in names:
        responder.on_pull(name, {"next_index": 10})
    assert not around.sent
    responder.on_pull(names[0], {"next_index": 10})
    assert around.taken("pulled") == [names[0]], "the one that waited"
    around.now += 0.5
    responder.answer()
    assert around.taken("pulled") == names[:-1]


@pytest.mark.parametrize(("next_index", "at_once"), [(9, True), (10, False), (11, False)])
def test_a_pull_waits_when_nothing_is_new(next_index: int, at_once: bool) -> None:
    around = Around()
    responder = responder_of(around)
    assert responder.due_at() == float("inf")
    responder.on_pull(FIRST, {"next_index": next_index})
    assert responder.due_at() == 100.5
    responder.answer()
    assert around.taken("pulled") == ([FIRST] if at_once else [])
    around.now = 100.4
    responder.answer()
    assert not around.sent
    around.now = 100.5
    responder.answer()
    assert around.taken("pulled") == ([] if at_once else [FIRST])


def test_a_pull_by_a_connection_that_is_gone_is_not_answered() -> None:
    around = Around()
    responder = responder_of(around)
    responder.on_pull(FIRST, {"next_index": 10})
    responder.disconnected(FIRST)
    around.now = 200.0
    responder.answer()
    assert not around.sent


class Snapshots:
    """Records the receivers of snapshots."""

    def __init__(self) -> None:
        self.to: list[ServerId] = []

    def send(self, peer: ServerId, *, leading: bool) -> None:
        assert not leading
        self.to.append(peer)


@pytest.mark.parametrize(
    ("next_index", "previous"), [(-5, None), (0, None), (5, None), (6, 5), (9, 8), (10, 9), (99, 9)]
)
def test_a_follower_whose_next_entry_is_gone_gets_a_snapshot(
    next_index: int, previous: int | None
) -> None:
    around, snapshots = Around(base_index=5), Snapshots()
    responder = responder_of(around, snapshots)
    responder.on_pull(FIRST, {"next_index": next_index})
    around.now += 1
    responder.answer()
    if previous is None:
        assert (snapshots.to, around.sent) == ([FIRST], [])
    else:
        [(peer, message)] = around.sent
        assert (snapshots.to, peer, message["prevLogIdx"]) == ([], FIRST, previous)
        assert (message["commit_index"], message["clock_ms"]) == (9, 0)
