"""Resources shared by tests, such as a pool of real servers: sound before every test.

To start a pool takes seconds, so a test borrows the one that there is. It is looked at when the
test has ended. What is not sound then, and does not become so, is ended, and the next test gets a
new one. If the test has passed, that is an error of its own: it left what it should not have left.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

import pytest

LOOK_EVERY_S = 0.05
FAILED = pytest.StashKey[bool]()

Thing = TypeVar("Thing")


class Shared(Generic[Thing]):
    """Something that tests borrow one after the other."""

    def __init__(
        self,
        make: Callable[[], contextlib.AbstractContextManager[Thing]],
        wrong: Callable[[Thing], str],
        *,
        settle_s: float = 20.0,
    ) -> None:
        """Make nothing yet.

        Args:
            make: starts one; it is ended at the context's exit.
            wrong: returns what is wrong with it; empty if nothing is.
            settle_s: how long what a test has ended may take to be over, such as its leases.
        """
        self._make = make
        self._wrong = wrong
        self._settle_s = settle_s
        self._stack = contextlib.ExitStack()
        self._made: list[Thing] = []

    def lend(self, request: pytest.FixtureRequest) -> Iterator[Thing]:
        """Give it to one test; the generator of a fixture."""
        if not self._made:
            self._made.append(self._stack.enter_context(self._make()))
        thing = self._made[0]
        yield thing
        wrong = self._until_sound(thing)
        if wrong:
            self.end()
            test: pytest.Item = request.node
            if not test.stash.get(FAILED, False):
                pytest.fail(f"the test passed, and left what others use unsound: {wrong}", False)

    def end(self) -> None:
        """End it, if there is one."""
        self._made.clear()
        self._stack.close()

    def _until_sound(self, thing: Thing) -> str:
        end = time.monotonic() + self._settle_s
        while (wrong := self._wrong(thing)) and time.monotonic() < end:
            time.sleep(LOOK_EVERY_S)
        return wrong


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let fixtures know whether their test has failed."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report
