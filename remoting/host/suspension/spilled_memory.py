"""Memory of suspended workers on a disk: encrypted with keys that only this process has.

The driver keeps what a suspended process had on its GPUs in anonymous memory that it maps in that
process meanwhile: all of it in one area on an H200 (580.159.04). Nobody may touch it before it is
restored. So that area is found by what a process has mapped between its lock and its checkpoint.

    privileged helper                                   worker, in C (native/spilled.c)
    reads /proc/PID/mem, encrypts, writes
    says that an area goes               ->  makes it inaccessible, gives its pages back
    ... suspended ...
    says that it comes back              ->  makes it accessible
    reads, decrypts, writes /proc/PID/mem

Nothing is dropped before all is on the disk, so until then a failure costs nothing. A thread that
used such an area after all would end its worker, and compute nothing wrong. What the area may have
been merged with, a thread's stack or a heap, lies at its ends, and these stay in memory.

The file has no name. Its keys are of this process alone, and die with it.
"""

import errno
import itertools
import os
import re
import socket
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gpupool.pool.model.units import MIB
from gpupool.remoting.host import host_memory

AREA_MIN = 256 * MIB
"""Smallest newly mapped area that counts; a smaller one may be another thread's."""

MARGIN = 64 * MIB
"""At each end of an area: as large as the heap of a thread in glibc."""

PIECE = 4 * MIB
"""Encrypted at a time."""

SYNC_EVERY = 64 * MIB
"""So few bytes of a thread wait for the disk, where the server may have its journal."""

THREAD_COUNT = 4
"""While one waits for the disk, others encrypt and copy."""

LINE_TIMEOUT_S = 20.0
"""For a worker to give pages back: some 0.1 s for each GB."""

_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ 0 *")
_ORDER, _ANSWER = struct.Struct("=4Q"), struct.Struct("=Qq")
_DROP, _OPEN = 0, 1
_NONCE_SIZE, _TAG_SIZE = 12, 16
_GONE = "its worker ended meanwhile"


class SpillError(Exception):
    """Memory is not on the disk, or does not come back from it; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class Area:
    """Addresses of a process, as multiples of pages."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Return its bytes."""
        return self.end - self.start


def open_file(folder: Path) -> int:
    """Return the descriptor of a new file without a name.

    Raises:
        OSError: when there can be none in that folder.
    """
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    descriptor, name = tempfile.mkstemp(prefix=".gpupool-", dir=folder)
    os.unlink(name)
    return descriptor


