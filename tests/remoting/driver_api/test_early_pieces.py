"""Bytes of a graph's copies that go to the client before a host function of the graph."""

import tracemalloc
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import CudaError
from gpupool.remoting.driver_api.executor.graphs import early_pieces
from gpupool.remoting.driver_api.executor.graphs.early_pieces import (
    ANNOUNCED_MAX,
    NAMED,
    PAIRS_MAX,
    PENDING_MAX,
    EarlyPieces,
    Launch,
)
from gpupool.remoting.driver_api.executor.memory.staging_buffers import Buffer
from gpupool.remoting.driver_api.executor.sync_waiter import Download

NODES = (50, 51)
NUMBER = 7
"""Of the function of both nodes, and so of all executables."""


def download(number: int) -> Download:
    return Download(number, 0, cast("Buffer", None), 1)


def made(early: EarlyPieces, executable: int) -> list[int]:
    """Make an executable: copy 1 comes before the first node, copies 1 and 2 before the second."""
    early.announce(executable, [(NODES[0], 1), (NODES[1], 1), (NODES[1], 2)])
    early.keep(executable, early.announced(executable))
    names = {place: early.name(executable, place, NUMBER) for place in range(2)}
    early.use(executable, names)
    return list(names.values())


def launch(early: EarlyPieces, executable: int, first: int, *, launched: bool = True) -> Launch:
    """Launch it, with pieces of these two numbers."""
    found = early.begin(executable, 2)
    found.downloads += [(1, download(first)), (2, download(first + 1))]
    if launched:
        early.launched(executable)
    return found


def turn(early: EarlyPieces, name: int) -> list[int]:
    number, downloads = early.turn(name)
    assert number == NUMBER
    return [one.number for one in downloads]


def test_executables_with_the_same_functions_are_told_apart() -> None:
    early = EarlyPieces()
    one, other = made(early, 100), made(early, 101)
    launch(early, 100, 10)
    launch(early, 101, 20)
    launch(early, 100, 30)
    assert turn(early, other[0]) == [20]
    assert turn(early, one[0]) == [10]
    assert turn(early, one[1]) == [10, 11]  # whether the first has gone is the waiter's to know
    assert turn(early, one[0]) == [30]
    assert turn(early, other[1]) == [20, 21]


def test_a_launch_that_failed_calls_nothing() -> None:
    early = EarlyPieces()
    names = made(early, 100)
    launch(early, 100, 10, launched=False)
    assert early.end(100) == ()  # nor are there bytes of it
    launch(early, 100, 20)
    assert turn(early, names[0]) == [20]
    assert [one.number for one in early.end(100)] == [20, 21]
    assert turn(early, names[1]) == [20, 21]
    assert early.end(100) == ()


def test_an_executable_that_is_gone_calls_what_is_under_way() -> None:
    early = EarlyPieces()
    names = made(early, 100)
    launch(early, 100, 10)
    fresh = early.name(100, early.place(100, NODES[0]), NUMBER + 1)
    early.use(100, {0: fresh})
    early.forget(100)
    assert early.place(100, NODES[0]) == -1
    assert turn(early, names[0]) == [10]  # as it was launched
    assert turn(early, names[1]) == [10, 11]
    assert [early.turn(name) for name in (*names, fresh)] == [
        (name, ()) for name in (*names, fresh)
    ]
    with pytest.raises(KeyError):
        early.begin(100, 0)


def test_what_a_client_can_leave_there_is_bounded() -> None:
    early = EarlyPieces()
    for number in range(ANNOUNCED_MAX):
        early.announce(number, [])
    with pytest.raises(RemoteProtocolError):
        early.announce(ANNOUNCED_MAX, [])
    early = EarlyPieces()
    made(early, 100)
    early.begin(100, PENDING_MAX - 2)
    with pytest.raises(RemoteProtocolError):
        early.begin(100, 2)
    early.end(100)  # it was never launched
    early.begin(100, 2)
    with pytest.raises(RemoteProtocolError):
        early.announce(101, [(NODES[0], copy) for copy in range(PAIRS_MAX + 1)])


def test_launches_count_without_pieces_and_until_their_end_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_pieces, "PENDING_MAX", 10)
    for called in (False, True):
        early = EarlyPieces()
        names = made(early, 100)
        for _ in range(10):
            early.begin(100, 0)
            early.launched(100)
            for name in names if called else ():
                early.turn(name)
        with pytest.raises(RemoteProtocolError):
            early.begin(100, 0)
        early.forget(100)
        made(early, 101)
        if not called:
            with pytest.raises(RemoteProtocolError):
                early.begin(101, 0)
            continue
        for _ in range(20):
            early.begin(101, 9)
            early.end(101)


