"""The table's maps, which are never changed: each change makes a new map out of the old one.

A ``PersistentMap`` shares nearly all of the one that it was made from, so a command costs the same
in a pool of 10,000 leases as in one of ten. The order of iteration is that of a dict, because
snapshots and events show it: keys in the order in which they were first set. Equality is that of
dicts, too.

Keys and values stand in chunks of up to ``CHUNK_SIZE``, each a dict; an index of 32 times 32 small
dicts says which chunk has a key. A change copies one chunk, one part of the index, and the list of
chunks. A small map is one chunk and has no index.

Parts of a table are never changed, so a ``Memo`` finds its answers by the identity of these parts.

``LeaseTable`` and ``WaitingTable`` are such maps with the indexes that their readers need. A map
and its indexes change together, in one place, so an index is never older than its map. The due rows
are the first ones of a sorted set, which is never changed in place either.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import chain
from typing import Any, Generic, Protocol, Self, TypeVar, cast, overload

from gpupool.pool.model.ids import LeaseId, RequestId, ServerId

T = TypeVar("T")


class Memo(Generic[T]):
    """The latest answers, found again by the objects that they follow from.

    No part of a table is ever changed in place, so the same objects have the same answer; what is
    merely equal is asked anew. The objects are kept, so that no other can have their identity.
    """

    def __init__(self, size: int) -> None:
        """Keep ``size`` answers, the latest."""
        self._size = size
        self._known: dict[tuple[int, ...], tuple[T, tuple[object, ...]]] = {}

    def get(self, *parts: object) -> T | None:
        """Return the answer that follows from these very objects, or None."""
        known = self._known.get(tuple(map(id, parts)))
        return known[0] if known is not None else None

    def put(self, answer: T, *parts: object) -> T:
        """Keep an answer, which must not be changed any more, and return it."""
        known = self._known
        if len(known) >= self._size:
            known.pop(next(iter(known), ()), None)
        known[tuple(map(id, parts))] = (answer, parts)
        return answer


K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

CHUNK_SIZE = 64
SMALL_SIZE = 32
"""A map that shrinks to so few keys is one chunk again."""

SPARE_CHUNKS = 32
"""Chunks, beyond twice as many as there would have to be, before a map is made anew."""

_WIDTH = 32
_BITS = 5
_Index = tuple[tuple[dict[K, int], ...], ...]


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """See the module. ``set`` and ``without`` return changed maps."""

    __slots__ = ("_chunks", "_index", "_last", "_length")

    _chunks: dict[int, dict[K, V]]
    _index: _Index[K] | None
    _last: int
    _length: int

    def __init__(self, content: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        """Make a map of ``content``, in its order."""
        self._build(dict(content))

    def _build(self, content: dict[K, V]) -> None:
        self._length = len(content)
        if len(content) <= CHUNK_SIZE:
            self._chunks, self._index, self._last = {0: content}, None, 0
            return
        pairs = list(content.items())
        starts = range(0, len(pairs), CHUNK_SIZE)
        self._chunks = {
            number: dict(pairs[start : start + CHUNK_SIZE]) for number, start in enumerate(starts)
        }
        self._last = len(starts) - 1
        index: tuple[tuple[dict[K, int], ...], ...] = tuple(
            tuple({} for _ in range(_WIDTH)) for _ in range(_WIDTH)
        )
        for number, chunk in self._chunks.items():
            for key in chunk:
                place = hash(key)
                index[place & 31][place >> _BITS & 31][key] = number
        self._index = index

    # --- reading ---------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        """Return the value of ``key``; raises ``KeyError``."""
        index = self._index
        if index is None:
            return self._chunks[self._last][key]
        place = hash(key)
        return self._chunks[index[place & 31][place >> _BITS & 31][key]][key]

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D, /) -> V | D: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        """Return the value of ``key``, or ``default``."""
        index = self._index
        if index is None:
            return self._chunks[self._last].get(key, default)
        place = hash(key)
        number = index[place & 31][place >> _BITS & 31].get(key)
        return default if number is None else self._chunks[number][key]

    def __contains__(self, key: object) -> bool:
        """Return whether ``key`` is set."""
        index = self._index
        if index is None:
            return key in self._chunks[self._last]
        place = hash(key)
        return key in index[place & 31][place >> _BITS & 31]

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._length

    def __iter__(self) -> Iterator[K]:
        """Return the keys in the order in which they were first set."""
        return chain.from_iterable(self._chunks.values())

    def keys(self) -> KeysView[K]:
        """Return the keys."""
        return KeysView(self)

    def values(self) -> ValuesView[V]:
        """Return the values."""
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        """Return keys and values."""
        return _Items(self)

    def chunks(self) -> Iterator[dict[K, V]]:
        """Return the content in pieces, in order: for work that is done piece by piece."""
        return iter(self._chunks.values())

    def changed_since(self, before: "PersistentMap[K, V]") -> list[tuple[K, V]] | None:
        """Return the entries set since an older map, or None if they are not found at once.

        It takes the time of a change when ``before`` is the map that this one was made from, in a
        few steps. Keys that have gone are not told: compare the lengths.
        """
        mine, theirs = self._chunks, before._chunks
        if mine.keys() != theirs.keys():
            return None
        found: list[tuple[K, V]] = []
        for number, chunk in mine.items():
            other = theirs[number]
            if chunk is not other:
                if chunk.keys() != other.keys():
                    return None
                found += [(k, v) for k, v in chunk.items() if other[k] is not v]
        return found

    def __eq__(self, other: object) -> bool:
        """Return whether the same keys have the same values, in any order, as dicts do."""
        if self is other:
            return True
        if not isinstance(other, (PersistentMap, dict)):
            return NotImplemented
        content = cast("Mapping[K, V]", other)
        return self._length == len(content) and dict(self.items()) == dict(content.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the content as a dict shows it."""
        return f"{type(self).__name__}({dict(self.items())!r})"

    # --- changing --------------------------------------------------------------------------------

    def set(self, key: K, value: V) -> Self:
        """Return the map with ``key`` set; a new key comes last."""
        index = self._index
        if index is None:
            chunk = self._chunks[self._last].copy()
            chunk[key] = value
            if len(chunk) > CHUNK_SIZE:
                return self._rebuilt(chunk)
            return self._changed({self._last: chunk}, None, self._last, len(chunk))
        place = hash(key)
        number = index[place & 31][place >> _BITS & 31].get(key)
        chunks, last, length = self._chunks.copy(), self._last, self._length
        if number is None:
            number, length = last, length + 1
            if len(chunks[last]) >= CHUNK_SIZE:
                number = last = last + 1
                chunks[number] = {}
            index = _with_bucket(index, place, key, number)
        chunk = chunks[number] = chunks[number].copy()
        chunk[key] = value
        return self._changed(chunks, index, last, length)

    def without(self, key: K) -> Self:
        """Return the map without ``key``, or itself when it is not set."""
        if key not in self:
            return self
        index, last, length = self._index, self._last, self._length - 1
        if index is None:
            chunk = self._chunks[last].copy()
            del chunk[key]
            return self._changed({last: chunk}, None, last, length)
        place = hash(key)
        number = index[place & 31][place >> _BITS & 31][key]
        chunks = self._chunks.copy()
        chunk = chunks[number].copy()
        del chunk[key]
        if chunk or number == last:
            chunks[number] = chunk
        else:
            del chunks[number]
        if length <= SMALL_SIZE or len(chunks) > 2 * length // CHUNK_SIZE + SPARE_CHUNKS:
            return self._rebuilt(dict(chain.from_iterable(map(_items, chunks.values()))))
        return self._changed(chunks, _with_bucket(index, place, key, None), last, length)

    def replacing(self, values: Mapping[K, V]) -> Self:
        """Return the map with other values of keys that it has: each chunk is copied once."""
        assert all(key in self for key in values), "each key is set"
        chunks, keys = self._chunks.copy(), values.keys()
        for number, chunk in chunks.items():
            if not chunk.keys().isdisjoint(keys):
                chunks[number] = {key: values.get(key, known) for key, known in chunk.items()}
        return self._changed(chunks, self._index, self._last, self._length)

    def __or__(self, other: Mapping[K, V]) -> Self:
        """Return the map with all of ``other`` set."""
        changed = self
        for key, value in other.items():
            changed = changed.set(key, value)
        return changed

    def _changed(
        self, chunks: dict[int, dict[K, V]], index: "_Index[K] | None", last: int, length: int
    ) -> Self:
        changed = object.__new__(type(self))
        changed._chunks, changed._index = chunks, index
        changed._last, changed._length = last, length
        return changed

    def _rebuilt(self, content: dict[K, V]) -> Self:
        changed = object.__new__(type(self))
        changed._build(content)
        return changed


