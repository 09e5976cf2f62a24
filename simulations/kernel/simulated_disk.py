"""A disk that forgets unsynced data, tears a write, fills up, fails, rots and is slow."""

import errno
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

PAGE_BYTES = 4096
"""Bytes that reach the platter as one piece; a power loss may fall between any two pieces."""

Operation = Literal[
    "read", "append", "overwrite", "write", "sync", "rename", "remove", "sync_directory", "reserve"
]
"""A method of ``consensus.disk.Disk`` that may fail."""


class PowerLostError(BaseException):
    """The power failed in the middle of a file operation.

    Not an ``Exception``: nothing in the server may catch it, as nothing survives a power loss.
    """


@dataclass(slots=True)
class _File:
    """One file: the content that programs read, and the content after a power loss."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty_from: int | None = None  # the first byte in which the two may differ
    forgotten: bool = False  # they differ, and the kernel believes that they do not
    torn: int = 0  # bytes of a refused write at the end, over which the next one writes

    def touch(self, offset: int) -> None:
        self.dirty_from = offset if self.dirty_from is None else min(self.dirty_from, offset)

    def sync(self) -> None:
        if self.dirty_from is not None:
            # What was forgotten before stays as it was on the platter: a hole in the middle.
            missing = self.dirty_from - len(self.durable)
            self.durable += bytes(max(missing, 0))
            self.durable[self.dirty_from :] = self.content[self.dirty_from :]
            self.dirty_from = None

    def forget_dirty(self) -> None:
        """Take unsynced data for synced: it is there until the power is lost, and then lost."""
        self.dirty_from, self.forgotten = None, True

    def put(self, content: bytes | bytearray) -> None:
        """Hold ``content``, in the cache and on the platter."""
        self.content, self.durable = bytearray(content), bytearray(content)
        self.dirty_from, self.forgotten = None, False

    def keep(self, share: float) -> None:
        """Let the first ``share`` of the unsynced bytes be on the platter, and no other."""
        start = self.dirty_from if self.dirty_from is not None else len(self.durable)
        unsynced = self.content[start:]
        kept = round(share * len(unsynced))
        rest = self.durable[start + kept :] if kept < len(unsynced) else b""
        hole = bytes(max(start - len(self.durable), 0))
        self.put(self.durable[:start] + hole + unsynced[:kept] + rest)

    def flip(self, position: int, bit: int) -> None:
        """Flip one bit on the platter, and in the cache, which reads its page again some time."""
        self.durable[position] ^= 1 << bit
        # What was written since is in the cache alone, and a sync will mend the platter.
        written = self.dirty_from is not None and position >= self.dirty_from
        if not written and position < len(self.content):
            self.content[position] ^= 1 << bit

    def lose_power(self, random: Random) -> None:
        """Let each unsynced page, and the last one even in part, reach the platter or not."""
        if self.dirty_from is None:
            if self.forgotten:
                self.content, self.forgotten = bytearray(self.durable), False
            return
        start, self.forgotten = self.dirty_from, False
        # The size is metadata of its own: it may be the old one, the new one, or in between.
        sizes = (len(self.durable), len(self.content))
        size = random.choice((*sizes, random.randint(min(sizes), max(sizes))))
        page = start // PAGE_BYTES * PAGE_BYTES
        result = bytearray(self.durable[:size]).ljust(size, b"\0")
        while page < size:
            begin, end = max(page, start), min(page + PAGE_BYTES, size)
            if random.random() < 0.5:
                if random.random() < 0.2:
                    end = random.randint(begin, end)  # torn within the page
                piece = self.content[begin:end]
                result[begin : begin + len(piece)] = piece
            page += PAGE_BYTES
        self.content, self.durable, self.dirty_from = bytearray(result), result, None


@dataclass(slots=True)
class _Failure:
    """An error that one kind of operation is going to raise."""

    error: int
    at: int  # the count of that operation
    lasting: bool


class SimulatedDisk:
    """``consensus.disk.Disk`` in memory, shared by all incarnations of one server.

    ``latency_s`` adds up how long the operations since the last ``take_latency`` took; whoever
    runs the server lets that much time pass before anything leaves it.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._files: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        # Old name, new name, file: a rename is one entry, because it is atomic.
        self._directory_log: list[tuple[str | None, str | None, _File | None]] = []
        self._latency_s = 0.0
        self.sync_latency_s = 0.0
        """The duration of one sync, in seconds."""
        self.full = False
        """Every write raises ENOSPC."""
        self.broken = False
        """Every sync raises EIO, and may or may not have written something."""
        self.power_fails_after: int | None = None
        """The power fails at that many more operations that write; None for never."""
        self.unsynced_kept: float | None = None
        """The share of unsynced data that the next power loss leaves; None to draw it.

        With a share, a sync in which the power fails has done nothing."""
        self.counts: Counter[Operation] = Counter()
        """How often each operation was asked for."""
        self._failing: dict[Operation, _Failure] = {}

    # --- consensus.disk.Disk ----------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Return the names of all files, sorted."""
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        """Return a file's whole content."""
        self._begin("read", writes=False)
        return bytes(self._file(name).content)

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of a file."""
        self._begin("append")
        file = self._file(name)
        if file.torn:
            del file.content[-file.torn :]
            file.torn = 0
        file.touch(len(file.content))
        if self.power_fails_after == 0:
            file.content += data
            self._fail_power()
        if self.full:
            # The kernel takes what fits; the rest is refused.
            file.torn = self._random.randint(0, len(data))
            file.content += data[: file.torn]
            raise OSError(errno.ENOSPC, "No space left on device")
        file.content += data

    def write(self, name: str, data: bytes) -> None:
        """Create a file, or replace its content."""
        self._begin("write")
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = _File()
            self._directory_log.append((None, name, file))
        file.content = bytearray()
        file.touch(0)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.content += data
        if self.power_fails_after == 0:
            self._fail_power()

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Replace bytes within a file, which needs no room."""
        self._begin("overwrite")
        file = self._file(name)
        file.touch(offset)
        file.content[offset : offset + len(data)] = data
        if self.power_fails_after == 0:
            self._fail_power()

    def sync(self, name: str) -> None:
        """Make a file's content durable."""
        self._begin("sync")
        self._latency_s += self.sync_latency_s
        file = self._file(name)
        if self.power_fails_after == 0:
            if self.unsynced_kept is None and self._random.random() < 0.5:
                file.sync()  # it had finished, and only the answer is lost
            self._fail_power()
        if self.broken:
            # Linux takes pages that it could not write for clean: the next sync has nothing to do,
            # and succeeds (Rebello et al., Can applications recover from fsync failures?, 2020).
            if self._random.random() < 0.5:
                file.forget_dirty()
            raise OSError(errno.EIO, "Input/output error")
        file.sync()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        self._begin("rename")
        file = self._file(old)
        del self._files[old]
        self._files[new] = file
        self._directory_log.append((old, new, file))
        if self.power_fails_after == 0:
            self._fail_power()

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._begin("remove")
        self._file(name)
        del self._files[name]
        self._directory_log.append((name, None, None))
        if self.power_fails_after == 0:
            self._fail_power()

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""
        self._begin("sync_directory")
        self._latency_s += self.sync_latency_s
        if self.power_fails_after == 0:
            self._fail_power()
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        self._write_directory(len(self._directory_log))

    def reserve(self, name: str, size: int) -> None:
        """Make sure that ``name`` occupies space, which is not modelled by the byte."""
        self._begin("reserve", writes=False)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if name not in self._files:
            self._files[name] = _File()
            self._directory_log.append((None, name, self._files[name]))

    # --- the simulation's side --------------------------------------------------------------------

    def take_latency(self) -> float:
        """Return how long the operations since the last call took, in seconds."""
        latency_s, self._latency_s = self._latency_s, 0.0
        return latency_s

    def lose_power(self) -> None:
        """Forget unsynced data, page by page, and directory entries from some point on.

        With ``unsynced_kept``, the first part of the unsynced bytes of each file stays, and of the
        directory's unsynced entries; nothing is drawn.
        """
        share, count = self.unsynced_kept, len(self._directory_log)
        self._write_directory(
            self._random.randint(0, count) if share is None else round(share * count)
        )
        self._directory_log.clear()
        self._files = dict(self._durable_names)
        for name in sorted(self._files):
            if share is None:
                self._files[name].lose_power(self._random)
            else:
                self._files[name].keep(share)
        self.power_fails_after = self.unsynced_kept = None
        self._latency_s = 0.0

    def fail(
        self, operation: Operation, error: int, *, nth: int = 1, lasting: bool = False
    ) -> None:
        """Let the ``nth`` of the next ``operation`` raise ``error``, and do nothing.

        Args:
            operation: the kind of operation.
            error: a number of ``errno``.
            nth: which one of those to come; the others work.
            lasting: whether those after it fail too, until ``repair``.
        """
        self._failing[operation] = _Failure(error, self.counts[operation] + nth, lasting)

    def repair(self) -> None:
        """Make room, and end all faults."""
        self.full = self.broken = False
        self.sync_latency_s = 0.0
        self._failing.clear()

    # --- what happens to the platter, between two starts of a server ------------------------------

    def image(self) -> dict[str, bytes]:
        """Return a copy of all files as programs read them, as a backup makes it."""
        return {name: bytes(file.content) for name, file in sorted(self._files.items())}

    def restore(self, image: Mapping[str, bytes]) -> None:
        """Replace everything by a copy that was made earlier, or elsewhere."""
        self._files = {name: _File() for name in image}
        for name, content in image.items():
            self._files[name].put(content)
        self._durable_names = dict(self._files)
        self._directory_log.clear()

    def clone(self, random: Random) -> "SimulatedDisk":
        """Return another disk with the same files: a second server may start from it."""
        other = SimulatedDisk(random)
        other.restore(self.image())
        return other

    def put(self, name: str, content: bytes | bytearray) -> None:
        """Let an existing file have another content, on the platter too."""
        self._file(name).put(content)

    def erase(self, name: str) -> None:
        """Let a file be gone, on the platter too."""
        file = self._file(name)
        self._write_directory(len(self._directory_log))
        del self._files[name]
        self._durable_names = {n: f for n, f in self._durable_names.items() if f is not file}

    def lose_tail(self, name: str, size: int) -> None:
        """Let the last ``size`` bytes of a file be gone, though a sync had confirmed them."""
        content = self._file(name).content
        self.put(name, bytes(content[: max(len(content) - size, 0)]))

    def flip(self, name: str, position: int, bit: int = 0) -> None:
        """Flip one bit of a file that is on the platter."""
        self._file(name).flip(position, bit)

    def rot(self, random: Random, *, bits: int = 1) -> list[tuple[str, int]]:
        """Flip ``bits`` bits of durable data, drawn from ``random``; return the bytes hit."""
        sizes = {name: len(file.durable) for name, file in sorted(self._durable_names.items())}
        hit: list[tuple[str, int]] = []
        for _ in range(bits if sum(sizes.values()) else 0):
            position = random.randrange(sum(sizes.values()))
            for name, size in sizes.items():
                if position < size:
                    self._durable_names[name].flip(position, random.randrange(8))
                    hit.append((name, position))
                    break
                position -= size
        return hit

    # --- inside -----------------------------------------------------------------------------------

    def _file(self, name: str) -> _File:
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return file

    def _begin(self, operation: Operation, *, writes: bool = True) -> None:
        self.counts[operation] += 1
        if self.power_fails_after is not None:
            if self.power_fails_after <= 0:
                self._fail_power()  # nothing works until the machine has power again
            if writes:
                self.power_fails_after -= 1
        failure = self._failing.get(operation)
        if failure is not None and self.counts[operation] >= failure.at:
            if not failure.lasting:
                del self._failing[operation]
            raise OSError(failure.error, os.strerror(failure.error))

    def _fail_power(self) -> None:
        raise PowerLostError

    def _write_directory(self, count: int) -> None:
        for old, new, file in self._directory_log[:count]:
            if old is not None:
                self._durable_names.pop(old, None)
            if new is not None and file is not None:
                self._durable_names[new] = file
        del self._directory_log[:count]
