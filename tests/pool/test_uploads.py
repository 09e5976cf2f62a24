"""Documents in parts."""

from hashlib import sha256

import pytest

from gpupool.pool.model.commands import StagePart
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState, Staged
from gpupool.pool.transitions.uploads import (
    PART_COUNT_MAX,
    PART_SIZE_MAX,
    STAGED_LAPSE_MS,
    UPLOAD_COUNT_MAX,
    assemble,
    lapse_staged,
    parts_of,
    stage_part,
)

UPLOAD = bytes(16)


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


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (StagePart(bytes(15), 0, b""), "malformed part of an upload"),
        (StagePart(bytes(17), 0, b""), "malformed part of an upload"),
        (StagePart(UPLOAD, -1, b""), "malformed part of an upload"),
        (StagePart(UPLOAD, PART_COUNT_MAX, b""), "malformed part of an upload"),
        (StagePart(UPLOAD, 0, bytes(PART_SIZE_MAX + 1)), "a part has at most 12288 bytes"),
    ],
)
def test_a_part_that_breaks_a_bound_is_refused_and_not_kept(part: StagePart, why: str) -> None:
    before = PoolState()
    state, result = stage_part(before, part)
    assert state is before
    assert (result.ok, result.kind, result.why) == (False, "invalid", why)


def test_a_part_at_its_bounds_is_kept() -> None:
    for number in (0, PART_COUNT_MAX - 1):
        data = bytes(PART_SIZE_MAX)
        state, result = stage_part(PoolState(), StagePart(UPLOAD, number, data))
        assert result.ok
        assert state.staged == {UPLOAD: Staged({number: data}, state.now)}


def test_so_many_uploads_are_kept_at_a_time_and_those_go_on() -> None:
    state = PoolState()
    for number in range(UPLOAD_COUNT_MAX):
        state, result = stage_part(state, StagePart(bytes([number]) * 16, 0, b"x"))
        assert result.ok
    full = state
    state, result = stage_part(full, StagePart(b"z" * 16, 0, b"x"))
    assert state is full
    assert (result.ok, result.kind) == (False, "busy")
    assert result.why == "other large documents are being sent; try again in a minute"
    state, result = stage_part(full, StagePart(bytes(16), 1, b"y"))
    assert result.ok
    assert state.staged[bytes(16)].parts == {0: b"x", 1: b"y"}


MISSING = "some of its parts are missing; send it again"
OTHER = "its parts do not have the SHA-256 that was announced"


@pytest.mark.parametrize(
    ("count", "digest", "kind", "why"),
    [
        (2, sha256(b"xy").digest(), "", ""),
        (2, sha256(b"yx").digest(), "invalid", OTHER),
        (2, b"", "invalid", OTHER),
        (1, sha256(b"x").digest(), "conflict", MISSING),
        (3, sha256(b"xy").digest(), "conflict", MISSING),
        (0, sha256(b"").digest(), "conflict", MISSING),
    ],
)
def test_an_upload_is_whole_or_refused_and_forgotten_either_way(
    count: int, digest: bytes, kind: str, why: str
) -> None:
    staged = {
        UPLOAD: Staged({1: b"y", 0: b"x"}, Milliseconds(0)),
        b"o": Staged({}, Milliseconds(0)),
    }
    state, found = assemble(PoolState(staged=staged), UPLOAD, count, digest)
    assert state.staged.keys() == {b"o"}
    if why:
        assert isinstance(found, Result)
        assert (found.ok, found.kind, found.why) == (False, kind, why)
    else:
        assert found == b"xy"


@pytest.mark.parametrize(("count", "whole"), [(PART_COUNT_MAX, True), (PART_COUNT_MAX + 1, False)])
def test_an_upload_has_at_most_so_many_parts(count: int, whole: bool) -> None:
    staged = {UPLOAD: Staged(dict.fromkeys(range(count), b"x"), Milliseconds(0))}
    digest = sha256(b"x" * count).digest()
    _, found = assemble(PoolState(staged=staged), UPLOAD, count, digest)
    assert (found == b"x" * count) == whole


def test_an_upload_may_be_one_part() -> None:
    staged = {UPLOAD: Staged({0: b"x"}, Milliseconds(0))}
    assert assemble(PoolState(staged=staged), UPLOAD, 1, sha256(b"x").digest())[1] == b"x"


def test_an_empty_upload_has_no_parts() -> None:
    staged = {UPLOAD: Staged({}, Milliseconds(0))}
    _, found = assemble(PoolState(staged=staged), UPLOAD, 0, sha256(b"").digest())
    assert isinstance(found, Result)
    assert found.why == MISSING


def test_an_upload_that_is_not_there_is_sent_again() -> None:
    before = PoolState()
    state, found = assemble(before, UPLOAD, 1, sha256(b"x").digest())
    assert state is before
    assert isinstance(found, Result)
    why = "its parts are not there any more; send it again"
    assert (found.ok, found.kind, found.why) == (False, "conflict", why)


@pytest.mark.parametrize("count", [1, 2])
def test_uploads_that_were_all_given_up_go_and_such_as_go_on_stay(count: int) -> None:
    staged = {bytes([each]) * 16: Staged({}, Milliseconds(0)) for each in range(count)}
    late = PoolState(now=Milliseconds(STAGED_LAPSE_MS + 1), staged=staged)
    assert lapse_staged(late).staged == {}
    early = PoolState(now=Milliseconds(STAGED_LAPSE_MS), staged=staged)
    assert lapse_staged(early) is early


@pytest.mark.parametrize(("pause_ms", "kept"), [(60_000, True), (60_001, False)])
def test_an_upload_lapses_after_a_minute(pause_ms: int, kept: bool) -> None:
    staged = {UPLOAD: Staged({}, Milliseconds(5))}
    state = PoolState(now=Milliseconds(5 + pause_ms), staged=staged)
    assert bool(lapse_staged(state).staged) == kept


def test_a_document_is_sent_in_512_parts_of_12_kib_at_most_four_at_a_time() -> None:
    assert len(parts_of(bytes(512 * 12 * 1024))) == 512
    for number, ok in ((511, True), (512, False)):
        assert stage_part(PoolState(), StagePart(UPLOAD, number, b"x"))[1].ok == ok
    state, taken = PoolState(), list[bool]()
    for number in range(5):
        state, result = stage_part(state, StagePart(bytes([number]) * 16, 0, b"x"))
        taken.append(result.ok)
    assert taken == [True] * 4 + [False]
