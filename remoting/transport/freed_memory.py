"""Memory that ended connections have left in the C library goes back to the system.

OpenSSL takes tens of KiB for each connection, in pieces that lie between those of others, so glibc
keeps what is freed. After 10,000 connections of strangers a server and its exporter had 75 MiB more
for good.
"""

import ctypes
import sys
from collections.abc import Callable

import trio

TRIM_S = 60.0
"""A trim takes 1 to 6 ms of a thread for 100 MiB, and the process allocates nothing meanwhile."""


def trim() -> None:
    """Return unused heap memory to the kernel by malloc_trim; only glibc provides it."""
    library = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def free_tls(tls: "trio.SSLStream[trio.SocketStream]") -> None:
    """Free the memory of a TLS connection that has ended.

    trio's stream refers to itself. Without this, 50 KiB would wait for the garbage collector, and
    those of a flood with them.
    """
    vars(tls).clear()


async def give_back_memory(trim: Callable[[], None] = trim) -> None:
    """Call ``trim`` once in ``TRIM_S``, in a thread, until cancelled."""
    while True:
        await trio.sleep(TRIM_S)
        await trio.to_thread.run_sync(trim)
