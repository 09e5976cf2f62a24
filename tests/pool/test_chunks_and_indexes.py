"""The chunks of maps and sorted sets, and the results of the table's indexes."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from gpupool.pool.model.ids import LeaseId, RequestId, ServerId
from gpupool.pool.model.tables import (
    CHUNK_SIZE,
    SMALL_SIZE,
    SPARE_CHUNKS,
    LeaseTable,
    PersistentMap,
    SortedSet,
    WaitingTable,
    sorted_set,
)

A, B, C = ServerId("a"), ServerId("b"), ServerId("c")


def sizes(persistent: PersistentMap[Any, Any]) -> list[int]:
    return [len(chunk) for chunk in persistent.chunks()]


def numbers(count: int) -> PersistentMap[int, int]:
    return PersistentMap({number: number for number in range(count)})


def test_the_bounds_of_chunks() -> None:
    assert (CHUNK_SIZE, SMALL_SIZE, SPARE_CHUNKS) == (64, 32, 32)


@pytest.mark.parametrize(
    ("count", "wanted"),
    [
        (0, [0]),
        (1, [1]),
        (CHUNK_SIZE, [CHUNK_SIZE]),
        (CHUNK_SIZE + 1, [CHUNK_SIZE, 1]),
        (2 * CHUNK_SIZE, [CHUNK_SIZE] * 2),
        (2 * CHUNK_SIZE + 1, [CHUNK_SIZE, CHUNK_SIZE, 1]),
    ],
)
def test_a_chunk_is_full_before_the_next_one_begins(count: int, wanted: list[int]) -> None:
    grown = PersistentMap[int, int]()
    for number in range(count):
        grown = grown.set(number, number)
    assert sizes(grown) == sizes(numbers(count)) == wanted
    assert grown == numbers(count)
    assert len(grown) == count


def test_a_value_that_is_replaced_makes_no_chunk() -> None:
    for count in (CHUNK_SIZE, 2 * CHUNK_SIZE):
        changed = numbers(count).set(count - 1, -1)
        assert sizes(changed) == sizes(numbers(count))
        assert list(changed.items())[-1] == (count - 1, -1)


def test_a_map_that_shrinks_is_one_chunk_again_when_it_is_small() -> None:
    persistent = numbers(CHUNK_SIZE + 1)
    while len(persistent) > SMALL_SIZE + 1:
        persistent = persistent.without(next(iter(persistent)))
        assert len(sizes(persistent)) == 2
    persistent = persistent.without(next(iter(persistent)))
    assert sizes(persistent) == [SMALL_SIZE]
    assert list(persistent) == list(range(CHUNK_SIZE + 1 - SMALL_SIZE, CHUNK_SIZE + 1))


def test_a_chunk_without_keys_goes_and_the_last_one_stays() -> None:
    first = numbers(3 * CHUNK_SIZE)
    for key in range(CHUNK_SIZE):
        first = first.without(key)
    assert sizes(first) == [CHUNK_SIZE] * 2
    last = numbers(3 * CHUNK_SIZE)
    for key in range(2 * CHUNK_SIZE, 3 * CHUNK_SIZE):
        last = last.without(key)
    assert sizes(last) == [CHUNK_SIZE, CHUNK_SIZE, 0]
    again = last.set(-1, -1)
    assert sizes(again) == [CHUNK_SIZE, CHUNK_SIZE, 1]
    assert list(again) == [*range(2 * CHUNK_SIZE), -1]


def test_a_map_with_too_many_chunks_for_its_keys_is_made_anew() -> None:
    count = 3 * SPARE_CHUNKS
    persistent = numbers(count * CHUNK_SIZE)
    fewest = (count - SPARE_CHUNKS) * CHUNK_SIZE // 2
    for row in range(CHUNK_SIZE):  # one key of each chunk after the other
        for chunk in range(count):
            if len(persistent) == fewest:
                break
            persistent = persistent.without(chunk * CHUNK_SIZE + row)
            assert len(sizes(persistent)) == count
    assert len(persistent) == fewest
    left = [*persistent][1:]
    persistent = persistent.without(next(iter(persistent)))
    assert list(persistent) == left
    assert sizes(persistent)[:-1] == [CHUNK_SIZE] * (len(left) // CHUNK_SIZE)


def test_what_was_set_is_not_told_of_maps_with_other_keys() -> None:
    for count in (3, 3 * CHUNK_SIZE):
        before = numbers(count)
        grown = before
        for key in range(CHUNK_SIZE):
            grown = grown.set(-1 - key, key)
            assert grown.changed_since(before) is None
            assert before.changed_since(grown) is None
        shrunk = before
        for key in range(min(count, CHUNK_SIZE)):
            shrunk = shrunk.without(key)
            assert shrunk.changed_since(before) is None
            assert before.changed_since(shrunk) is None


def test_what_was_replaced_is_told_of_each_chunk() -> None:
    before = PersistentMap({number: [number] for number in range(3 * CHUNK_SIZE)})
    new = [[-1], [-2]]
    after = before.replacing({3: new[0], 2 * CHUNK_SIZE: new[1]})
    assert after.changed_since(before) == [(3, new[0]), (2 * CHUNK_SIZE, new[1])]
    told = before.changed_since(after)
    assert told == [(3, [3]), (2 * CHUNK_SIZE, [2 * CHUNK_SIZE])]
    chunks = list(zip(before.chunks(), after.chunks(), strict=True))
    assert [one is other for one, other in chunks] == [False, True, False]
    assert after.set(3, [3]).changed_since(before) == [(3, [3]), (2 * CHUNK_SIZE, new[1])]


def test_only_keys_that_it_has_are_replaced() -> None:
    with pytest.raises(AssertionError, match="each key is set"):
        numbers(3).replacing({3: 0})


def test_maps_are_equal_by_keys_and_values_in_any_order() -> None:
    one, turned = numbers(100), PersistentMap((n, n) for n in reversed(range(100)))
    assert one == turned == dict(turned)
    assert one != turned.set(5, 6)
    assert one != turned.without(5)
    assert one != turned.set(100, 100)
    assert one != list(range(100))
    assert one != dict.fromkeys(range(100), 0)


def test_maps_are_joined_and_shown_as_dicts_are() -> None:
    joined = numbers(2) | {1: 5, 7: 7}
    assert list(joined.items()) == [(0, 0), (1, 5), (7, 7)]
    assert repr(joined) == "PersistentMap({0: 0, 1: 5, 7: 7})"
    assert repr(LeaseTable[Row]()) == "LeaseTable({})"
    assert numbers(2) | {} == numbers(2)


@pytest.mark.parametrize("count", [3, 3 * CHUNK_SIZE])
def test_a_missing_key_has_the_default(count: int) -> None:
    persistent = numbers(count)
    assert (persistent.get(-1), persistent.get(-1, 7), persistent.get(0, 7)) == (None, 7, 0)
    assert -1 not in persistent
    assert count - 1 in persistent
    for get in (lambda: persistent[-1], lambda: persistent[count]):
        with pytest.raises(KeyError):
            get()


# --- sorted sets ----------------------------------------------------------------------------------


def chunks_of(found: SortedSet[tuple[int]]) -> list[int]:
    return [len(chunk) for chunk in found._chunks]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 500])
@pytest.mark.parametrize("step", [1, 7, 499])
def test_a_large_sorted_set_is_in_order_however_it_came_to_be(count: int, step: int) -> None:
    items = [((number * step) % 503,) for number in range(count)]
    found = SortedSet[tuple[int]]()
    for item in items:
        found = found.including(item)
    assert list(found) == sorted(items)
    assert list(sorted_set(items)) == sorted(items)
    for each in (found, sorted_set(items)):
        left, rest = each, sorted(items)
        for item in items:
            left = left.excluding(item)
            rest.remove(item)
            assert len(list(left)) == len(rest)
        assert list(left) == rest == []
        assert list(each) == sorted(items)


def test_a_chunk_of_a_sorted_set_is_cut_in_two_when_it_is_full() -> None:
    found = SortedSet[tuple[int]]()
    for number in range(64):
        found = found.including((number,))
        assert chunks_of(found) == [number + 1]
    found = found.including((64,))
    assert chunks_of(found) == [32, 33]
    found = found.including((-1,))
    assert chunks_of(found) == [33, 33]
    assert all(one < other for one, other in pairwise(found))
    assert chunks_of(sorted_set((n,) for n in range(100))) == [32, 32, 32, 4]


@pytest.mark.parametrize("count", [0, 1, 64, 200])
def test_the_items_before_one_are_counted(count: int) -> None:
    found = sorted_set((2 * number,) for number in range(count))
    for item in range(-1, 2 * count + 1):
        assert found.count_before((item,)) == sum(each < (item,) for each in found)


def test_a_chunk_of_a_sorted_set_that_is_empty_goes() -> None:
    found = sorted_set((number,) for number in range(33))
    assert chunks_of(found.excluding((32,))) == [32]
    assert chunks_of(found.excluding((0,))) == [31, 1]
    assert list(found.excluding((0,)).including((-5,)))[:2] == [(-5,), (1,)]


# --- indexes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The fields of a lease that the tables need."""

    id: LeaseId
    parts: dict[ServerId, str] = field(default_factory=dict[ServerId, str])
    ends_at: int = 0
    held: bool = True
    suspension: str | None = None
    relocation: str | None = None


