"""A minimal strict CBOR codec (RFC 8949) for the control messages of the array door.

Only definite lengths, no tags, text keys, 64-bit integers and 64-bit floats: the set that the
worker's strict decoder accepts, and nothing that could build a surprising object on this side.
"""

import struct
from typing import Any

MAX_DEPTH = 16
MAX_ITEMS = 1 << 20


class CborError(ValueError):
    """The bytes are not the CBOR that this protocol uses."""


def _head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes((major << 5 | value,))
    if value < 1 << 8:
        return bytes((major << 5 | 24, value))
    if value < 1 << 16:
        return struct.pack(">BH", major << 5 | 25, value)
    if value < 1 << 32:
        return struct.pack(">BI", major << 5 | 26, value)
    if value < 1 << 64:
        return struct.pack(">BQ", major << 5 | 27, value)
    raise CborError(f"integer {value} does not fit in 64 bits")


def _write(value: Any, out: list[bytes], depth: int) -> None:
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if depth > MAX_DEPTH:
        raise CborError("values are nested too deeply")
    if value is None:
        out.append(b"\xf6")
    elif value is True:
        out.append(b"\xf5")
    elif value is False:
        out.append(b"\xf4")
    elif isinstance(value, int):
        out.append(_head(0, value) if value >= 0 else _head(1, -1 - value))
    elif isinstance(value, float):
        out.append(struct.pack(">Bd", 0xFB, value))
    elif isinstance(value, str):
        data = value.encode("utf-8")
        out += (_head(3, len(data)), data)
    elif kind in (bytes, bytearray, memoryview):
        data = bytes(value)
        out += (_head(2, len(data)), data)
    elif kind in (list, tuple):
        items: Any = value
        out.append(_head(4, len(items)))
        for item in items:
            _write(item, out, depth + 1)
    elif kind in (dict,):
        pairs: Any = value
        out.append(_head(5, len(pairs)))
        for key, item in pairs.items():
            if not isinstance(key, str):
                raise CborError("keys must be text")
            _write(key, out, depth + 1)
            _write(item, out, depth + 1)
    else:
        raise CborError(f"a {kind.__name__} cannot be sent")


def encode(value: Any) -> bytes:
    """Return the CBOR of None, bool, int, float, str, bytes, list, tuple or dict."""
    out: list[bytes] = []
    _write(value, out, 0)
    return b"".join(out)


class _Reader:
    __slots__ = ("data", "items", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.items = 0

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise CborError("the message is cut short")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def argument(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise CborError("indefinite lengths are not allowed")
        size = 1 << (info - 24)
        value = int.from_bytes(self.take(size), "big")
        if value < (24, 1 << 8, 1 << 16, 1 << 32)[info - 24]:
            raise CborError("an integer is not in its shortest form")
        return value

    def read(self, depth: int) -> Any:
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            raise CborError("values are nested too deeply, or too many")
        initial = self.take(1)[0]
        major, info = initial >> 5, initial & 31
        if major == 7:
            return self._simple(info)
        if major == 6:
            raise CborError("tags are not allowed")
        argument = self.argument(info)
        if major == 0:
            return argument
        if major == 1:
            return -1 - argument
        if major == 2:
            return self.take(argument)
        if major == 3:
            return self.take(argument).decode("utf-8")
        if argument > len(self.data) - self.position:
            raise CborError("the message is cut short")
        if major == 4:
            return [self.read(depth + 1) for _ in range(argument)]
        return self._map(argument, depth)

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for _ in range(count):
            key = self.read(depth + 1)
            if not isinstance(key, str) or key in pairs:
                raise CborError("keys must be text, each once")
            pairs[key] = self.read(depth + 1)
        return pairs

    def _simple(self, info: int) -> Any:
        if info == 20:
            return False
        if info == 21:
            return True
        if info == 22:
            return None
        if info in (25, 26, 27):
            # The worker's encoder writes infinities and NaN in half precision.
            return struct.unpack((">e", ">f", ">d")[info - 25], self.take((2, 4, 8)[info - 25]))[0]
        raise CborError(f"simple value {info} is not allowed")


def decode(data: bytes) -> Any:
    """Return the one value that ``data`` holds; raise `CborError` for anything else."""
    reader = _Reader(bytes(data))
    try:
        value = reader.read(0)
    except UnicodeDecodeError as error:
        raise CborError("text is not UTF-8") from error
    if reader.position != len(reader.data):
        raise CborError("bytes are left over")
    return value
