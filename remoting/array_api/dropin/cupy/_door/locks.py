"""Locks that the exception of a signal never leaves held.

Python handles signals between its instructions: after each call, at the beginning of a function and
at the end of a loop's turn. `if lock.acquire(): try:` can therefore lose the lock, and from Python
3.14 on so can `with lock:`, for both call a function. An unpacking and the head of a `for` loop
take the lock in C, and no signal is handled before the `try` that follows. Python's own Event and
Condition are not safe either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

WAIT = (True,)
"""``(_,) = map(lock.acquire, WAIT)`` takes a lock."""

AT_ONCE = (False,)
"""``(held,) = map(lock.acquire, AT_ONCE)`` takes a lock if it is free."""


class _Locked(Protocol):
    lock: Any


_S = TypeVar("_S", bound=_Locked)


def alone(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Have a method run while its object's ``lock`` is held."""

    @functools.wraps(method)
    def holding(self: _S, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        lock = self.lock
        (_,) = map(lock.acquire, WAIT)
        try:
            return method(self, *args, **kwargs)
        finally:
            lock.release()

    return holding