ROWS = [
    Row(LeaseId(1), {A: ""}, 50),
    Row(LeaseId(2), {A: "", B: ""}, 40, suspension="away"),
    Row(LeaseId(3), {B: ""}, 50, relocation="goes"),
    Row(LeaseId(4), {B: ""}, 30, held=False, suspension="away", relocation="goes"),
    Row(LeaseId(5), {C: ""}, 0),
]


def made() -> LeaseTable[Row]:
    return LeaseTable((row.id, row) for row in ROWS)


def grown() -> LeaseTable[Row]:
    table = LeaseTable[Row]()
    for row in ROWS:
        table = table.set(row.id, row)
    return table


@pytest.mark.parametrize("table", [made(), grown()], ids=["made", "grown"])
def test_each_index_has_the_leases_that_it_is_for(table: LeaseTable[Row]) -> None:
    assert list(table.suspended()) == [2, 4]
    assert list(table.relocating()) == [3, 4]
    servers = {server: list(table.at(server)) for server in (A, B, C, ServerId("d"))}
    assert servers == {A: [1, 2], B: [2, 3, 4], C: [5], ServerId("d"): []}
    due = {now: [row.id for row in table.ended_by(now)] for now in (0, 30, 39, 40, 49, 50, 99)}
    assert due == {0: [], 30: [], 39: [], 40: [2], 49: [2], 50: [1, 2, 3], 99: [1, 2, 3]}


