"""Counts of a program's waits for its workers, by call and place: the report of `-vv`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from cupy._door.errors import visible
from cupy._door.older import line_of
from cupy._door.sites import HERE, frame_at, program_frame

#: Pairs of an operation and a place that are told apart; the waits of others are one number.
PLACES_MAX = 1024
#: Pairs that the end of the program tells.
SHOWN_MAX = 20
_WORDS = {
    "door.get": "to read an array",
    "door.touch": "for the first call of a kind, or for a shape that the elements decide",
    "door.sync": "for all calls before it",
    "door.fetch": "to read an array through shared memory",
    "door.fill": "for room in shared memory",
    "cuda.mem_info": "to learn how much memory is free",
    "cuda.pool.numbers": "to learn how much memory the pool has",
}
_OTHERS: tuple[str, Any, int] = ("at other places", None, 0)


class Waits:
    """The round trips of one session, by operation and by the line of the program.

    A large array that crosses by shared memory counts once for each slot of it.
    """

    def __init__(self) -> None:
        #: By the operation's name, the code object, and the offset of the instruction in it.
        self.counts: Counter[tuple[str, Any, int]] = Counter()

    def count(self, name: str) -> None:
        """Count one question. The caller holds the sender's lock."""
        frame = program_frame(frame_at(1))
        key: tuple[str, Any, int] = (name, frame.f_code, frame.f_lasti)
        if frame.f_code.co_filename.startswith(HERE):  # no line of the program: it has ended
            key = (name, None, 0)
        if len(self.counts) >= PLACES_MAX and key not in self.counts:
            key = _OTHERS
        self.counts[key] += 1


def made() -> Waits | None:
    """Return an account of round trips where `-vv` asks for one."""
    return Waits() if os.environ.get("GPUPOOL_VERBOSE", "")[:1] in tuple("23456789") else None


def told(accounts: Iterable[Waits | None]) -> Iterator[str]:
    """Yield the report at the program's end: the sum of waits, and the most frequent places."""
    counts: Counter[tuple[str, Any, int]] = Counter()
    for account in accounts:
        if account is not None:
            counts.update(account.counts)
    if not counts:
        return
    yield f"waited for the server {sum(counts.values())} times"
    shown = counts.most_common(SHOWN_MAX)
    for (name, code, instruction), times in shown:
        line = f"waited for the server {times} times: {_WORDS.get(name, name)}"
        if code is not None:
            line += f", at {code.co_filename}:{line_of(code, instruction) or code.co_firstlineno}"
        yield visible(line)
    if len(counts) > len(shown):
        rest = sum(counts.values()) - sum(times for _, times in shown)
        yield f"waited for the server {rest} times at {len(counts) - len(shown)} other places"
