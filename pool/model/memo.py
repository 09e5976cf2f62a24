"""A cache of answers that follow from parts of a table, found by the identity of these parts."""

from typing import Generic, TypeVar

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