def anonymous(pid: int) -> list[Area]:
    """Return the private memory of a process that is no file's, in order; nothing if it ended."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    found = filter(None, map(_MAPPED.fullmatch, lines))
    return [Area(int(each[1], 16), int(each[2], 16)) for each in found]


def mapped_since(before: Sequence[Area], after: Sequence[Area]) -> list[Area]:
    """Return the areas of ``after`` outside ``before``, without possible areas of other threads."""
    found: list[Area] = []
    for area in after:
        start = area.start
        for old in before:
            if old.end <= start or old.start >= area.end:
                continue
            found.append(Area(start, max(start, old.start)))
            start = old.end
        found.append(Area(start, max(start, area.end)))
    return [Area(a.start + MARGIN, a.end - MARGIN) for a in found if a.size >= AREA_MIN]


@dataclass(frozen=True, slots=True)
class _Piece:
    number: int  # from 0 on
    area: Area
    offset: int  # in the file

    @property
    def nonce(self) -> bytes:
        return self.number.to_bytes(_NONCE_SIZE, "big")

    @property
    def end(self) -> int:
        return self.offset + self.area.size + _TAG_SIZE


class SpilledMemory:
    """Memory of one worker on the disk. Everything here blocks."""

    def __init__(self, pid: int, line: socket.socket, file: int, offset: int) -> None:
        """Prepare; nothing is written before ``save``.

        Args:
            pid: of the worker, which is not reaped while this is used.
            line: to the worker's ``gpupool_spilled_serve``.
            file: a descriptor, which stays the caller's.
            offset: from where on the file is free.
        """
        self._pid, self._line = pid, line
        self._file = os.dup(file)
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._numbers = itertools.count(1)
        self._areas: list[Area] = []
        self._pieces: list[_Piece] = []
        self.end = offset  # of its bytes in the file

    @property
    def size(self) -> int:
        """Return the bytes that are on the disk, and not in memory."""
        return sum(area.size for area in self._areas)

    def save(self, areas: Iterable[Area]) -> None:
        """Write areas of the worker, which nothing uses; they stay in memory until ``drop``.

        Raises:
            SpillError: when that cannot be done; nothing has changed.
        """
        for number, area in enumerate(itertools.chain.from_iterable(map(_pieces, areas))):
            self._pieces.append(_Piece(number, area, self.end))
            self.end += area.size + _TAG_SIZE

        def save(memory: int, piece: _Piece) -> None:
            data = _read(memory, piece.area.size, piece.area.start)
            sealed = self._cipher.encrypt(piece.nonce, data, None)
            _write(self._file, sealed, piece.offset)

        self._on_threads(save, self._pieces, self._sync)

    def drop(self, areas: Sequence[Area]) -> None:
        """Make the worker release the pages of saved areas.

        Raises:
            SpillError: when it does not; ``bring_back`` undoes it.
        """
        before = host_memory.resident(self._pid)
        for area in areas:
            self._areas.append(area)
            self._say(_DROP, area)
        left = host_memory.resident(self._pid)
        # A program may have taken its worker over: it must not keep memory that nobody counts.
        if before - left < self.size // 2:
            raise SpillError("its worker did not give the memory back")

    def bring_back(self) -> None:
        """Load all dropped memory from the disk again.

        Raises:
            SpillError: when some of it is lost.
        """
        for area in self._areas:
            self._say(_OPEN, area)

        def load(memory: int, piece: _Piece) -> None:
            sealed = _read(self._file, piece.area.size + _TAG_SIZE, piece.offset)
            try:
                data = self._cipher.decrypt(piece.nonce, sealed, None)
            except InvalidTag as error:
                raise SpillError("what the disk has of it is damaged") from error
            _write(memory, data, piece.area.start)

        dropped = [
            piece
            for piece in self._pieces
            if any(area.start <= piece.area.start < area.end for area in self._areas)
        ]
        self._on_threads(load, dropped, lambda _some: None)
        self._areas.clear()

    def close(self) -> None:
        """Forget all of it; once the last one of a file does so, its room is free."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _on_threads(
        self,
        move: Callable[[int, _Piece], None],
        pieces: Sequence[_Piece],
        then: Callable[[Sequence[_Piece]], None],
    ) -> None:
        """Move pieces from or to the worker's memory, some by each thread at a time."""
        try:
            memory = os.open(f"/proc/{self._pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise SpillError(f"its memory cannot be read: {error.strerror}") from error

        def run(some: Sequence[_Piece]) -> None:
            for piece in some:
                move(memory, piece)
            then(some)

        count = SYNC_EVERY // PIECE
        parts = [pieces[at : at + count] for at in range(0, len(pieces), count)]
        threads = ThreadPoolExecutor(THREAD_COUNT, "spill")
        try:
            for _ in threads.map(run, parts):
                pass
        finally:
            threads.shutdown(cancel_futures=True)
            os.close(memory)

    def _sync(self, pieces: Sequence[_Piece]) -> None:
        """Flush the file to the disk, and drop its pages from the kernel's page cache."""
        start, end = pieces[0].offset, pieces[-1].end
        try:
            os.fdatasync(self._file)
            os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise SpillError(f"the disk says: {error.strerror}") from error

    def _say(self, what: int, area: Area) -> None:
        number = next(self._numbers)
        self._line.settimeout(LINE_TIMEOUT_S)
        try:
            self._line.sendall(_ORDER.pack(number, what, area.start, area.size))
            answer = b""
            while len(answer) < _ANSWER.size:
                some = self._line.recv(_ANSWER.size - len(answer))
                if not some:
                    raise SpillError(_GONE)
                answer += some
        except OSError as error:
            raise SpillError(f"its worker does not answer: {error}") from error
        said, result = _ANSWER.unpack(answer)
        if said != number or result:
            why = os.strerror(result) if said == number and result > 0 else "it makes no sense"
            raise SpillError(f"its worker does not give the memory back: {why}")


def _pieces(area: Area) -> Iterator[Area]:
    for start in range(area.start, area.end, PIECE):
        yield Area(start, min(start + PIECE, area.end))


def _read(descriptor: int, size: int, offset: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        try:
            done = os.preadv(descriptor, [view[at:]], offset + at)
        except OSError as error:
            raise SpillError(f"it cannot be read: {error.strerror}") from error
        if done == 0:
            raise SpillError(_GONE)
        at += done
    return data


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view, at = memoryview(data), 0
    while at < len(data):
        try:
            done = os.pwrite(descriptor, view[at:], offset + at)
        except OSError as error:
            raise SpillError(f"it cannot be written: {error.strerror}") from error
        if done == 0:
            raise SpillError(_GONE)
        at += done
