"""A sorted set that is never changed: what is due is found at its beginning."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])

CHUNK_SIZE = 64


class SortedSet(Generic[T]):
    """Tuples in order, in chunks: a change copies one chunk and the list of chunks."""

    __slots__ = ("_chunks",)

    def __init__(self, chunks: tuple[tuple[T, ...], ...] = ()) -> None:
        """Make a set of chunks that are in order; without any, an empty one."""
        self._chunks = chunks

    def __iter__(self) -> Iterator[T]:
        """Return the items in order."""
        for chunk in self._chunks:
            yield from chunk

    def including(self, item: T) -> "SortedSet[T]":
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

    def excluding(self, item: T) -> "SortedSet[T]":
        """Return the set without an item that it has."""
        chunks, place = self._chunks, self._place(item)
        rest = tuple(each for each in chunks[place] if each != item)
        parts = (rest,) if rest else ()
        return SortedSet((*chunks[:place], *parts, *chunks[place + 1 :]))

    def count_before(self, item: T) -> int:
        """Return the number of items that come before ``item``, which need not be in the set."""
        if not self._chunks:
            return 0
        place = self._place(item)
        count = sum(len(chunk) for chunk in self._chunks[:place])
        return count + bisect_left(self._chunks[place], item)

    def _place(self, item: T) -> int:
        """Return the number of the chunk in which ``item`` is or belongs."""
        return max(0, bisect_right(self._chunks, item, key=_first) - 1)


def sorted_set(items: Iterable[T]) -> SortedSet[T]:
    """Return the set of items in any order; its chunks have room for more."""
    known, size = sorted(items), CHUNK_SIZE // 2
    starts = range(0, len(known), size)
    return SortedSet(tuple(tuple(known[start : start + size]) for start in starts))


def _first(chunk: tuple[T, ...]) -> T:
    return chunk[0]