@pytest.mark.parametrize("table", [made(), grown()], ids=["made", "grown"])
def test_indexes_forget_a_lease_that_goes(table: LeaseTable[Row]) -> None:
    for row in ROWS:
        table = table.without(row.id).without(row.id)
        assert row.id not in table.suspended()
        assert row.id not in table.relocating()
        assert all(row.id not in table.at(server) for server in (A, B, C))
        assert row not in table.ended_by(99)
    assert (table.suspended(), table.relocating(), table.at(A)) == ({}, {}, {})


@pytest.mark.parametrize("table", [made(), grown()], ids=["made", "grown"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "new",
    [
        Row(LeaseId(0), {A: ""}, 45),
        Row(LeaseId(0), {C: ""}, 0, suspension="away"),
        Row(LeaseId(0), {B: "", C: ""}, 50, held=False, relocation="goes"),
        Row(LeaseId(0), {}, 30),
    ],
)
def test_indexes_follow_a_lease_that_changes(table: LeaseTable[Row], number: int, new: Row) -> None:
    key = LeaseId(number)
    row = Row(key, new.parts, new.ends_at, new.held, new.suspension, new.relocation)
    changed, fresh = table.set(key, row), LeaseTable({**table, key: row})
    assert changed == fresh
    assert changed.suspended() == fresh.suspended()
    assert changed.relocating() == fresh.relocating()
    for server in (A, B, C):
        assert changed.at(server) == fresh.at(server)
    for now in (30, 44, 45, 49, 50):
        assert changed.ended_by(now) == fresh.ended_by(now)
    assert table == LeaseTable((each.id, each) for each in ROWS)


@dataclass(frozen=True)
class Place:
    """The fields of a waiting request that the tables need."""

    priority: int
    since: int
    renewed: int


PLACES = {
    RequestId(b"low"): Place(0, 10, 100),
    RequestId(b"late"): Place(5, 30, 110),
    RequestId(b"high"): Place(5, 20, 120),
    RequestId(b"also"): Place(0, 10, 130),
    RequestId(b"soon"): Place(0, 40, 140),
}


def waiting() -> list[WaitingTable[Place]]:
    table = WaitingTable[Place]()
    for key, place in PLACES.items():
        table = table.set(key, place)
    return [table, WaitingTable(PLACES)]


@pytest.mark.parametrize(
    ("limit", "keys"),
    [
        (9, []),
        (10, [b"also", b"low"]),
        (20, [b"high", b"also", b"low"]),
        (29, [b"high", b"also", b"low"]),
        (30, [b"high", b"late", b"also", b"low"]),
        (40, [b"high", b"late", b"also", b"low", b"soon"]),
    ],
)
def test_those_who_have_waited_come_by_priority_and_time(limit: int, keys: list[bytes]) -> None:
    for table in waiting():
        assert list(table.in_turn(limit)) == [PLACES[RequestId(key)] for key in keys]


@pytest.mark.parametrize(("limit", "count"), [(99, 0), (100, 0), (101, 1), (120, 2), (141, 5)])
def test_entries_lapse_that_were_not_renewed_since(limit: int, count: int) -> None:
    for table in waiting():
        for _ in range(2):
            assert table.renewed_before(limit) == [*PLACES.values()][:count]


def test_an_entry_that_is_renewed_or_goes_does_not_lapse() -> None:
    for table in waiting():
        assert len(table.renewed_before(115)) == 2
        first, second, *_ = PLACES
        renewed = table.set(first, Place(0, 10, 150))
        assert renewed.renewed_before(115) == [PLACES[second]]
        assert renewed.without(second).renewed_before(115) == []
        assert renewed.set(second, Place(5, 30, 90)).renewed_before(91) == [Place(5, 30, 90)]
        changed = renewed.set(second, Place(-1, 5, 110))
        assert list(changed.in_turn(40))[-1] == Place(-1, 5, 110)
        assert len(list(changed.in_turn(40))) == len(PLACES)
        assert len(list(changed.without(second).in_turn(40))) == len(PLACES) - 1
