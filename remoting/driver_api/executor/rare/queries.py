"""Questions that few programs ask of devices, decompression by them, and tensor maps."""

import ctypes
from collections.abc import Sequence
from typing import Any

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


MAP_SIZE, MAP_WORDS = 128, 16
RANK_MAX = 5
WORDS_MAX = 64
TILED, REPLACE, WIDE = 0, 2, 3  # 1: by im2col


class Tensors(HandlerGroup):
    """Encodes tensor maps."""

    def __init__(self, client: Client, direct: Direct) -> None:
        super().__init__(client)
        self._direct = direct
        self.methods = {
            "TENSOR_MAP": self._tensor_map,
        }

    def _tensor_map(self, given: memoryview) -> bytes:
        words = [word for (word,) in WORDS[1].iter_unpack(given)]
        if not 18 <= len(words) <= WORDS_MAX:
            raise RemoteProtocolError("malformed tensor map")
        return encode_tensor_map(self._direct, words)


def encode_tensor_map(direct: Direct, words: Sequence[int]) -> bytes:
    """Return the 128 bytes of a CUtensorMap; ``words`` as shim/rare/tensor.c packs them.

    Not by cuda.bindings: its tensor maps lie where Python puts them, at multiples of 16 bytes, and
    the driver wants 64, by newer headers 128; nor does it give the strides of rank 1 an address.
    """
    room = (ctypes.c_uint64 * (2 * MAP_WORDS))()
    start = -ctypes.addressof(room) % MAP_SIZE
    made = (ctypes.c_uint64 * MAP_WORDS).from_buffer(room, start)
    if words[0] == REPLACE:
        made[:] = words[2:18]
        direct.call("cuTensorMapReplaceAddress", made, words[1])
        return bytes(made)
    tiled, wide = words[0] == TILED, words[0] == WIDE
    base, arrays = (8, 4) if tiled else (13, 3) if wide else (10, 5)
    if not 1 <= words[2] <= RANK_MAX or len(words) != base + arrays * RANK_MAX:
        raise RemoteProtocolError("malformed tensor map")

    def array(kind: Any, start: int) -> Any:
        # Always RANK_MAX long, so that each has an address at every rank.
        return (kind * RANK_MAX)(*words[base + start : base + start + RANK_MAX])

    sizes, strides = array(ctypes.c_uint64, 0), array(ctypes.c_uint64, 5)
    head = (made, words[1], words[2], words[3], sizes, strides)
    if tiled:
        shape = (array(ctypes.c_uint32, 10), array(ctypes.c_uint32, 15))
        direct.call("cuTensorMapEncodeTiled", *head, *shape, *words[4:8])
    elif wide:
        shape = (words[11], words[12], words[8], words[9], array(ctypes.c_uint32, 10))
        direct.call("cuTensorMapEncodeIm2colWide", *head, *shape, words[4], words[10], *words[5:8])
    else:
        corners = (array(ctypes.c_int32, 10), array(ctypes.c_int32, 15))
        shape = (*corners, words[8], words[9], array(ctypes.c_uint32, 20))
        direct.call("cuTensorMapEncodeIm2col", *head, *shape, *words[4:8])
    return bytes(made)
