"""Locks that the exception of a signal never leaves held.

Python handles signals between its instructions: after each call, at the beginning of a function and
at the end of a loop's turn. `if lock.acquire(): try:` can therefore lose the lock, and from Python
3.14 on so can `with lock:`, for both call a function. An unpacking and the head of a `for` loop
take the lock in C, and no signal is handled before the `try` that follows. Python's own Event and
Condition are not safe either. Python 3.9 looks for signals in more places, and has no such promise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])

WAIT = (True,)
"""``(_,) = map(lock.acquire, WAIT)`` takes a lock."""

AT_ONCE = (False,)
"""``(held,) = map(lock.acquire, AT_ONCE)`` takes a lock if it is free."""


def alone(method: _Method) -> _Method:
    """Wrap a method to hold its object's ``lock`` while it runs."""

    @functools.wraps(method)
    def holding(self: Any, *args: Any, **kwargs: Any) -> Any:
        lock = self.lock
        (_,) = map(lock.acquire, WAIT)
        try:
            return method(self, *args, **kwargs)
        finally:
            lock.release()

    return cast(_Method, holding)
