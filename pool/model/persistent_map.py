"""A map that is never changed: each change makes a new one that shares nearly all of the old one.

The table's large maps are of this kind, so that a command costs the same in a pool of 10,000 leases
as in one of ten. The order of iteration is that of a dict, because snapshots and events show it:
keys in the order in which they were first set. Equality is that of dicts, too.

Keys and values stand in chunks of up to ``CHUNK_SIZE``, each a dict; an index of 32 times 32 small
dicts says which chunk has a key. A change copies one chunk, one part of the index, and the list of
chunks. A small map is one chunk and has no index.

Parts of a table are never changed, so a ``Memo`` finds its answers by the identity of these parts.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import chain
from typing import Any, Generic, Self, TypeVar, cast, overload

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
