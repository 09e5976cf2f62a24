"""Closed CBOR in pieces: the same bytes as ``closed_cbor`` makes of the whole.

The CBOR library codes a value in one call, in which no other thread runs: 150 ms for the table of a
pool of 1,000 servers. So a long list is coded some rows at a time.
"""

from collections.abc import Iterable, Iterator

from gpupool.consensus.protocol import closed_cbor
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.pieces import ROW_COUNT, Field, Rows

_LIST, _MAP = 4, 5
_SIZES = {24: 1, 25: 2, 26: 4, 27: 8}


def map_head(count: int) -> bytes:
    """Return the beginning of a map of ``count`` pairs."""
    return _head(_MAP, count)


def encode_fields(fields: Iterable[Field]) -> Iterator[bytes]:
    """Return the pairs of a map, in pieces; ``map_head`` comes before them."""
    for name, encoded in fields:
        value = encoded()
        if not isinstance(value, Rows):
            yield closed_cbor.encode(name) + closed_cbor.encode(value)
            continue
        yield closed_cbor.encode(name) + _head(_LIST, value.length)
        for piece in value.pieces:
            yield closed_cbor.encode(piece)[len(_head(_LIST, len(piece))) :]


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    code = next(code for code, size in _SIZES.items() if number < 1 << 8 * size)
    return bytes([major << 5 | code]) + number.to_bytes(_SIZES[code], "big")


class PieceReader:
    """Reads CBOR from its beginning, as far as it is told to."""

    def __init__(self, data: bytes) -> None:
        """Begin at the first byte of ``data``."""
        self._data = data
        self._at = 0
        self._decoder = closed_cbor.SequenceDecoder(data)

    def map_length(self) -> int:
        """Return the number of pairs of the map that begins here; raises for anything else."""
        length = self._length(_MAP)
        if length is None:
            raise RemoteProtocolError("a CBOR value cannot be read", why="a map is expected")
        return length

    def list_length(self) -> int | None:
        """Return the length of the list that begins here, or None when there is none."""
        return self._length(_LIST)

    def value(self) -> Plain:
        """Return the value that begins here."""
        return self.values(1)[0]

    def text(self) -> str:
        """Return the text that begins here, such as a key; raises for anything else."""
        value = self.value()
        if not isinstance(value, str):
            raise RemoteProtocolError("a key is not text")
        return value

    def values(self, count: int) -> list[Plain]:
        """Return the ``count`` values that begin here."""
        values, self._at = self._decoder.decode(self._at, count)
        return values

    def rows(self, length: int) -> Iterator[list[Plain]]:
        """Return the ``length`` values that begin here, in pieces."""
        for begin in range(0, length, ROW_COUNT):
            yield self.values(min(ROW_COUNT, length - begin))

    def finish(self) -> None:
        """Raise ``RemoteProtocolError`` unless all was read."""
        if self._at != len(self._data):
            raise RemoteProtocolError("a CBOR value is followed by other bytes")

    def _length(self, major: int) -> int | None:
        first = self._data[self._at : self._at + 1]
        if not first:
            raise RemoteProtocolError("a CBOR value cannot be read", why="it is cut short")
        if first[0] >> 5 != major:
            return None
        code = first[0] & 31
        size = _SIZES.get(code, 0)
        if code > 27:
            raise RemoteProtocolError("a CBOR value cannot be read", why="its length is unknown")
        number = self._data[self._at + 1 : self._at + 1 + size]
        length = int.from_bytes(number, "big") if size else code
        if len(number) < size or length > len(self._data):
            raise RemoteProtocolError("a CBOR value cannot be read", why="it is cut short")
        self._at += 1 + size
        return length
