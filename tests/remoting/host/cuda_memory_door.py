"""A door for tests of suspension: memory of a GPU, by libcuda and nothing else."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from echo_door import FRAME, read_exactly

WORD = 0x5EED


def serve(
    stream: Any, _devices: Sequence[Any], budget: Any, _log: Callable[[str], None], _peers: Any
) -> None:
    """Allocate (``a`` and bytes), or read the first word of each allocation (``r``)."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    blocks: list[ctypes.c_uint64] = []
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
            else:
                word = ctypes.c_uint()
                for block in blocks:
                    code = cuda.cuMemcpyDtoH_v2(ctypes.byref(word), block, ctypes.c_size_t(4))
                    assert (code, word.value) == (0, WORD)
                answer = b"right"
            stream.send_buffers([FRAME.pack(command, len(answer)), answer])
    except EOFError:
        pass
