"""The checker of histories, on histories that are known to be good or bad."""

import itertools
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.pool.model.ids import GpuId, LeaseId, RequestId
from gpupool.simulations.checkers.history import History, Operation, check

Register = tuple[str, int]
REQUEST = RequestId(bytes(16))
GPU = GpuId("EMU-0")


def register(state: int, what: Register) -> int | None:
    """Step a register: ("w", v) writes, ("r", v) has read v."""
    kind, value = what
    if kind == "w":
        return value
    return state if state == value else None


def op(called_at: float, returned_at: float, kind: str, value: int) -> Operation[Register]:
    return Operation(called_at, returned_at, (kind, value))


GOOD = {
    "empty": [],
    "one after the other": [op(0, 1, "w", 1), op(2, 3, "r", 1)],
    "a read during a write may see either": [op(0, 9, "w", 1), op(1, 2, "r", 0), op(3, 4, "r", 1)],
    "overlapping writes in either order": [
        op(0, 5, "w", 1),
        op(0, 5, "w", 2),
        op(6, 7, "r", 1),
        op(8, 9, "r", 1),
    ],
    "a write without an answer took effect late": [
        op(0, inf, "w", 1),
        op(5, 6, "r", 0),
        op(7, 8, "r", 1),
    ],
    "a write without an answer never took effect": [op(0, inf, "w", 1), op(5, 6, "r", 0)],
}
BAD = {
    "a stale read": [op(0, 1, "w", 1), op(2, 3, "r", 0)],
    "a read from nowhere": [op(0, 1, "r", 7)],
    "back in time": [op(0, 9, "w", 1), op(1, 2, "r", 1), op(3, 4, "r", 0)],
    "two readers disagree about the order": [
        op(0, 9, "w", 1),
        op(0, 9, "w", 2),
        op(1, 2, "r", 1),
        op(3, 4, "r", 2),
        op(5, 6, "r", 1),
    ],
    "read before it was written": [op(0, 1, "r", 1), op(2, inf, "w", 1)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_history_is_accepted(name: str) -> None:
    assert check(GOOD[name], register, 0).linearizable is True


@pytest.mark.parametrize("name", BAD)
def test_bad_history_is_refused(name: str) -> None:
    assert check(BAD[name], register, 0).linearizable is False


def by_brute_force(operations: list[Operation[Register]]) -> bool:
    """Try every subset of the unknown operations in every order."""
    known = [o for o in operations if o.known]
    unknown = [o for o in operations if not o.known]
    for count in range(len(unknown) + 1):
        for extra in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *extra]):
                if _valid(order):
                    return True
    return False


def _valid(order: tuple[Operation[Register], ...]) -> bool:
    state = 0
    for position, operation in enumerate(order):
        if any(later.returned_at < operation.called_at for later in order[position + 1 :]):
            return False
        after = register(state, operation.what)
        if after is None:
            return False
        state = after
    return True


def lasting(at: int, length: float, kind: str, value: int) -> Operation[Register]:
    return op(at, at + length, kind, value)


operations = st.builds(
    lasting,
    st.integers(0, 6),
    st.sampled_from([0.5, 1.5, 3.5, inf]),
    st.sampled_from("wr"),
    st.integers(0, 2),
)


@given(st.lists(operations, max_size=5))
@settings(max_examples=examples(300), deadline=None)
def test_agrees_with_brute_force(history: list[Operation[Register]]) -> None:
    history = [o for o in history if o.known or o.what[0] == "w"]
    assert check(history, register, 0).linearizable is by_brute_force(history)


def test_gives_up_instead_of_searching_for_ever() -> None:
    history = [op(0, 100, "w", n) for n in range(12)] + [op(0, 100, "r", 99)]
    assert check(history, register, 0, steps_max=1000).linearizable is None


# --- what clients saw -----------------------------------------------------------------------------


def verdicts(history: History) -> dict[str, bool | None]:
    history.capacity[GPU] = 10
    return {name.split()[0]: verdict.linearizable for name, verdict in history.verdicts()}


def test_gpu_is_taken_once() -> None:
    history = History()
    history.granted(REQUEST, LeaseId(5), {GPU: 6}, 0.0, 1.0)
    history.granted(RequestId(bytes([1]) * 16), LeaseId(7), {GPU: 6}, 2.0, 3.0)
    assert verdicts(history)["GPU"] is False
    history.over(LeaseId(5), (GPU,), 1.5, 1.8)
    assert verdicts(history)["GPU"] is True


def test_gpu_shares_fit() -> None:
    history = History()
    history.granted(REQUEST, LeaseId(5), {GPU: 6}, 0.0, 1.0)
    history.granted(RequestId(bytes([1]) * 16), LeaseId(7), {GPU: 4}, 2.0, 3.0)
    assert verdicts(history) == {"GPU": True, "request": True}


def test_later_grant_needs_a_greater_id() -> None:
    history = History()
    history.granted(REQUEST, LeaseId(9), {GPU: 1}, 0.0, 1.0)
    history.granted(RequestId(bytes([1]) * 16), LeaseId(7), {GPU: 1}, 2.0, 3.0)
    assert verdicts(history)["GPU"] is False


def test_lease_that_the_pool_ended_counts_as_ended_then() -> None:
    history = History()
    history.granted(REQUEST, LeaseId(5), {GPU: 6}, 0.0, 1.0)
    history.ended_at[LeaseId(5)] = 1.5
    history.granted(RequestId(bytes([1]) * 16), LeaseId(7), {GPU: 6}, 2.0, 3.0)
    history.over(LeaseId(5), (GPU,), 4.0, inf)
    assert verdicts(history)["GPU"] is True


def test_cancelled_request_is_not_granted() -> None:
    history = History()
    history.unanswered(REQUEST, 0.0)
    history.cancelled(REQUEST, 1.0, 2.0)
    history.refused_for_good(REQUEST, 3.0, 4.0)
    assert verdicts(history)["request"] is True
    history.granted(REQUEST, LeaseId(9), {}, 5.0, 6.0)
    assert verdicts(history)["request"] is False


def test_request_has_one_lease() -> None:
    history = History()
    history.granted(REQUEST, LeaseId(5), {}, 0.0, 1.0)
    history.granted(REQUEST, LeaseId(5), {}, 2.0, 3.0)
    assert verdicts(history)["request"] is True
    history.granted(REQUEST, LeaseId(6), {}, 4.0, 5.0)
    assert verdicts(history)["request"] is False
