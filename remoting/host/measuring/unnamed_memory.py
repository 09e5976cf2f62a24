"""Memory of workers that no process shows as its own: files in memory without a name.

What is written into a memfd, or into a file of ``/dev/shm`` that was deleted, is memory as long as
a descriptor or a mapping holds it, and counts for a process only where that has touched a mapping
of it. So descriptors and mappings are looked through, and each file counts once.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType

from gpupool.remoting.host.measuring.worker_files import (
    DESCRIPTOR_COUNT_MAX,
    UNSEEN_SIZE,
)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
MAPS_SIZE_MAX = 32 << 20
"""Bytes of lists of mappings that one look reads, of 100 each; PyTorch's workers have 0.5 MB."""
DETAILS_SIZE_MAX = 128 << 20
"""Bytes of ``smaps`` that one look reads; what the rest has mapped counts whole."""
EXACT_MIN = 16 << 20
"""Below this sum it counts whole: what processes have mapped of it takes longer to find out."""

_MAPPING = re.compile(
    r"^([0-9a-f]+-[0-9a-f]+) \S+ [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) +\S.*$", re.MULTILINE
)
_RESIDENT = re.compile(r"^Rss: +(\d+) kB$", re.MULTILINE)
_DELETED = " (deleted)"

File = tuple[int, int]
"""A device and an inode."""


class _EndlessError(Exception):
    """There is more than anybody needs."""


def unnamed_memory(families: Mapping[int, Sequence[int]], uid: int, device: int) -> dict[int, int]:
    """Return the bytes of files in memory that no directory shows, by worker; each counts once.

    What is mapped and was touched is left out: it is in ``host_memory.resident`` of its process.
    Only root sees the descriptors and the mappings of a worker.

    Args:
        families: the processes of each worker of a lease.
        uid: theirs. A file that their client made is the client's memory.
        device: of the file system whose deleted files count as files.
    """
    seen: set[File] = set()
    looks: dict[int, _Look] = {}
    for worker, pids in families.items():
        looks[worker] = look = _Look(uid, _devices() - {device}, seen)
        with suppress(_EndlessError):
            for pid in pids:
                look.take(pid)
    mapped: Mapping[File, int] = {}
    if sum(look.size() for look in looks.values()) >= EXACT_MIN:
        mapped = _mapped([pid for pids in families.values() for pid in pids], seen)
    return {worker: size for worker, look in looks.items() if (size := look.size(mapped))}


class _Look:
    """One look at the files of a user that processes hold."""

    def __init__(self, uid: int, devices: Collection[int], seen: set[File]) -> None:
        self.unseen = 0
        self._sizes: dict[File, int] = {}
        self._uid, self._devices, self._seen = uid, devices, seen
        self._left, self._maps_left = DESCRIPTOR_COUNT_MAX, MAPS_SIZE_MAX

    def size(self, mapped: Mapping[File, int] = MappingProxyType({})) -> int:
        """Return the bytes of what was found, less those that are counted elsewhere."""
        each = (max(0, size - mapped.get(file, 0)) for file, size in self._sizes.items())
        return self.unseen + sum(each)

    def take(self, pid: int) -> None:
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
        self.unseen = UNSEEN_SIZE
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
                and found.st_dev in self._devices
                and found.st_uid == self._uid
                and file not in self._seen
            ):
                self._seen.add(file)
                self._sizes[file] = found.st_blocks * 512


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
            text = _read(f"/proc/{pid}/smaps", left)
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
