"""Rows that are made when they are looked at: a screen shows few of many thousands."""

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class LazyRows(Sequence[T]):
    """So many rows, each made from its place."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._make(at) for at in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._make(index % self._count)
