"""A disk that forgets what was not synced, tears the last write, fills up, fails and is slow."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

PAGE_BYTES = 4096
"""What reaches the platter as one piece; a power loss may fall between any two."""


class PowerLostError(BaseException):
    """The power failed in the middle of a file operation.

    Not an ``Exception``: nothing in the server may catch it, as nothing survives a power loss.
    """


@dataclass(slots=True)
class _File:
    """One file: what programs read, and what would be found after a power loss."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty_from: int | None = None  # the first byte in which the two may differ
    forgotten: bool = False  # they differ, and the kernel believes that they do not

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
        """Take for written what is not: it is there until the power is lost, and then it is not."""
        self.dirty_from, self.forgotten = None, True

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
        """What one sync takes."""
        self.full = False
        """Every write raises ENOSPC."""
        self.broken = False
        """Every sync raises EIO, and may or may not have written something."""
        self.power_fails_after: int | None = None
        """The power fails at that many more operations that write; None for never."""
        self.operation_count = 0

    # --- consensus.disk.Disk ----------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Return the names of all files, sorted."""
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        """Return a file's whole content."""
        return bytes(self._file(name).content)

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of a file."""
        self._begin()
        file = self._file(name)
        file.touch(len(file.content))
        if self.power_fails_after == 0:
            file.content += data
            self._fail_power()
        if self.full:
            # The kernel takes what fits; the rest is refused.
            file.content += data[: self._random.randint(0, len(data))]
            raise OSError(errno.ENOSPC, "No space left on device")
        file.content += data

    def write(self, name: str, data: bytes) -> None:
        """Create a file, or replace its content."""
        self._begin()
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

    def sync(self, name: str) -> None:
        """Make a file's content durable."""
        self._begin()
        self._latency_s += self.sync_latency_s
        file = self._file(name)
        if self.power_fails_after == 0:
            if self._random.random() < 0.5:
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
        self._begin()
        file = self._file(old)
        del self._files[old]
        self._files[new] = file
        self._directory_log.append((old, new, file))
        if self.power_fails_after == 0:
            self._fail_power()

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._begin()
        self._file(name)
        del self._files[name]
        self._directory_log.append((name, None, None))
        if self.power_fails_after == 0:
            self._fail_power()

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""
        self._begin()
        self._latency_s += self.sync_latency_s
        if self.power_fails_after == 0:
            self._fail_power()
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        self._write_directory(len(self._directory_log))

    def reserve(self, name: str, size: int) -> None:
        """Make sure that ``name`` occupies space, which is not modelled by the byte."""
        del size
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
        """Forget what was not synced, page by page, and directory entries from some point on."""
        self._write_directory(self._random.randint(0, len(self._directory_log)))
        self._directory_log.clear()
        self._files = dict(self._durable_names)
        for name in sorted(self._files):
            self._files[name].lose_power(self._random)
        self.power_fails_after = None
        self._latency_s = 0.0

    def repair(self) -> None:
        """Make room and mend what was broken."""
        self.full = self.broken = False
        self.sync_latency_s = 0.0

    def _file(self, name: str) -> _File:
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return file

    def _begin(self) -> None:
        self.operation_count += 1
        if self.power_fails_after is not None:
            self.power_fails_after -= 1

    def _fail_power(self) -> None:
        raise PowerLostError

    def _write_directory(self, count: int) -> None:
        for old, new, file in self._directory_log[:count]:
            if old is not None:
                self._durable_names.pop(old, None)
            if new is not None and file is not None:
                self._durable_names[new] = file
        del self._directory_log[:count]
