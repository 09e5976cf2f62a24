"""How much of this server's disk the files of workers take, measured at a bounded cost.

A worker may nest directories, make files by the million, and change what is being measured; what
it deletes and holds is found by ``unnamed_files``. So directories are walked by descriptors, no
link is followed, and a walk ends after so many entries or ``DEPTH_MAX`` levels: no compiler leaves
as many, and what was not seen counts as ``UNSEEN_SIZE``. As long as the disk and the shared memory
have lost little since the last walk, nothing is walked; otherwise one worker after the other, those
of all users in turn, for as long as one measurement may take. Meanwhile the last sizes count.
"""

import os
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ENTRY_COUNT_MAX = 50_000
SHARED_ENTRY_COUNT_MAX = 4 * ENTRY_COUNT_MAX
"""Of all users in shared memory together, the machine's other ones among them."""
LEASE_ENTRY_COUNT_MAX = 4 * ENTRY_COUNT_MAX
"""Of all workers of a lease together."""
WALK_S = 0.1
"""Of the processor, for the walks of one measurement; a longer one takes from the next."""
DEPTH_MAX = 32
ENTRY_SIZE = 4096
"""Least bytes of a directory entry: its inode and its part of the directory."""

UNSEEN_SIZE = 1 << 50
"""Size of files too deeply nested or too many to count: above any bound."""

PROCESS_COUNT_MAX = 4096
"""Above a lease's limit (``sandbox.PROCESS_COUNT_MAX``)."""

GROWTH_MIN = 64 << 20
INODES_MIN = 4096
WALKS_SKIPPED_MAX = 30
"""Measurements without a walk, in file systems that hardly changed."""

ROOM_MIN, ROOM_PART = 1 << 30, 1 / 50
"""Below these bytes, and below this part of a file system, its room is short."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANYBODY = _SHARED = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Where one worker can leave files."""

    worker: int
    directories: tuple[Path, ...]
    user: int = -1  # whose files in shared memory are this worker's; -1: nobody's
    lease: int = -1  # by its uid; -1: not known
    name: str = ""  # of the pool's user


