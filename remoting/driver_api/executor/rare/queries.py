"""What few programs ask of devices, and decompression by them."""

import ctypes

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import INVALID_VALUE
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct

ATOMICS_MAX = 256
OPERATIONS_MAX = 4096
NO_OPERATION = (1 << 64) - 1


class Queries(HandlerGroup):
    """Questions to the driver that need no state of ours."""

    def __init__(self, client: Client, direct: Direct) -> None:
        super().__init__(client)
        self._direct = direct
        self.methods = {
            "PEER_ATOMICS": self._peer_atomics,
            "DECOMPRESS": self._decompress,
        }

    def _peer_atomics(self, device: int, peer: int, count: int, given: memoryview) -> bytes:
        if not 0 < count <= ATOMICS_MAX:
            raise RemoteProtocolError("malformed question about atomics")
        operations = bytes(given)
        found = (ctypes.c_uint32 * count)()
        places = [self.client.ordinals[self.client.index(one)] for one in (device, peer)]
        self._direct.call("cuDeviceGetP2PAtomicCapabilities", found, operations, count, *places)
        return bytes(found)

    def _decompress(self, stream: int, count: int, given: memoryview) -> bytes:
        """Return the status, and the operation that is to blame for it."""
        if not 0 < count <= OPERATIONS_MAX:
            return WORDS[2].pack(INVALID_VALUE, NO_OPERATION)
        operations = bytes(given)
        failed = ctypes.c_uint64(NO_OPERATION)
        status = self._direct.status(
            "cuMemBatchDecompressAsync", operations, count, 0, failed, self.streams[stream]
        )
        return WORDS[2].pack(status, failed.value)
