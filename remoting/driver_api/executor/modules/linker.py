"""cuLink*: the server's driver compiles and links the images that a client adds."""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from gpupool.remoting.driver_api.executor.api import INVALID_HANDLE, OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.direct import Direct

LINKS_MAX = 1024
ADDED_SIZE_MAX = 1 << 30
"""Most bytes added to unfinished links, all together: the driver keeps them."""

IMAGE_SIZE_MAX = 64 << 20
"""Most bytes of a linked image, which must fit into the body of a reply."""


class Linker:
    """The links of one client process that have not ended. Numbers are the client's."""

    def __init__(self, direct: Direct) -> None:
        self._direct = direct
        self._links: dict[int, tuple[int, Options]] = {}
        self._added: dict[int, int] = {}  # bytes, by link

    def create(self, number: int, *given: int) -> None:
        """Start a link; ``given`` are the words of ``Options``."""
        if number in self._links or len(self._links) >= LINKS_MAX:
            raise CudaError(INVALID_HANDLE, "cuLinkCreate")
        options, state = Options(given), ctypes.c_uint64(0)
        arguments = (options.count, options.names, options.values, state)
        self._direct.call("cuLinkCreate_v2", *arguments)
        self._links[number] = (state.value, options)
        self._added[number] = 0

    def add(self, number: int, kind: int, image: bytearray, size: int, name: bytes) -> None:
        """Add ``size`` bytes of ``image``; ``kind`` is a CUjitInputType."""
        data = ctypes.c_char.from_buffer(image)
        state, _ = self._links[number]
        if sum(self._added.values()) + size > ADDED_SIZE_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuLinkAddData")
        self._added[number] += size
        self._direct.call("cuLinkAddData_v2", state, kind, data, size, name, 0, None, None)

    def complete(self, number: int) -> bytes:
        """Link and return the image."""
        address, size = ctypes.c_uint64(0), ctypes.c_size_t(0)
        self._direct.call("cuLinkComplete", self._links[number][0], address, size)
        if size.value > IMAGE_SIZE_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuLinkComplete")
        return ctypes.string_at(address.value, size.value)

    def said(self, number: int) -> bytes:
        """Return the logs so far."""
        return self._links[number][1].said()

    def destroy(self, number: int) -> None:
        """End a link."""
        state, options = self._links.pop(number)
        del self._added[number]
        self._direct.call("cuLinkDestroy", state)
        del options  # not before: the driver writes its logs there


INFO_LOG, INFO_LOG_SIZE, ERROR_LOG, ERROR_LOG_SIZE = 3, 4, 5, 6

PASSED_ON = (0, 1, 7, 11, 12, 13)
"""By CUjit_option: registers, threads, optimisation, debug information, a verbose log, lines."""

LOG_SIZE = 32768


class Options:
    """Arrays of options and their values; they must stay as long as the driver may write logs."""

    def __init__(self, given: Sequence[int]) -> None:
        """Take one more than the value of each of PASSED_ON, or 0."""
        self._logs = [ctypes.create_string_buffer(LOG_SIZE) for _ in range(2)]
        pairs = [(name, word - 1) for name, word in zip(PASSED_ON, given, strict=True) if word]
        pairs += [(INFO_LOG, ctypes.addressof(self._logs[0])), (INFO_LOG_SIZE, LOG_SIZE)]
        pairs += [(ERROR_LOG, ctypes.addressof(self._logs[1])), (ERROR_LOG_SIZE, LOG_SIZE)]
        self.count = len(pairs)
        self.names: Any = (ctypes.c_int * len(pairs))(*[name for name, _ in pairs])
        self.values: Any = (ctypes.c_size_t * len(pairs))(*[value for _, value in pairs])

    def said(self) -> bytes:
        """Return both logs, each behind its size."""
        texts = [log.raw.partition(b"\0")[0][: LOG_SIZE - 1] for log in self._logs]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
