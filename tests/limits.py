"""Time limits for tests that hang: each fails by name after two minutes, in any wait.

There are three ends, one behind the other. All come from the test's ``timeout``, which is that of
pyproject.toml, or of its own mark.

1. An ``async`` test is cancelled a little before, so that its nurseries and files are closed as
   they are at any other end, and it says what each of its tasks was waiting for.
2. pytest-timeout raises in any other test, wherever its main thread is, and the run goes on.
   ``with subprocess.Popen`` would now wait for the process; in tests it kills it, if an exception
   passes, as ``subprocess.run`` does.
3. A test may go on waiting while that passes through it, such as in what a fixture does at its end.
   Then all threads' stacks are printed and this process ends. pytest-xdist names the test, and goes
   on with another process.

In virtual time nothing is slow. There the first end is far beyond what any test sleeps for, so a
test of which all tasks wait for each other comes to it at once.
"""

import faulthandler
import functools
import inspect
import os
import subprocess
import traceback
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

import pytest
import trio
import trio.testing

SLOW_LIMIT_S = 900.0
"""Of tests that are marked slow and say no other."""

TRIO_PART = 5 / 6
"""Of the limit, after which an ``async`` test is cancelled."""

LAST_PART = 3 / 2
"""Of the limit, after which the process ends."""

VIRTUAL_LIMIT_S = 1e7
"""16 weeks."""

EXIT_S = 60.0
"""From the last test to the end of the process."""

STDERR = pytest.StashKey[int]()


def limit_s(item: pytest.Item) -> float:
    """Return how long a test may take; 0 for ever, as with ``--timeout 0``, for debuggers."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0])
    option: object = item.config.getoption("timeout")
    return float(str(item.config.getini("timeout") if option is None else option))


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error as it is before pytest captures it."""
    config.stash[STDERR] = os.dup(2)
    leave = subprocess.Popen[bytes].__exit__

    def kill_and_leave(
        self: "subprocess.Popen[bytes]",
        exc_type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None:
            self.kill()
        leave(self, exc_type, value, traceback)

    subprocess.Popen.__exit__ = kill_and_leave


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process even if a thread of a test does not, for which Python waits."""
    faulthandler.dump_traceback_later(EXIT_S, exit=True, file=config.stash[STDERR])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process if the test has not ended long after its limit."""
    _set_last_end(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Do the same anew: pytest and pytest-timeout set no more ends to a test that has failed."""
    _set_last_end(item)
    return (yield)


def _set_last_end(item: pytest.Item) -> None:
    limit = limit_s(item)
    if limit:
        stderr = item.config.stash[STDERR]
        faulthandler.dump_traceback_later(limit * LAST_PART, exit=True, file=stderr)


def pytest_enter_pdb() -> None:
    """Let people think."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Cancel an ``async`` test at its limit; after this, pytest-trio lets trio run it."""
    limit = limit_s(item)
    if limit and isinstance(item, pytest.Function) and item.get_closest_marker("trio"):
        test: Any = item.obj
        # Of a test of Hypothesis, each example has this limit, and all have the test's.
        inner = getattr(test, "hypothesis", None)
        if inner is None:
            item.obj = _limited(test, limit * TRIO_PART)
        elif inspect.iscoroutinefunction(inner.inner_test):
            inner.inner_test = _limited(inner.inner_test, limit * TRIO_PART)
    return (yield)


def _limited(test: Callable[..., Awaitable[None]], limit: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        virtual = isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
        seconds = VIRTUAL_LIMIT_S if virtual else limit
        where = ""
        with trio.move_on_after(seconds) as scope:
            try:
                await test(*args, **kwargs)
            except BaseException:
                if scope.cancel_called:
                    where = traceback.format_exc()
                raise
        if scope.cancelled_caught:
            pytest.fail(f"Timeout (>{seconds:.0f} s): the test was waiting here\n{where}", False)

    return run
