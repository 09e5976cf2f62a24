"""A door for tests of suspension: memory of a GPU, by libcuda, and some of this process."""

import ctypes
import mmap
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from echo_door import FRAME, read_exactly

WORD = 0x5EED

KEPT_AT, KEPT_SIZE = 0x5000_0000_0000, 32 << 20
"""Memory of this process, where no other is near."""

LIBC = ctypes.CDLL(None)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def keep() -> "ctypes.Array[ctypes.c_char]":
    """Map it and fill it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    readable = mmap.PROT_READ | mmap.PROT_WRITE
    assert LIBC.mmap(KEPT_AT, KEPT_SIZE, readable, flags, -1, 0) == KEPT_AT
    kept = (ctypes.c_char * KEPT_SIZE).from_address(KEPT_AT)
    kept.raw = random.Random(7).randbytes(KEPT_SIZE)
    return kept


def serve(
    stream: Any, _devices: Sequence[Any], budget: Any, _log: Callable[[str], None], _peers: Any
) -> None:
    """Allocate (``a`` and bytes), or read the first word of each allocation (``r``).

    ``k`` fills memory of this process, which ``r`` reads as well.
    """
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    blocks: list[ctypes.c_uint64] = []
    kept: list[ctypes.Array[ctypes.c_char]] = []
    try:
        while True:
            command, size = FRAME.unpack(read_exactly(stream, FRAME.size))
            body = read_exactly(stream, size)
            if command == b"a":
                (size,) = struct.unpack(">Q", body)
                assert budget.reserve(0, size)
                assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
                assert cuda.cuCtxSetCurrent(context) == 0
                blocks.append(ctypes.c_uint64())
                if cuda.cuMemAlloc_v2(ctypes.byref(blocks[-1]), ctypes.c_size_t(size)):
                    answer = b"none"
                else:
                    words = ctypes.c_uint(WORD), ctypes.c_size_t(1)
                    answer = b"had" if not cuda.cuMemsetD32_v2(blocks[-1], *words) else b"broken"
            elif command == b"k":
                kept.append(keep())
                answer = b"kept"
            else:
                assert all(each.raw == random.Random(7).randbytes(KEPT_SIZE) for each in kept)
                word = ctypes.c_uint()
                for block in blocks:
                    code = cuda.cuMemcpyDtoH_v2(ctypes.byref(word), block, ctypes.c_size_t(4))
                    assert (code, word.value) == (0, WORD)
                answer = b"right"
            stream.send_buffers([FRAME.pack(command, len(answer)), answer])
    except EOFError:
        pass
