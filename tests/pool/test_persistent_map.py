"""Maps that are never changed, beside dicts and sorted lists that are."""

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.pool.model.ids import LeaseId, RequestId, ServerId
from gpupool.pool.model.tables import (
    CHUNK_SIZE,
    LeaseTable,
    PersistentMap,
    SortedSet,
    WaitingTable,
    sorted_set,
)

KEYS = st.integers(0, 6 * CHUNK_SIZE)
CHANGES = st.lists(st.tuples(st.sampled_from(["set", "without", "oldest"]), KEYS), max_size=80)


@dataclass(frozen=True)
class Row:
    """The fields of a lease that the tables need."""

    id: LeaseId
    parts: dict[ServerId, str] = field(default_factory=dict[ServerId, str])
    ends_at: int = 0
    held: bool = True
    suspension: None = None
    relocation: str | None = None


@dataclass(frozen=True)
class Place:
    """The fields of a waiting request that the tables need."""

    since: int
    renewed: int
    priority: int = 0


def same(persistent: PersistentMap[int, int], plain: dict[int, int]) -> None:
    assert list(persistent.items()) == list(plain.items())
    assert list(persistent) == list(plain)
    assert list(persistent.values()) == list(plain.values())
    assert len(persistent) == len(plain)
    assert persistent == plain == dict(persistent)
    for key in range(-1, 6 * CHUNK_SIZE + 2):
        assert persistent.get(key) == plain.get(key)
        assert (key in persistent) == (key in plain)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 5 * CHUNK_SIZE), CHANGES)
def test_a_map_is_what_a_dict_would_be_and_the_older_one_stays(
    size: int, changes: list[tuple[str, int]]
) -> None:
    plain = {(key * 7) % (6 * CHUNK_SIZE): key for key in range(size)}
    persistent = PersistentMap(plain)
    before, was = persistent, dict(plain)
    for number, (what, key) in enumerate(changes):
        if what == "set":
            persistent = persistent.set(key, -number)
            plain[key] = -number
        else:
            key = next(iter(plain), key) if what == "oldest" else key
            persistent = persistent.without(key)
            plain.pop(key, None)
    same(persistent, plain)
    same(before, was)
    same(PersistentMap(persistent), plain)
    others = {key: -key for key in plain if key % 3 == 0}
    same(persistent.replacing(others), plain | others)
    same(persistent, plain)


def test_a_map_that_grows_at_one_end_and_shrinks_at_the_other_stays_compact() -> None:
    persistent, plain = PersistentMap[int, int](), dict[int, int]()
    for number in range(6000):
        key = number * 1024  # all in one part of the index, by their hashes
        persistent, plain[key] = persistent.set(key, number), number
        if len(plain) > 500 and number % 16:
            gone = next(iter(plain))
            persistent = persistent.without(gone)
            del plain[gone]
    assert list(persistent.items()) == list(plain.items())
    assert len(list(persistent.chunks())) <= 2 * len(plain) // CHUNK_SIZE + 34
    for key in list(plain):
        persistent = persistent.without(key)
    assert not persistent
    assert persistent == PersistentMap()


def test_what_was_set_since_an_older_map_is_told() -> None:
    before = PersistentMap({number: object() for number in range(300)})
    new = object()
    after = before.set(7, new).set(299, new)
    assert after.changed_since(before) == [(7, new), (299, new)]
    assert before.changed_since(before) == []
    assert after.without(8).changed_since(before) is None
    assert after.set(1000, new).changed_since(before) is None


def test_a_missing_key_is_an_error_and_a_map_is_no_key() -> None:
    for size in (0, 200):
        persistent = PersistentMap(dict.fromkeys(range(size), 0))
        with pytest.raises(KeyError):
            persistent[-1]
        with pytest.raises(TypeError):
            hash(persistent)
        assert persistent.without(-1) is persistent


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 150)), unique=True), st.data())
def test_a_sorted_set_is_what_a_sorted_list_would_be(
    items: list[tuple[int, int]], data: st.DataObject
) -> None:
    found = SortedSet[tuple[int, int]]()
    for item in items:
        found = found.including(item)
    assert list(found) == list(sorted_set(items)) == sorted(items)
    found = sorted_set(items) if data.draw(st.booleans()) else found
    gone = data.draw(st.sets(st.sampled_from(items))) if items else set[tuple[int, int]]()
    for item in gone:
        found = found.excluding(item)
    assert list(found) == sorted(set(items) - gone)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 5), *[st.booleans()] * 4),
        max_size=150,
    )
)
def test_indexes_of_leases_follow_each_change(
    changes: list[tuple[int, int, bool, bool, bool, bool]],
) -> None:
    table, plain = LeaseTable[Row](), dict[LeaseId, Row]()
    for number, ends_at, held, stays, goes, came in changes:
        lease = LeaseId(number)
        parts = {ServerId(f"s{number % 3}"): "held", ServerId(f"t{number % 2}"): "held"}
        if came:  # it has left a server, and is on another
            parts = {ServerId(f"s{(number + 1) % 3}"): "held"}
        if stays:
            row = Row(lease, parts, ends_at, held, relocation="goes" if goes else None)
            table, plain[lease] = table.set(lease, row), row
        else:
            table = table.without(lease)
            plain.pop(lease, None)
    again = LeaseTable(plain)
    for each in (table, again):
        assert each == plain
        for server in (ServerId("s0"), ServerId("t1"), ServerId("nobody")):
            assert each.at(server) == {k: r for k, r in plain.items() if server in r.parts}
        assert each.relocating() == {k: r for k, r in plain.items() if r.relocation}
        for now in range(7):
            due = [plain[k] for k in sorted(plain) if plain[k].held and 0 < plain[k].ends_at <= now]
            assert each.ended_by(now) == due


def test_the_leases_of_a_server_are_the_same_object_until_one_of_them_changes() -> None:
    mine, other = Row(LeaseId(1), {ServerId("me"): ""}), Row(LeaseId(2), {ServerId("you"): ""})
    table = LeaseTable({mine.id: mine})
    seen = table.at(ServerId("me"))
    assert table.set(other.id, other).at(ServerId("me")) is seen
    assert table.set(mine.id, Row(mine.id, mine.parts, 5)).at(ServerId("me")) is not seen


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 50), st.integers(-1, 1), st.booleans()),
        max_size=60,
    )
)
def test_waiting_requests_are_found_by_their_times_and_in_their_turn(
    changes: list[tuple[int, int, int, bool]],
) -> None:
    table, plain = WaitingTable[Place](), dict[RequestId, Place]()
    for number, at, priority, stays in changes:
        request = RequestId(bytes([number]))
        if stays:
            since = plain[request].since if request in plain else at
            plain[request] = Place(since, at, priority)
            table = table.set(request, plain[request])
        else:
            table = table.without(request)
            plain.pop(request, None)
    again = WaitingTable(plain)
    for each, limit in product((table, again), (0, 10, 25, 51)):
        late = [row for row in plain.values() if row.renewed < limit]
        assert each.renewed_before(limit) == late
        turns = sorted((-row.priority, row.since, key) for key, row in plain.items())
        long = [plain[key] for _, since, key in turns if since <= limit]
        assert list(each.in_turn(limit)) == long