def test_waiting_launches_take_little_memory() -> None:
    early = EarlyPieces()
    early.announce(100, [(node, 0) for node in range(PAIRS_MAX)])
    early.keep(100, early.announced(100))
    early.use(100, {place: early.name(100, place, NUMBER) for place in range(PAIRS_MAX)})
    tracemalloc.start()
    for _ in range(1000):
        early.begin(100, 0)
    assert tracemalloc.get_traced_memory()[0] < 1 << 20
    tracemalloc.stop()


def test_host_nodes_of_all_executables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_pieces, "PAIRS_SUM_MAX", 7, raising=False)
    early = EarlyPieces()
    names = made(early, 100)
    launch(early, 100, 10)
    early.announce(101, [(NODES[0], 1)] * 20)  # one pair, and told anew
    made(early, 101)
    with pytest.raises(CudaError):
        made(early, 102)
    early.announced(102)
    early.end(100)
    early.forget(100)
    with pytest.raises(CudaError):
        made(early, 102)  # a launch is under way
    for name in names:
        early.turn(name)
    for _ in range(5):
        made(early, 102)
        early.forget(102)


def names_of(early: EarlyPieces) -> int:
    return len(early._names)  # pyright: ignore[reportPrivateUsage]


def test_replaced_names_go_when_the_launches_from_before_are_over() -> None:
    early = EarlyPieces()
    names = made(early, 100)
    launch(early, 100, 0)
    for first in range(2, 2000, 2):  # with one launch always under way
        fresh = early.name(100, 0, NUMBER)
        early.use(100, {0: fresh})
        launch(early, 100, first)
        assert turn(early, names[0]) == [first - 2]
        assert turn(early, names[1]) == [first - 2, first - 1]
        early.end(100)
        names[0] = fresh
        assert names_of(early) <= 4
    for _ in range(100):  # nothing has been launched with these
        early.use(100, {0: early.name(100, 0, NUMBER)})
    assert names_of(early) <= 4


def test_names_go_that_nothing_was_made_to_call() -> None:
    early = EarlyPieces()
    names = made(early, 100)
    for _ in range(100):
        early.drop([early.name(100, 0, NUMBER)])
    assert names_of(early) == 2
    launch(early, 100, 10)
    assert turn(early, names[0]) == [10]


@given(st.lists(st.tuples(st.sampled_from("ltteuf"), st.integers(0, 1), st.integers(0, 1))))
def test_each_launch_calls_each_function_once_and_nothing_is_left(
    steps: list[tuple[str, int, int]],
) -> None:
    """Launches, turns, ends, new names and failures in any order that CUDA can bring about."""
    early = EarlyPieces()
    names = {executable: made(early, executable) for executable in (0, 1)}
    # By executable: of each launch under way, its first number and the names it calls.
    running: dict[int, list[tuple[int, dict[int, int]]]] = {0: [], 1: []}
    open_: dict[int, int] = {0: 0, 1: 0}
    first = 1000
    for step, executable, place in steps:
        if step == "l":
            first += 2
            launch(early, executable, first)
            running[executable].append((first, dict(enumerate(names[executable]))))
            open_[executable] += 1
        elif step == "f" and not open_[executable]:
            launch(early, executable, 1, launched=False)
            assert early.end(executable) == ()
        elif step == "e" and open_[executable]:
            open_[executable] -= 1
            assert len(early.end(executable)) == 2
        elif step == "u":
            names[executable][place] = early.name(executable, place, NUMBER)
            early.use(executable, {place: names[executable][place]})
        elif step == "t" and running[executable] and place in running[executable][0][1]:
            start, calls = running[executable][0]
            assert turn(early, calls.pop(place)) == [start, start + 1][: place + 1]
            if not calls:
                running[executable].pop(0)
    for executable, left in running.items():
        early.forget(executable)
        for start, calls in left:
            for place, name in calls.items():
                assert turn(early, name) == [start, start + 1][: place + 1]
    assert all(early.turn(NAMED | at)[0] == NAMED | at for at in range(1000))
    assert names_of(early) == 0
    made(early, 2)
    early.begin(2, PENDING_MAX - 1)  # nothing is counted any more
