"""Handlers of signals wait until the main thread is out of the middle of this package.

Python runs a signal's handler between any two instructions of the main thread, or in a system call
that the signal interrupts. A handler that saves a checkpoint asks the GPU server for arrays. In the
middle of another question it could not: the answer to that one would have to be read first, by the
code that the handler interrupts. So a signal that comes in the middle of `_door` comes again a
moment later. Where the main thread only waits (`rest`), handlers run at once, and may ask.

CuPy has no such middle, because CUDA's functions are C, which Python lets return first.
KeyboardInterrupt comes at once, for what it stops is not gone on with. Only where OpenSSL works, by
functions of Python, would its exception hide how many bytes have gone: there it waits (`whole`).
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

PAUSE_S = 0.0002
PATIENCE_S = 10.0
"""A handler waits no longer: what it interrupts then is a transfer that does not go on."""

_DOOR = os.path.dirname(os.path.abspath(__file__))
_rests: set[Any] = set()
_alone: set[Any] = set()
_whole: set[Any] = set()
handlers: dict[int, Any] = {}
"""The program's, of the signals that come by `_gate`."""
_since: dict[int, float] = {}
_again: queue.SimpleQueue[int] = queue.SimpleQueue()  # whose `put` may be interrupted by another
_thread: threading.Thread | None = None
_ended = False
_set, _get = signal.signal, signal.getsignal

Function = TypeVar("Function", bound=Callable[..., Any])


def rest(function: Function) -> Function:
    """Mark a function in which the main thread only waits, so that handlers may ask meanwhile."""
    _rests.add(function.__code__)
    return function


def alone(function: Function) -> Function:
    """Mark a function that must end before it is called again, though it may rest meanwhile."""
    _alone.add(function.__code__)
    return function


def whole(function: Function) -> Function:
    """Mark a short function that no exception may leave before it has done all that it does."""
    _whole.add(function.__code__)
    return function


def in_the_middle(frame: Any, *, raises: bool = False) -> bool:
    """Say whether a handler must wait, by the functions of `_door` on a stack.

    Args:
        frame: the innermost one.
        raises: the handler does nothing but raise KeyboardInterrupt.
    """
    innermost = True
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_DOOR) and code.co_filename != __file__:
            if innermost and raises:
                return code in _whole
            if code in _alone or (innermost and code not in _rests):
                return True
            innermost = False
        frame = frame.f_back
    return False


def install() -> None:
    """Let the program's handlers wait, those that it has and those that it sets later."""
    global _thread
    if not hasattr(signal, "pthread_kill") or threading.get_ident() != _main():
        return
    if _thread is None:  # here, because a handler may have interrupted the start of another thread
        _thread = threading.Thread(target=_repeat, args=(_again,), name="cupy-signals", daemon=True)
        _thread.start()
    for number in signal.valid_signals():
        handler = _get(number)
        if _waits(handler) and handler is not _gate:
            handlers[number] = handler
            _set(number, _gate)
    signal.signal, signal.getsignal = _set_handler, _get_handler


def _main() -> int | None:
    return threading.main_thread().ident


def _waits(handler: Any) -> bool:
    """Say whether it is a function, and not asyncio's, which does nothing.

    Each arrival of asyncio's signals counts, which repetition would add to.
    """
    return callable(handler) and "noop" not in getattr(handler, "__name__", "")


@functools.wraps(_set)
def _set_handler(signalnum: int, handler: Any) -> Any:
    before = _get_handler(signalnum)
    if not _waits(handler):
        _set(signalnum, handler)
        handlers.pop(signalnum, None)
        return before
    known = signalnum in handlers
    handlers[signalnum] = handler  # first, for one that comes at once
    try:
        _set(signalnum, _gate)
    except BaseException:
        if known:
            handlers[signalnum] = before
        else:
            handlers.pop(signalnum, None)
        raise
    return before


@functools.wraps(_get)
def _get_handler(signalnum: int) -> Any:
    found = _get(signalnum)
    return handlers.get(signalnum, found) if found is _gate else found


def _gate(number: int, frame: Any) -> None:
    now, handler = time.monotonic(), handlers.get(number)
    middle = in_the_middle(frame, raises=handler is signal.default_int_handler)
    if middle and now < _since.setdefault(number, now) + PATIENCE_S:
        _again.put(number)
        return
    _since.pop(number, None)
    if handler is not None:
        handler(number, frame)


def _repeat(again: queue.SimpleQueue[int]) -> None:
    """Send signals to the main thread again. It is what is interrupted while it waits."""
    while True:
        number = again.get()
        time.sleep(PAUSE_S)
        main = _main()
        if main is not None and not _ended:
            signal.pthread_kill(main, number)


def _at_exit() -> None:
    # Python restores the defaults next: a signal that is sent again would end the process.
    global _ended
    _ended = True


def after_fork() -> None:
    """Forget signals of the parent, and the thread that was to send them again."""
    global _again, _thread
    _again, _thread = queue.SimpleQueue(), None
    _since.clear()


atexit.register(_at_exit)
