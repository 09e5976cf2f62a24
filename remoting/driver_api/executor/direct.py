"""Functions of the driver that take structures, called with their bytes as cuda.h lays them out.

The bindings build such structures field by field, differently in each of their versions. Here the
bytes come from the client as its program gave them, with every handle and host address in them
replaced by the area that knows them.
"""

import ctypes
from typing import Any

from gpupool.remoting.driver_api.executor.api import NOT_SUPPORTED, CudaError

LIBRARY = "libcuda.so.1"


class Direct:
    """The driver's library by its symbols: names with their versions, integers and bytes."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)

    def has(self, symbol: str) -> bool:
        """Say whether this driver has a function."""
        return hasattr(self._library, symbol)

    def status(self, symbol: str, *arguments: Any) -> int:
        """Call a function and return its CUresult.

        Integers are passed as 64 bits, of which a function takes what it needs; ``bytes`` and
        ctypes objects by their address.

        Raises:
            CudaError: when this driver has no such function.
        """
        try:
            function: Any = self._library[symbol]
        except AttributeError:
            raise CudaError(NOT_SUPPORTED, symbol) from None
        return int(function(*map(_passed, arguments)))

    def call(self, symbol: str, *arguments: Any) -> None:
        """Call a function that must succeed.

        Raises:
            CudaError: when CUDA refuses.
        """
        status = self.status(symbol, *arguments)
        if status:
            raise CudaError(status, symbol)

    def get(self, symbol: str, *arguments: Any) -> int:
        """Call a function that writes its 64-bit answer to the address in its first parameter."""
        answer = ctypes.c_uint64(0)
        self.call(symbol, answer, *arguments)
        return answer.value


class ByValue:
    """A structure or a float that a function takes itself, instead of its address."""

    def __init__(self, structure: ctypes.Structure | ctypes.c_float) -> None:
        self.structure = structure


def _passed(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_uint64(value & 0xFFFFFFFFFFFFFFFF)
    if isinstance(value, ByValue):
        return value.structure
    return value if isinstance(value, bytes) or value is None else ctypes.byref(value)
