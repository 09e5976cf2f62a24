"""Memory of the worker in place of the client's in graphs: when it may be another's."""

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpupool.remoting.driver_api.executor.api import CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS
from gpupool.remoting.driver_api.executor.graphs.early_pieces import EarlyPieces
from gpupool.remoting.driver_api.executor.memory.slots import SLOTS_SIZE_MAX, Slots
from gpupool.remoting.driver_api.executor.memory.staging_buffers import Buffer
from gpupool.remoting.driver_api.executor.sync_waiter import Waiter

STREAM, EXECUTABLE, SIZE = 5, 100, 4096


class FakeApi:
    """Events of one stream, which are over when the test says so."""

    def __init__(self) -> None:
        self.made = 0
        self.running: set[int] = set()
        self._pinned: list[Any] = []
        self.runtime = SimpleNamespace(
            eventCreateWithFlags=self._create, eventDestroy=id, hostAlloc=self._allocate
        )

    def _create(self, _flags: int) -> int:
        self.made += 1
        return self.made

    def record(self, event: int, _stream: int) -> None:
        self.running.add(event)

    def done(self, event: int) -> bool:
        return event not in self.running

    def _allocate(self, size: int, _flags: int) -> int:
        self._pinned.append((ctypes.c_uint8 * size)())
        return ctypes.addressof(self._pinned[-1])


class Replies:
    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def data(self, download: int, bulk: memoryview, *, replies: bool = False) -> None:
        del replies
        self.sent.append((download, bytes(bulk)))


class Scene:
    """The slots of a client, with a waiter of theirs."""

    def __init__(self) -> None:
        self.api, self.replies = FakeApi(), Replies()
        self.waiter = Waiter(cast("Any", self.api), cast("Any", self.replies), [0])
        self.client = SimpleNamespace(
            api=self.api, session=None, waiter=self.waiter, streams={STREAM: 1}, objects={},
            device=0, bulk=0,
        )  # fmt: skip
        self.slots = Slots(cast("Any", self.client), EarlyPieces())
        self.methods: Any = self.slots.methods

    def make(self, number: int, size: int = SIZE) -> Buffer:
        self.methods["SLOT_MAKE"](number, size)
        return self.slots._slots[number].buffer  # pyright: ignore[reportPrivateUsage]

    def free(self, number: int) -> None:
        self.methods["SLOT_FREE"](number)

    def launch(self, executable: int, *reads: tuple[int, int]) -> None:
        """Launch an executable that writes to these slots, each for a download."""
        pieces = b"".join(WORDS[4].pack(slot, 0, 8, wanted) for slot, wanted in reads)
        words = (executable, STREAM, len(reads), memoryview(pieces))
        self.methods["SLOT_READ"](*words)


def test_a_slot_goes_when_its_downloads_are_sent() -> None:
    scene = Scene()
    first = scene.make(1)
    scene.launch(EXECUTABLE, (1, 70))
    first.view[:8] = b"launched"
    scene.slots.forget(EXECUTABLE)
    scene.free(1)
    assert scene.make(2) is not first
    scene.api.running.clear()
    assert scene.make(3) is not first
    scene.waiter.deliver()
    assert scene.replies.sent == [(70, b"launched")]
    scene.free(2)
    assert first in (scene.make(4), scene.make(5))


def test_a_slot_goes_when_launches_of_an_executable_that_is_still_there_are_over() -> None:
    scene = Scene()
    first = scene.make(1)
    scene.launch(EXECUTABLE)
    scene.free(1)  # another was set in the executable
    assert scene.make(2) is not first
    before = set(scene.api.running)
    scene.launch(EXECUTABLE)
    scene.api.running -= before
    assert scene.make(3) is first  # the later launch has nothing of it


def test_slots_that_only_downloads_keep_are_made_room_of() -> None:
    scene = Scene()
    for number in range(5):
        scene.make(number, SLOTS_SIZE_MAX // 4)
        scene.launch(number, (number, 70))
        scene.slots.forget(number)
        scene.free(number)
        if number < 4:
            scene.api.running.clear()
    assert len(scene.replies.sent) == 4
    for number in range(5, 8):
        scene.make(number, SLOTS_SIZE_MAX // 4)
    with pytest.raises(CudaError):  # the last launch still runs
        scene.make(9, SLOTS_SIZE_MAX // 4)


def test_executables_that_come_and_go_leave_no_events() -> None:
    scene = Scene()
    scene.make(1)
    for number in range(50):
        scene.launch(number)
        scene.slots.forget(number)
        scene.api.running.clear()
    assert scene.api.made < 10
