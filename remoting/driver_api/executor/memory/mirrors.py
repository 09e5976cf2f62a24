"""Mirrors: memory that kernels see in place of the client's, and the changes in it.

Both sides write, each its own bytes, and neither may undo what the other has written beside them
meanwhile. So what travels says which of its bytes are new.
"""

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from gpupool.pool.errors import RemoteProtocolError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Change = tuple[int, Bytes, bytes]
"""First byte, all bytes from there on, and a mask with a bit for each new byte; empty: all are
new."""

NO_PAGES = (0, 0)
MIRROR_BLOCK = 16 << 10
MIRROR_GAP = 64
MIRROR_TOGETHER = 1 << 20
"""So much is looked at together, and travels together, at most; and one block more."""

WORD = 8
PARTS_MAX = 32
"""Bytes of one write that lie together in no more parts are written part by part."""

MIRROR_RUNS_MAX = 16
"""Changes that are so far apart travel apart; but no more than so many for each block."""

MIRROR_LARGE = 16 << 20
MIRROR_PARTS = 8
"""A larger mirror is compared by so many threads: one takes 16 ms for 100 MiB on an H200's host."""

MEMCMP = ctypes.CDLL(None).memcmp
MEMCMP.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that the client wrote, from ``first`` on; the mask has a bit for each, or is empty."""

    first: int
    fresh: Bytes
    mask: Bytes

    @classmethod
    def of(cls, first: int, size: int, masked: int, data: bytes | bytearray) -> "Write":
        """Return a write as it travels: the bytes, and behind them a mask if they are masked.

        Raises:
            RemoteProtocolError: when there are more bytes or fewer.
        """
        if len(data) != Write.length(size, masked):
            raise RemoteProtocolError("malformed write to mapped memory")
        whole = np.frombuffer(data, np.uint8)
        return cls(first, whole[:size], whole[size:])

    @staticmethod
    def length(size: int, masked: int) -> int:
        """Return how many bytes a write has as it travels."""
        return size + (size + 7) // 8 * bool(masked)


def _merge(targets: tuple[Bytes, Bytes], write: Write) -> None:
    """Write the masked bytes, adjacent ones in one store, because kernels read concurrently."""
    fresh = write.fresh
    new = np.zeros(len(fresh) + 2, np.uint8)
    new[1:-1] = np.unpackbits(write.mask, count=len(fresh), bitorder="little")
    edges: list[int] = np.flatnonzero(new[1:] != new[:-1]).tolist()
    if len(edges) <= 2 * PARTS_MAX:
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            for target in targets:
                target[first:last] = fresh[first:last]
        return
    alone = new[1:-1].view(np.bool_)
    for width, kind in ((8, np.uint64), (4, np.uint32), (2, np.uint16), (1, np.uint8)):
        whole = len(fresh) // width * width
        words = alone[:whole].reshape(-1, width)
        all_new = words.all(axis=1)
        for target in targets:
            np.copyto(target[:whole].view(kind), fresh[:whole].view(kind), where=all_new)
        words[all_new] = False


@cache
def comparers() -> ThreadPoolExecutor:
    """Return the threads that compare large mirrors."""
    return ThreadPoolExecutor(MIRROR_PARTS)


@dataclass(slots=True)
class Mirror:
    """Pinned memory that kernels see in place of the client's."""

    address: int
    bytes: Bytes
    shadow: Bytes  # what the client has
    seen: int  # the address for kernels
    pages: tuple[int, int]  # that were mapped for it, if it lies at the client's address
    copy: int = field(init=False)  # the shadow's address

    def __post_init__(self) -> None:
        self.copy = self.shadow.ctypes.data

    def changes(self) -> Iterator[tuple[int, int]]:
        """Give the first byte of each change, and the one behind the last.

        Nearly always nothing has changed, which memcmp says fastest.
        """
        whole, part = len(self.bytes), len(self.bytes)
        if whole >= MIRROR_LARGE:
            part = -(-whole // MIRROR_PARTS // MIRROR_BLOCK) * MIRROR_BLOCK
        parts = [(at, min(at + part, whole)) for at in range(0, whole, part)]
        many = len(parts) > 1
        for (begin, end), same in zip(
            parts, (comparers().map if many else map)(self._is_same, parts), strict=True
        ):
            if not same:
                yield from self._changes_of(begin, end)

    def _is_same(self, part: tuple[int, int]) -> bool:
        first, end = part
        return MEMCMP(self.address + first, self.copy + first, end - first) == 0

    def _changes_of(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        # What copies brought has changed throughout: blocks in sequence are looked at together.
        first = begin
        for start in range(begin, end, MIRROR_BLOCK):
            stop = min(start + MIRROR_BLOCK, end)
            same = self._is_same((start, stop))
            if same and first < start:
                yield from self._runs(first, start, MIRROR_RUNS_MAX)
            if same:
                first = stop
            elif stop - first >= MIRROR_TOGETHER or stop == end:
                yield from self._runs(first, stop, MIRROR_RUNS_MAX)
                first = stop

    def take_changes(self) -> Iterator[Change]:
        """Yield the changes; from then on they count as sent to the client."""
        for first, last in self.changes():
            start = first - first % WORD
            # Kernels may write meanwhile.
            fresh, known = self.bytes[start:last].copy(), self.shadow[start:last]
            new = fresh != known
            count = int(np.count_nonzero(new))
            known[:] = fresh
            lead = 0 if new[: first - start].any() else first - start
            whole = len(fresh) - lead
            if count == whole or (count >= MIRROR_BLOCK and count >= whole * 15 // 16):
                # Of much that is nearly all new, some happens to be what was there.
                yield start + lead, fresh[lead:], b""
            elif count:
                yield start, fresh, np.packbits(new, bitorder="little").tobytes()

    def write(self, write: Write) -> None:
        """Apply a write of the client.

        Raises:
            RemoteProtocolError: when there is not so much memory.
        """
        end = write.first + len(write.fresh)
        if end > len(self.bytes):
            raise RemoteProtocolError("a write beyond mapped memory")
        both = (self.bytes[write.first : end], self.shadow[write.first : end])
        if len(write.mask):
            _merge(both, write)
        else:
            both[0][:] = both[1][:] = write.fresh

    def _runs(self, start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
        """Give the changes of some bytes; ``most`` for each block, or one of the whole block."""
        whole = (end - start) // WORD * WORD
        words = slice(start, start + whole)
        differ = self.bytes[words].view(np.uint64) != self.shadow[words].view(np.uint64)
        found = np.flatnonzero(differ) * WORD + start
        if whole < end - start:
            rest = slice(start + whole, end)
            if (self.bytes[rest] != self.shadow[rest]).any():
                found = np.append(found, start + whole)
        if not len(found):
            return  # a kernel has put back what was there
        ends = np.flatnonzero(np.diff(found) > MIRROR_GAP)
        blocks = (end - start + MIRROR_BLOCK - 1) // MIRROR_BLOCK
        if len(ends) >= most * blocks:
            if blocks > 1:
                for at in range(start, end, MIRROR_BLOCK):
                    yield from self._runs(at, min(at + MIRROR_BLOCK, end), most)
                return
            ends = ends[:0]
        firsts = [found[0], *found[ends + 1]]
        lasts = [*found[ends], found[-1]]
        for first, last in zip(firsts, lasts, strict=True):
            yield self._trimmed(int(first), min(int(last) + WORD, end))

    def _trimmed(self, first: int, last: int) -> tuple[int, int]:
        """Trim unchanged bytes at either end: the client may just have written them."""
        edge = slice(first, min(first + WORD, last))
        (head,) = np.nonzero(self.bytes[edge] != self.shadow[edge])
        edge = slice(max(first, last - WORD), last)
        (tail,) = np.nonzero(self.bytes[edge] != self.shadow[edge])
        if len(head) and len(tail):
            return first + int(head[0]), edge.start + int(tail[-1]) + 1
        return first, last