class _FileSystem:
    """How full a file system was when it was walked last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used = self._inodes = 0
        self._now = 0, 0
        self.size = self.left = 0

    def has_grown(self) -> bool:
        """Look at it, and return whether it is fuller than at the last walk by something."""
        found = os.statvfs(self._path)
        self.size, self.left = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        inodes = found.f_files - found.f_ffree
        self._now = used, inodes
        if used - self._used >= GROWTH_MIN or inodes - self._inodes >= INODES_MIN:
            return True
        # What was deleted makes room that may be filled again.
        self._used, self._inodes = min(used, self._used), min(inodes, self._inodes)
        return False

    def is_walked(self) -> None:
        """Take note that it is walked as it was at the last look."""
        self._used, self._inodes = self._now


class WorkerFiles:
    """Measures the files of workers below one directory, and in shared memory. Not thread-safe."""

    def __init__(self, base: Path) -> None:
        """Measure in the file system of ``base``."""
        self._base = base
        self._disk = _FileSystem(base)
        self._systems = [self._disk]
        if SHARED_MEMORY.is_dir():
            self._systems.append(_FileSystem(SHARED_MEMORY))
        self._skipped = WALKS_SKIPPED_MAX
        self._sizes: dict[int, int] = {}
        self._entries: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._due: list[int] = []  # workers to be walked, and what is shared
        self._turns: dict[str, int] = {}  # when each user's was walked last, as a number
        self._left_s = 0.0

    def measure(
        self, places: Sequence[Place], unnamed: Mapping[int, int]
    ) -> tuple[dict[int, int], int, int]:
        """Return the bytes of each worker's files, of the whole file system, and free. Blocks.

        Args:
            places: of the workers.
            unnamed: bytes of files that no directory shows, as they are now, by worker. What one
                has deleted since the last walk had a name then, and does not count twice.
        """
        self._skipped += 1
        grown = [system.has_grown() for system in self._systems]
        if (
            self._skipped > WALKS_SKIPPED_MAX
            or any(grown)
            or lacking(self._disk.size, self._disk.left)
        ):
            for system in self._systems:
                system.is_walked()
            self._skipped = 0
            everything = (_SHARED, *(place.worker for place in places))
            self._due += [each for each in everything if each not in self._due]
        self._walk({place.worker: place for place in places}, unnamed)
        entries = Counter[int]()
        for place in places:
            entries[place.lease] += self._entries.get(place.worker, 0)
        found: dict[int, int] = {}
        for place in places:
            size = self._sizes.get(place.worker, 0) + self._shared.get(place.user, 0)
            found[place.worker] = max(size, unnamed.get(place.worker, 0))
            if place.lease >= 0 and entries[place.lease] > LEASE_ENTRY_COUNT_MAX:
                found[place.worker] += UNSEEN_SIZE
        return found, self._disk.size, self._disk.left

    def _walk(self, places: Mapping[int, Place], unnamed: Mapping[int, int]) -> None:
        """Walk the workers that are due, starting with the user walked longest ago."""
        self._left_s = min(self._left_s, 0.0) + WALK_S
        self._sizes, self._entries = (
            {worker: each for worker, each in kept.items() if worker in places}
            for kept in (self._sizes, self._entries)
        )
        names = {worker: place.name for worker, place in places.items()} | {_SHARED: ""}
        self._turns = {name: self._turns.get(name, 0) for name in names.values()}
        self._due = [each for each in self._due if each in names]
        while self._due and self._left_s > 0:
            began = time.thread_time()
            worker = min(self._due, key=lambda each: self._turns[names[each]])
            self._due.remove(worker)
            self._turns[names[worker]] = 1 + max(self._turns.values())
            if worker == _SHARED:
                users = {place.user for place in places.values() if place.user >= 0}
                self._shared = sizes_by_user(SHARED_MEMORY, users) if users else {}
            else:
                seen = [looked(path) for path in places[worker].directories]
                self._entries[worker] = sum(count for _, count in seen)
                self._sizes[worker] = sum(size for size, _ in seen) + unnamed.get(worker, 0)
            self._left_s -= time.thread_time() - began

    def device(self) -> int:
        """Return the device of the file system in which is measured."""
        return self._base.stat().st_dev


def lacking(whole: int, left: int) -> int:
    """Return the bytes that a file system is short of; 0 if it has room."""
    return max(0, min(ROOM_MIN, int(whole * ROOM_PART)) - left)


def looked(path: Path) -> tuple[int, int]:
    """Return the bytes of a directory, and how many entries were seen.

    It is ``UNSEEN_SIZE`` or more when not all of it can be seen.
    """
    walk = _Walk((_ANYBODY,), ENTRY_COUNT_MAX)
    try:
        walk.take(path, None, _ANYBODY, 0)
    except _EndlessError:
        walk.give_up(_ANYBODY)
    return walk.sizes()[_ANYBODY], walk.counts[_ANYBODY]


def sizes_by_user(path: Path, users: Collection[int]) -> dict[int, int]:
    """Return the bytes of each user's files in a directory, which others may use as well.

    They count for their owner whoever's directory has them. Where there are more entries than are
    looked at, each user with a fair part of them counts ``UNSEEN_SIZE``: somebody else makes one.
    """
    walk = _Walk(users, SHARED_ENTRY_COUNT_MAX)
    try:
        walk.take(path, None, _ANYBODY, 0)
    except _EndlessError:
        for user in users:
            if walk.counts[user] * (len(users) + 1) >= SHARED_ENTRY_COUNT_MAX:
                walk.give_up(user)
    return walk.sizes()


class _EndlessError(Exception):
    """There is more than anybody needs."""


class _Walk:
    """One walk through a directory; one descriptor is open for each level."""

    def __init__(self, users: Iterable[int], entries: int) -> None:
        self._sizes = dict.fromkeys(users, 0)
        self.counts = dict.fromkeys(self._sizes, 0)
        self._unseen: set[int] = set()
        self._left = entries

    def sizes(self) -> dict[int, int]:
        """Return the bytes of each user."""
        unseen = self._unseen
        return {user: size + UNSEEN_SIZE * (user in unseen) for user, size in self._sizes.items()}

    def give_up(self, user: int) -> None:
        """Take note that not all of a user's files can be seen."""
        self._unseen.add(user)

    def take(self, name: str | Path, parent: int | None, owner: int, depth: int) -> None:
        try:
            if depth > DEPTH_MAX:
                self.give_up(owner)
                return
            directory = os.open(name, _FLAGS, dir_fd=parent)
        except FileNotFoundError:
            return  # It has gone.
        except OSError:  # It is closed to its own user.
            self.give_up(owner)
            return
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
        is_directory = stat.S_ISDIR(found.st_mode)
        owner = _ANYBODY if _ANYBODY in self._sizes else found.st_uid
        if owner in self._sizes:
            # A file of the host's is linked to by many workers, and is on the disk once.
            each = max(ENTRY_SIZE, found.st_blocks * 512) // max(1, found.st_nlink)
            self._sizes[owner] += ENTRY_SIZE if is_directory else each
            self.counts[owner] += 1
            if self.counts[owner] > ENTRY_COUNT_MAX:
                self.give_up(owner)
        if is_directory:
            self.take(name, parent, owner, depth + 1)


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