class _Values(ValuesView[V]):
    __slots__ = ()
    _mapping: PersistentMap[Any, V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable([chunk.values() for chunk in self._mapping.chunks()])


class _Items(ItemsView[K, V]):
    __slots__ = ()
    _mapping: PersistentMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable([chunk.items() for chunk in self._mapping.chunks()])


def _items(chunk: dict[K, V]) -> ItemsView[K, V]:
    return chunk.items()


def _with_bucket(index: _Index[K], place: int, key: K, number: int | None) -> _Index[K]:
    """Return the index with the chunk of ``key`` set, or without the key."""
    high, low = place & 31, place >> _BITS & 31
    row = index[high]
    bucket = row[low].copy()
    if number is None:
        del bucket[key]
    else:
        bucket[key] = number
    row = (*row[:low], bucket, *row[low + 1 :])
    return (*index[:high], row, *index[high + 1 :])


Row = TypeVar("Row", bound=tuple[Any, ...])


class SortedSet(Generic[Row]):
    """Tuples in order, in chunks: a change copies one chunk and the list of chunks."""

    __slots__ = ("_chunks",)

    def __init__(self, chunks: tuple[tuple[Row, ...], ...] = ()) -> None:
        """Make a set of chunks that are in order; without any, an empty one."""
        self._chunks = chunks

    def __iter__(self) -> Iterator[Row]:
        """Return the items in order."""
        for chunk in self._chunks:
            yield from chunk

    def including(self, item: Row) -> "SortedSet[Row]":
        """Return the set with an item that it does not have yet."""
        chunks = self._chunks
        if not chunks:
            return SortedSet(((item,),))
        place = self._place(item)
        chunk = list(chunks[place])
        insort(chunk, item)
        half = len(chunk) // 2
        parts = (tuple(chunk),)
        if len(chunk) > CHUNK_SIZE:
            parts = (tuple(chunk[:half]), tuple(chunk[half:]))
        return SortedSet((*chunks[:place], *parts, *chunks[place + 1 :]))

    def excluding(self, item: Row) -> "SortedSet[Row]":
        """Return the set without an item that it has."""
        chunks, place = self._chunks, self._place(item)
        rest = tuple(each for each in chunks[place] if each != item)
        parts = (rest,) if rest else ()
        return SortedSet((*chunks[:place], *parts, *chunks[place + 1 :]))

    def count_before(self, item: Row) -> int:
        """Return the number of items that come before ``item``, which need not be in the set."""
        if not self._chunks:
            return 0
        place = self._place(item)
        count = sum(len(chunk) for chunk in self._chunks[:place])
        return count + bisect_left(self._chunks[place], item)

    def _place(self, item: Row) -> int:
        """Return the number of the chunk in which ``item`` is or belongs."""
        return max(0, bisect_right(self._chunks, item, key=_first) - 1)


def sorted_set(items: Iterable[Row]) -> SortedSet[Row]:
    """Return the set of items in any order; its chunks have room for more."""
    known, size = sorted(items), CHUNK_SIZE // 2
    starts = range(0, len(known), size)
    return SortedSet(tuple(tuple(known[start : start + size]) for start in starts))


def _first(chunk: tuple[Row, ...]) -> Row:
    return chunk[0]


_FAR = 2**64


class LeaseRow(Protocol):
    """The fields of a lease that the indexes of leases need."""

    @property
    def id(self) -> LeaseId:
        """Return its id."""
        ...

    @property
    def parts(self) -> Mapping[ServerId, object]:
        """Return its servers."""
        ...

    @property
    def ends_at(self) -> int:
        """Return when it ends by the policy; 0: never."""
        ...

    @property
    def held(self) -> bool:
        """Return whether it has not ended."""
        ...

    @property
    def suspension(self) -> object | None:
        """Return its suspension, if it has one."""
        ...

    @property
    def relocation(self) -> object | None:
        """Return from where to where it goes, if it goes to another server."""
        ...


class WaitingRow(Protocol):
    """The fields of a waiting request that the indexes of waiting requests need."""

    @property
    def priority(self) -> int:
        """Return its priority: the higher goes first."""
        ...

    @property
    def since(self) -> int:
        """Return since when it waits."""
        ...

    @property
    def renewed(self) -> int:
        """Return when it was renewed."""
        ...


L = TypeVar("L", bound=LeaseRow)
W = TypeVar("W", bound=WaitingRow)


class LeaseTable(PersistentMap[LeaseId, L], Generic[L]):
    """Leases by id, by server, by the end that the policy sets, and those on their way.

    These are the ones with a suspension, and the ones that go to another server.
    """

    __slots__ = ("_at", "_ends", "_relocating", "_suspended")

    _at: PersistentMap[ServerId, PersistentMap[LeaseId, L]]
    _ends: SortedSet[tuple[int, LeaseId]]
    _relocating: PersistentMap[LeaseId, L]
    _suspended: PersistentMap[LeaseId, L]

    def __init__(self, content: Mapping[LeaseId, L] | Iterable[tuple[LeaseId, L]] = ()) -> None:
        """Make a table of ``content``, in its order."""
        super().__init__(content)
        at: dict[ServerId, dict[LeaseId, L]] = {}
        for lease in self.values():
            for server in lease.parts:
                at.setdefault(server, {})[lease.id] = lease
        self._at = PersistentMap({server: PersistentMap(each) for server, each in at.items()})
        self._suspended = PersistentMap(
            (lease.id, lease) for lease in self.values() if lease.suspension is not None
        )
        self._relocating = PersistentMap(
            (lease.id, lease) for lease in self.values() if lease.relocation is not None
        )
        self._ends = sorted_set((each.ends_at, each.id) for each in self.values() if _ends(each))

    def at(self, server: ServerId) -> PersistentMap[LeaseId, L]:
        """Return the leases that have a part at ``server``, freed parts included.

        It is the same object for as long as none of them changes.
        """
        return self._at.get(server, _NONE)

    def suspended(self) -> PersistentMap[LeaseId, L]:
        """Return the leases with a suspension, ended ones included."""
        return self._suspended

    def relocating(self) -> PersistentMap[LeaseId, L]:
        """Return the leases that go to another server, ended ones included."""
        return self._relocating

    def ended_by(self, now: int) -> list[L]:
        """Return the held leases that end by the policy at ``now`` or before, by id."""
        found: list[LeaseId] = []
        for ends_at, lease in self._ends:
            if ends_at > now:
                break
            found.append(lease)
        return [self[each] for each in sorted(found)]

    def set(self, key: LeaseId, value: L) -> Self:
        """Return the table with a lease set; it may have come to a server, or left one."""
        before = self.get(key)
        changed = super().set(key, value)
        at, ends = self._at, self._ends
        for server in value.parts:
            at = at.set(server, at.get(server, _NONE).set(key, value))
        if before is not None and before.parts is not value.parts:
            for server in before.parts.keys() - value.parts.keys():
                at = _without(at, server, key)
        was, is_ = before is not None and _ends(before), _ends(value)
        if before is not None and was and (not is_ or before.ends_at != value.ends_at):
            ends, was = ends.excluding((before.ends_at, key)), False
        if is_ and not was:
            ends = ends.including((value.ends_at, key))
        changed._at, changed._ends = at, ends
        apart = self._suspended
        keeps = value.suspension is not None
        changed._suspended = apart.set(key, value) if keeps else apart.without(key)
        leaving = self._relocating
        goes = value.relocation is not None
        changed._relocating = leaving.set(key, value) if goes else leaving.without(key)
        return changed

    def without(self, key: LeaseId) -> Self:
        """Return the table without a lease."""
        before = self.get(key)
        changed = super().without(key)
        changed._suspended = self._suspended.without(key)
        changed._relocating = self._relocating.without(key)
        if before is None:
            return changed
        at, ends = self._at, self._ends
        for server in before.parts:
            at = _without(at, server, key)
        if _ends(before):
            ends = ends.excluding((before.ends_at, key))
        changed._at, changed._ends = at, ends
        return changed


_NONE: PersistentMap[LeaseId, Any] = PersistentMap()


def _without(
    at: PersistentMap[ServerId, PersistentMap[LeaseId, L]], server: ServerId, key: LeaseId
) -> PersistentMap[ServerId, PersistentMap[LeaseId, L]]:
    """Return the leases by server without one of them."""
    rest = at[server].without(key)
    return at.set(server, rest) if rest else at.without(server)


def _ends(lease: LeaseRow) -> bool:
    return bool(lease.ends_at) and lease.held


class WaitingTable(PersistentMap[RequestId, W], Generic[W]):
    """Waiting requests, in their turn, with a bound that tells at once that none has lapsed."""

    __slots__ = ("_renewed_min", "_turns")

    _renewed_min: int  # no entry was renewed before
    _turns: SortedSet[tuple[int, int, RequestId]]

    def __init__(self, content: Mapping[RequestId, W] | Iterable[tuple[RequestId, W]] = ()) -> None:
        """Make a table of ``content``, in its order."""
        super().__init__(content)
        self._renewed_min = min((entry.renewed for entry in self.values()), default=_FAR)
        self._turns = sorted_set(_turn(key, entry) for key, entry in self.items())

    def renewed_before(self, limit: int) -> list[W]:
        """Return the entries that were not renewed since ``limit``, in their order."""
        if self._renewed_min >= limit:
            return []
        self._renewed_min = min((entry.renewed for entry in self.values()), default=_FAR)
        return [entry for entry in self.values() if entry.renewed < limit]

    def in_turn(self, limit: int) -> Iterator[W]:
        """Return the entries that have waited since ``limit`` or longer.

        Those of the highest priority come first, among them those that have waited longest.
        """
        for _, since, key in self._turns:
            if since <= limit:
                yield self[key]

    def count_before(self, turn: tuple[int, int, RequestId]) -> int:
        """Return how many entries have their turn before ``turn``."""
        return self._turns.count_before(turn)

    def set(self, key: RequestId, value: W) -> Self:
        """Return the table with an entry set."""
        before = self.get(key)
        changed = super().set(key, value)
        changed._renewed_min = min(self._renewed_min, value.renewed)
        turns, turn = self._turns, _turn(key, value)
        if before is None or _turn(key, before) != turn:
            turns = turns if before is None else turns.excluding(_turn(key, before))
            turns = turns.including(turn)
        changed._turns = turns
        return changed

    def without(self, key: RequestId) -> Self:
        """Return the table without an entry."""
        before = self.get(key)
        changed = super().without(key)
        if before is not None:
            changed._renewed_min = self._renewed_min
            changed._turns = self._turns.excluding(_turn(key, before))
        return changed


def _turn(key: RequestId, entry: WaitingRow) -> tuple[int, int, RequestId]:
    return -entry.priority, entry.since, key
