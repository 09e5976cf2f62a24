"""Tensor maps: 128 bytes that the server's driver makes of their description."""

import ctypes
from collections.abc import Sequence
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver import table
from gpupool.remoting.driver.api import Api
from gpupool.remoting.driver.client import HEADER, REQUEST, SIGNED, WORDS, Area, Client


class Tensors(Area):
    """Encodes tensor maps."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.asked = {
            table.TENSOR_MAP: (0, self._tensor_map),
        }

    def _tensor_map(self) -> bytes:
        at = self.client.record_start + HEADER + REQUEST
        count = (self.client.record_end - at) // 8
        if not 18 <= count < len(WORDS):
            raise RemoteProtocolError("malformed tensor map")
        words = self.client.values(count, HEADER + REQUEST)
        return encode_tensor_map(self.api, words)


def encode_tensor_map(api: Api, words: Sequence[int]) -> bytes:
    """Return the 128 bytes of a CUtensorMap; ``words`` as shim/module.c packs them."""
    cu = api.cu
    rank = words[2]
    if words[0] == 2:
        tensor = cu.CUtensorMap()
        tensor.opaque = [cu.cuuint64_t(word) for word in words[2:18]]
        api.call("cuTensorMapReplaceAddress", tensor, words[1])
        return ctypes.string_at(tensor.getPtr(), 128)
    tiled = words[0] == 0
    base = 8 if tiled else 10
    if not 1 <= rank <= 5 or len(words) != base + (20 if tiled else 25):
        raise RemoteProtocolError("malformed tensor map")

    def narrow(start: int, count: int) -> list[Any]:
        return [cu.cuuint32_t(word) for word in words[base + start : base + start + count]]

    def wide(start: int, count: int) -> list[Any]:
        return [cu.cuuint64_t(word) for word in words[base + start : base + start + count]]

    def signed(start: int, count: int) -> list[int]:
        found = words[base + start : base + start + count]
        return [word - 2 * SIGNED if word >= SIGNED else word for word in found]

    tail = (
        api.enumerated("CUtensorMapInterleave", words[4]),
        api.enumerated("CUtensorMapSwizzle", words[5]),
        api.enumerated("CUtensorMapL2promotion", words[6]),
        api.enumerated("CUtensorMapFloatOOBfill", words[7]),
    )
    kind = api.enumerated("CUtensorMapDataType", words[1])
    head = (kind, cu.cuuint32_t(rank), words[3], wide(0, rank), wide(5, rank - 1))
    if tiled:
        made = api.call("cuTensorMapEncodeTiled", *head, narrow(10, rank), narrow(15, rank), *tail)
    else:
        made = api.call(
            "cuTensorMapEncodeIm2col",
            *head,
            signed(10, rank - 2),
            signed(15, rank - 2),
            cu.cuuint32_t(words[8]),
            cu.cuuint32_t(words[9]),
            narrow(20, rank),
            *tail,
        )
    return ctypes.string_at(made.getPtr(), 128)
