"""cuLink*: what a client adds is compiled and linked by the server's driver."""

import ctypes
from typing import Any

from gpupool.remoting.driver.api import INVALID_HANDLE, OUT_OF_MEMORY, Api, CudaError

LINKS_MAX = 1024
IMAGE_SIZE_MAX = 64 << 20
"""Of a linked image: what fits into the body of a reply."""

OPTIONS = (0, 7, 11, 13)
"""By CUjit_option: registers, optimisation level, debug information, line information."""


class Linker:
    """The links of one client process that have not ended. Numbers are the client's."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._links: dict[int, Any] = {}

    def create(self, number: int, *given: int) -> None:
        """Start a link; ``given`` is one more than the value of each of OPTIONS, or 0."""
        if number in self._links or len(self._links) >= LINKS_MAX:
            raise CudaError(INVALID_HANDLE, "cuLinkCreate")
        pairs = [(name, word - 1) for name, word in zip(OPTIONS, given, strict=True) if word]
        options = [self._api.enumerated("CUjit_option", name) for name, _ in pairs]
        values = [value for _, value in pairs]
        # The object is kept, not its address: it owns the memory of the options.
        self._links[number] = self._api.call("cuLinkCreate", len(pairs), options, values)

    def add(self, number: int, kind: int, image: bytearray, size: int, name: bytes) -> None:
        """Add ``size`` bytes of ``image``; ``kind`` is a CUjitInputType."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(image))
        what = self._api.enumerated("CUjitInputType", kind)
        state = self._links[number]
        self._api.call("cuLinkAddData", state, what, address, size, name, 0, [], [])

    def complete(self, number: int) -> bytes:
        """Link and return the image."""
        address, size = self._api.call("cuLinkComplete", self._links[number])
        if size > IMAGE_SIZE_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuLinkComplete")
        return ctypes.string_at(int(address), int(size))

    def destroy(self, number: int) -> None:
        """End a link."""
        self._api.call("cuLinkDestroy", self._links.pop(number))
