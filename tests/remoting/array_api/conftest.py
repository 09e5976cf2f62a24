"""The drop-in imported in this process, over workers in threads."""

import contextlib
import socket
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import door_kit
from tests.shared import FAILED


class Session:
    """The drop-in's session with a worker that has two emulated devices."""

    def __init__(self, door: Any) -> None:
        self.door = door
        self._thread = threading.Thread()
        self.open()

    def open(self) -> None:
        """Start the worker, and have the drop-in use it."""
        ours, theirs = socket.socketpair()
        devices = door_kit.emulated(2, 512 * door_kit.MIB)
        self._thread, _ = door_kit.start_worker(theirs, devices)
        self.door.pool.attach(ours)

    def close(self) -> None:
        """End both."""
        for session in self.door.pool.sessions():
            with contextlib.suppress(Exception):  # what it still says was an earlier test's
                session.close()
        self.door.pool.reset()
        self._thread.join(5)
        assert not self._thread.is_alive()

    def wrong(self) -> str:
        """Return why the next test cannot use it; errors that nobody waited for are told."""
        sessions = self.door.pool.sessions()
        if len(sessions) != 1:
            return f"there are {len(sessions)} sessions"
        try:
            sessions[0].synchronize()
        except Exception as error:  # noqa: BLE001 - as the next test would see it
            return f"{type(error).__name__}: {error}"
        return ""


SESSIONS: list[Session] = []


@pytest.fixture(scope="package")
def dropin() -> Iterator[Any]:
    """Import `cupy` of the drop-in, with two emulated devices; forget it afterwards."""
    assert "cupy" not in sys.modules
    patch = pytest.MonkeyPatch()
    for name, value in door_kit.AS_ON_REAL_GPUS.items():
        patch.setenv(name, value)
    sys.path.insert(0, str(door_kit.DROPIN))
    import cupy  # pyright: ignore[reportMissingImports]

    session = Session(cupy._door)
    SESSIONS.append(session)
    yield cupy
    SESSIONS.remove(session)
    session.close()
    sys.path.remove(str(door_kit.DROPIN))
    for name in [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx")]:
        del sys.modules[name]
    patch.undo()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Make the session as it was, anew if need be. A hook, for Hypothesis's tests."""
    for session in SESSIONS:
        session.door.state.reset()
        for each in session.door.pool.sessions():
            each.judged = type(each.judged)()  # the kinds of calls that were accepted
        if wrong := session.wrong():
            session.close()
            session.open()
            if not item.stash.get(FAILED, False):
                pytest.fail(f"the test passed, and left the session of others so: {wrong}", False)
    return (yield)


@pytest.fixture(scope="package")
def session(dropin: Any) -> Session:
    """Give the session, to be closed and opened with other variables."""
    return SESSIONS[-1]


@pytest.fixture(scope="package")
def cp(dropin: Any) -> Any:
    """Give the drop-in by the name that programs use."""
    return dropin
