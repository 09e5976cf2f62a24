"""Calls that wait for their answers, by the numbers that they carry over a connection.

Whoever has a connection sends and reads by itself; here is what all of them need besides::

    with calls.opened() as call:
        send(call.number, question)
        answer = await call.wait(timeout_s)  # None: none in time, or the other end has gone

The reader says ``calls.answered(number, answer)``, and ``calls.end()`` once nothing more comes.
Where no number is on the wire, a key of the caller's own has its place.
"""

import itertools
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class OpenCall(Generic[T]):
    """One call under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: T | None = None
        self.done = trio.Event()

    async def wait(self, timeout_s: float = float("inf")) -> T | None:
        """Return the answer; None when none has come in time, or the other end has gone."""
        with trio.move_on_after(timeout_s):
            await self.done.wait()
        return self.answer


class OpenCalls(Generic[T]):
    """The calls over one connection."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._calls: dict[Hashable, OpenCall[T]] = {}
        self.ended = False

    @contextmanager
    def opened(self, key: Hashable = None) -> Generator[OpenCall[T]]:
        """Have a call under way in the body; after the end it is done at once."""
        call = OpenCall[T](next(self._numbers))
        if self.ended:
            call.done.set()
        name = call.number if key is None else key
        self._calls[name] = call
        try:
            yield call
        finally:
            del self._calls[name]

    def answered(self, key: Hashable, answer: T) -> None:
        """Take an answer; one that nobody waits for is passed over."""
        call = self._calls.get(key)
        if call is not None and not call.done.is_set():
            call.answer = answer
            call.done.set()

    def end(self) -> None:
        """Say that the other end has gone."""
        self.ended = True
        for call in self._calls.values():
            call.done.set()
