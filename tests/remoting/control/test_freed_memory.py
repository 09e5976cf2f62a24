"""Memory that was freed goes back to the system."""

import ctypes
import sys
import threading
from pathlib import Path

import pytest
import trio

from gpupool.remoting.transport import connections

SIZE, COUNT = 2_000, 50_000


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="malloc_trim is a call of glibc",
)
def test_what_lies_between_others_memory_goes_back() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    pieces = [library.malloc(SIZE) for _ in range(COUNT)]
    for at in pieces:
        ctypes.memset(at, 1, SIZE)
    kept = set(pieces[:: COUNT // 500])
    for at in pieces:
        if at not in kept:
            library.free(at)
    before = resident_pages()
    connections.trim()
    after = resident_pages()
    for at in kept:
        library.free(at)
    assert before - after > SIZE * COUNT // 4096 // 2


async def test_it_goes_back_again_and_again_and_never_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "TRIM_S", 0.001)
    in_loop: list[bool] = []
    scope = trio.CancelScope()

    def trim() -> None:
        in_loop.append(threading.current_thread() is threading.main_thread())
        if len(in_loop) == 3:
            trio.from_thread.run_sync(scope.cancel)

    with trio.fail_after(10), scope:
        await connections.give_back_memory(trim)
    assert in_loop[:3] == [False] * 3
