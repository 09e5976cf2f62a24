"""Strict mode's order of work in streams: the results that another stream may use.

A number rises with each work. A clock says for each stream up to which number its work is done
before what comes next; the host has a clock, and each event. Work of the default stream comes
after all earlier work of streams that are not non-blocking, and before their later work, as in
CUDA. Calls for which CuPy waits are taken to wait for their stream.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Clock = dict[Any, int]

WORKS_MAX = 4096
"""Work in streams that is remembered."""

DEFAULT = 0
"""The default stream; those of several devices are one."""


@dataclass(frozen=True, slots=True)
class Work:
    """Calls in a stream, with their numbers."""

    first: int
    last: int
    stream: Any
    name: str


class Streams:
    """The clocks of one session."""

    def __init__(self) -> None:
        self.step = 2
        self.several = False
        """Whether the session has made a stream; before that all is in order."""
        self.current: Any = DEFAULT
        self._blocking: set[Any] = set()
        self._host: Clock = {}
        self._clocks: dict[Any, Clock] = {}
        self._events: dict[Any, Clock] = {}
        self._works: list[Work] = []

    def _clock(self, stream: object) -> Clock:
        """Return the clock of the next work in a stream; None is the default one."""
        clock = self._clocks.setdefault(stream or DEFAULT, {})
        ordered = self._blocking if not stream else {DEFAULT} if stream in self._blocking else ()
        for each in ordered:
            _join(clock, self._clocks.get(each, {}))
        _join(clock, self._host)
        return clock

    def wait(self, *clocks: Clock) -> None:
        """Note that the host has waited for clocks, or for the current stream."""
        for clock in clocks or [self._clock(self.current)]:
            _join(self._host, clock)
        self._works = [work for work in self._works if self._host.get(work.stream, 0) < work.last]

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an operation of streams or events that moves the clocks."""

        def call(*args: object) -> Any:
            result = function(*args)
            self._follow(name.removeprefix("cuda."), result, *args[:2])
            return result

        return call

    def _follow(
        self, name: str, result: object, first: object = None, second: object = None
    ) -> None:
        if name == "stream.create":
            self.several = True
            if not first:
                self._blocking.add(result)
        elif name in ("stream.synchronize", "stream.done"):
            self.wait(self._clock(first))
        elif name == "device.synchronize":
            self.wait(*self._clocks.values())
        elif name == "event.record":
            # Without a stream it is the current one or the default one.
            made = self._events[first] = dict(self._clock(second or self.current))
            _join(made, {} if second else self._clock(DEFAULT))
        elif name == "stream.wait_event":
            _join(self._clock(first), self._events.get(second, {}))
        elif name in ("event.synchronize", "event.done", "event.elapsed"):
            self.wait(self._events.get(first, {}), self._events.get(second, {}))

    def unordered(self) -> list[Work]:
        """Return earlier work that may go on beside the next work."""
        clock = self._clock(self.current) if self.several else {}
        return [
            work
            for work in self._works
            if work.stream != self.current and clock.get(work.stream, 0) < work.last
        ]

    def finish(self, name: str, last: int) -> None:
        """Note work in the current stream, from the next number to this one."""
        first, self.step = self.step, last + 1
        if self.several:
            self._clocks.setdefault(self.current, {})[self.current] = last
            self._works = [*self._works[-WORKS_MAX:], Work(first, last, self.current, name)]


def _join(clock: Clock, other: Clock) -> None:
    for stream, step in other.items():
        clock[stream] = max(clock.get(stream, 0), step)
