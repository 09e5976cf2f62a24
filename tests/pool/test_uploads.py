"""Documents in parts."""

from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import PoolState, Staged
from gpupool.pool.transitions.uploads import (
    PART_SIZE_MAX,
    STAGED_LAPSE_MS,
    lapse_staged,
    parts_of,
)


def test_a_document_is_its_parts_and_nothing_is_one_part() -> None:
    assert parts_of(b"") == [b""]
    assert parts_of(b"x" * PART_SIZE_MAX) == [b"x" * PART_SIZE_MAX]
    assert parts_of(b"x" * PART_SIZE_MAX + b"y") == [b"x" * PART_SIZE_MAX, b"y"]


def test_an_upload_that_was_given_up_goes_though_another_goes_on() -> None:
    staged = {b"old": Staged({0: b"x"}, Milliseconds(0)), b"new": Staged({}, Milliseconds(1))}
    state = PoolState(now=Milliseconds(STAGED_LAPSE_MS + 1), staged=staged)
    assert set(lapse_staged(state).staged) == {b"new"}
    earlier = PoolState(now=Milliseconds(STAGED_LAPSE_MS), staged=staged)
    assert set(lapse_staged(earlier).staged) == {b"old", b"new"}
