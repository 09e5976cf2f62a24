"""How much of this server's disk the files of workers take, measured at a bounded cost.

A worker may nest directories, make files by the million, change what is being measured, and delete
files that it holds open. So directories are walked by descriptors, no link is followed, and a walk
ends after ``ENTRY_COUNT_MAX`` entries or ``DEPTH_MAX`` levels: no compiler leaves as many, and what
was not seen counts as ``UNSEEN_SIZE``. As long as the file system has lost little since the last
walk, nothing is walked.
"""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ENTRY_COUNT_MAX = 50_000
DEPTH_MAX = 32
ENTRY_SIZE = 4096
"""What an entry takes at least: its inode and its part of a directory."""

UNSEEN_SIZE = 1 << 50
"""For what is nested or numerous beyond all use: it is more than any bound."""

PROCESS_COUNT_MAX = 4096
"""Above what a lease may have (``sandbox.PROCESS_COUNT_MAX``)."""

DESCRIPTOR_COUNT_MAX = 20_000
"""Looked at for files that were deleted while they are open."""

GROWTH_MIN = 64 << 20
INODES_MIN = 4096
WALKS_SKIPPED_MAX = 30
"""Measurements without a walk, in a file system that hardly changed."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    """Where one worker can leave files."""

    worker: int
    directories: tuple[Path, ...]
    processes: Callable[[], Iterable[int]]


class WorkerFiles:
    """Measures the files of workers below one directory. Not thread-safe."""

    def __init__(self, base: Path) -> None:
        """Measure in the file system of ``base``."""
        self._base = base
        self._used = self._inodes = 0
        self._skipped = WALKS_SKIPPED_MAX
        self._sizes: dict[int, int] = {}

    def measure(self, places: Sequence[Place]) -> tuple[dict[int, int], int]:
        """Return the bytes of each worker's files, and those of the whole file system. Blocks."""
        found = os.statvfs(self._base)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        inodes = found.f_files - found.f_ffree
        self._skipped += 1
        if (
            self._skipped > WALKS_SKIPPED_MAX
            or used - self._used >= GROWTH_MIN
            or inodes - self._inodes >= INODES_MIN
        ):
            self._used, self._inodes, self._skipped = used, inodes, 0
            self._sizes = {place.worker: self._size(place) for place in places}
        else:
            # What was deleted makes room that may be filled again.
            self._used, self._inodes = min(used, self._used), min(inodes, self._inodes)
        return self._sizes, found.f_blocks * found.f_frsize

    def device(self) -> int:
        """Return the device of the file system in which is measured."""
        return self._base.stat().st_dev

    def _size(self, place: Place) -> int:
        size = sum(size_of(path) for path in place.directories)
        return size + deleted_size(place.processes(), self.device())


def size_of(path: Path) -> int:
    """Return the bytes of a directory; ``UNSEEN_SIZE`` or more when not all of it can be seen."""
    walk = _Walk()
    try:
        walk.take(path, None, 0)
    except FileNotFoundError:
        pass  # It has gone.
    except (OSError, _EndlessError):  # It has closed a directory to its own user, or is huge.
        return walk.size + UNSEEN_SIZE
    return walk.size


class _EndlessError(Exception):
    """There is more than anybody needs."""


class _Walk:
    """One walk through a directory; one descriptor is open for each level."""

    def __init__(self) -> None:
        self.size = 0
        self._left = ENTRY_COUNT_MAX

    def take(self, name: str | Path, parent: int | None, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise _EndlessError
        directory = os.open(name, _FLAGS, dir_fd=parent)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise _EndlessError
                    with suppress(FileNotFoundError):  # It has gone meanwhile.
                        self._take_entry(entry.name, directory, depth)
        finally:
            os.close(directory)

    def _take_entry(self, name: str, parent: int, depth: int) -> None:
        found = os.lstat(name, dir_fd=parent)
        if stat.S_ISDIR(found.st_mode):
            self.size += ENTRY_SIZE
            self.take(name, parent, depth + 1)
        else:
            # A file of the host's is linked to by many workers, and is on the disk once.
            self.size += max(ENTRY_SIZE, found.st_blocks * 512) // max(1, found.st_nlink)


def deleted_size(processes: Iterable[int], device: int) -> int:
    """Return the bytes of files that were deleted while these processes hold them open."""
    seen: dict[int, int] = {}
    left = DESCRIPTOR_COUNT_MAX
    for pid, _ in zip(processes, range(PROCESS_COUNT_MAX), strict=False):
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):  # It has ended, or may not be looked into.
            for name in os.listdir(folder):
                left -= 1
                if left < 0:
                    return sum(seen.values())
                with suppress(OSError):
                    found = os.stat(f"{folder}/{name}")
                    is_deleted = stat.S_ISREG(found.st_mode) and not found.st_nlink
                    if is_deleted and found.st_dev == device:
                        seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def family_of(pid: int) -> list[int]:
    """Return a process and its descendants, as many as are looked at."""
    found = [pid]
    for each in found:
        if len(found) > PROCESS_COUNT_MAX:
            break
        with suppress(OSError, ValueError):
            # The kernel lists those of each thread apart (proc_pid_task(5)).
            for thread in os.listdir(f"/proc/{each}/task"):
                children = Path(f"/proc/{each}/task/{thread}/children").read_text()
                found += [int(child) for child in children.split()]
    return found[:PROCESS_COUNT_MAX]
