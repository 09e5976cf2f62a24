"""Files of workers without a name, in memory and on the disk, which no directory shows.

What is written into a memfd, or into a file that was deleted, takes memory or the disk as long as
a descriptor or a mapping holds it. Memory counts for a process only where that has touched a
mapping of it. So descriptors and mappings are looked through, and each file counts once.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpupool.remoting.host import host_memory
from gpupool.remoting.host.measuring.worker_files import SHARED_MEMORY, UNSEEN_SIZE

DESCRIPTOR_COUNT_MAX = 20_000
"""Of all processes of a worker, and mappings of deleted files with them."""
MAPS_SIZE_MAX = 32 << 20
"""Bytes of lists of mappings that one look reads, of 100 each; PyTorch's workers have 0.5 MB."""
DETAILS_SIZE_MAX = 128 << 20
"""Most bytes of ``smaps`` read in one look; the mappings of further processes count whole."""
EXACT_MIN = 16 << 20
"""Below this many bytes the files count whole: subtracting the mapped part takes longer."""

_MAPPING = re.compile(
    r"^([0-9a-f]+-[0-9a-f]+) \S+ [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) +\S.*$", re.MULTILINE
)
_RESIDENT = re.compile(r"^Rss: +(\d+) kB$", re.MULTILINE)
_DELETED = " (deleted)"

File = tuple[int, int]
"""A device and an inode."""


class _EndlessError(Exception):
    """There is more than anybody needs."""


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Bytes of one worker's files without a name; ``UNSEEN_SIZE`` or more where some are unseen."""

    memory: int
    disk: int


def unnamed_files(
    families: Mapping[int, Sequence[int]], uid: int, device: int
) -> dict[int, Unnamed]:
    """Return the bytes of files that no directory shows, by worker; each counts once.

    What is mapped of memory and was touched is left out: it is in ``host_memory.resident`` of its
    process. Only root sees the descriptors and the mappings of a worker.

    Args:
        families: the processes of each worker of a lease.
        uid: theirs. A file that their client made is the client's.
        device: of the workers' directories, whose files are on the disk whatever it is.
    """
    seen: set[File] = set()
    looks: dict[int, _Look] = {}
    for worker, pids in families.items():
        looks[worker] = look = _Look(uid, _devices() - {device}, seen)
        with suppress(_EndlessError):
            for pid in pids:
                look.take(host_memory.thread_of(pid))
    mapped: Mapping[File, int] = {}
    if sum(look.memory() for look in looks.values()) >= EXACT_MIN:
        mapped = _mapped([pid for pids in families.values() for pid in pids], seen)
    return {worker: Unnamed(look.memory(mapped), look.disk) for worker, look in looks.items()}


class _Look:
    """One look at the files of a user that processes hold."""

    def __init__(self, uid: int, in_memory: Collection[int], seen: set[File]) -> None:
        self.disk = self._unseen = 0
        self._sizes: dict[File, int] = {}  # of those in memory
        self._uid, self._in_memory, self._seen = uid, in_memory, seen
        self._left, self._maps_left = DESCRIPTOR_COUNT_MAX, MAPS_SIZE_MAX

    def memory(self, mapped: Mapping[File, int] = MappingProxyType({})) -> int:
        """Return the bytes of in-memory files, less those counted elsewhere."""
        each = (max(0, size - mapped.get(file, 0)) for file, size in self._sizes.items())
        return self._unseen + sum(each)

    def take(self, pid: int) -> None:
        self._take_file(f"/proc/{pid}/exe")  # It holds a file without any mapping of it.
        with suppress(OSError):  # It has ended, or may not be looked into.
            for name in os.listdir(f"/proc/{pid}/fd"):
                self._take_file(f"/proc/{pid}/fd/{name}")
        with suppress(OSError):
            text = _read(f"/proc/{pid}/maps", self._maps_left)
            self._maps_left -= len(text)
            for line in text.splitlines():
                if line.endswith(_DELETED) and (found := _MAPPING.match(line)):
                    place, major, minor, inode = found.groups()
                    file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                    if file not in self._seen:
                        self._take_file(f"/proc/{pid}/map_files/{_plain(place)}")
        if self._maps_left <= 0:
            self._give_up()

    def _give_up(self) -> None:
        self._unseen = UNSEEN_SIZE
        self.disk += UNSEEN_SIZE
        raise _EndlessError

    def _take_file(self, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            self._give_up()
        with suppress(OSError):  # It has been closed meanwhile.
            found = os.stat(path)
            file = found.st_dev, found.st_ino
            if (
                stat.S_ISREG(found.st_mode)
                and not found.st_nlink
                and found.st_uid == self._uid
                and file not in self._seen
            ):
                self._seen.add(file)
                if found.st_dev in self._in_memory:
                    self._sizes[file] = found.st_blocks * 512
                else:
                    self.disk += found.st_blocks * 512


def _read(path: str, most: int) -> str:
    """Return the beginning of a file of the kernel, of ``most`` bytes at most."""
    with open(path, "rb") as file:
        return file.read(max(0, most)).decode("ascii", "replace")


def _plain(place: str) -> str:
    """Return a range of addresses as ``map_files`` names it: without leading zeros."""
    return "-".join(f"{int(part, 16):x}" for part in place.split("-"))


def _mapped(processes: Iterable[int], files: Collection[File]) -> dict[File, int]:
    """Return how many bytes of these files are in the processes' own memory, all together."""
    found: dict[File, int] = {}
    left = DETAILS_SIZE_MAX
    for pid in processes:
        with suppress(OSError):
            text = _read(f"/proc/{host_memory.thread_of(pid)}/smaps", left)
            left -= len(text)
            for mapping in _MAPPING.finditer(text):
                _, major, minor, inode = mapping.groups()
                file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                resident = _RESIDENT.search(text, mapping.end()) if file in files else None
                if resident is not None:
                    found[file] = found.get(file, 0) + 1024 * int(resident.group(1))
    return found


@cache
def _devices() -> frozenset[int]:
    """Return the devices of files in memory: the kernel's own, and that of shared memory."""
    found: set[int] = set()
    with suppress(OSError):
        found.add(SHARED_MEMORY.stat().st_dev)
    with suppress(OSError, AttributeError):
        descriptor = os.memfd_create("gpupool-look", os.MFD_CLOEXEC)
        found.add(os.fstat(descriptor).st_dev)
        os.close(descriptor)
    return frozenset(found)
