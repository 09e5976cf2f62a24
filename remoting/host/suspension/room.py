"""Room of a server for its suspended leases' GPU memory: host memory first, then a disk."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.units import MIB
from gpupool.remoting.host.suspension import spilled_memory

MACHINE_KEEPS = 0.05
"""A part of the machine's memory that no suspension may take."""

DISK_KEEPS = 0.05
"""A part of the file system, likewise."""

SEALED = 1.01
"""Bytes in the file for a byte of memory, at most."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something of a suspended lease goes."""

    problem: str = ""  # why there is none; empty: there is one
    on_disk: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Says where there is room."""

    limit: int  # bytes of this machine's memory that all suspended leases may take
    memory_available: Callable[[], tuple[int, int]]  # bytes that this machine has left, and has
    folder: Path | None = None  # on the disk; None: nothing goes there

    def check(self) -> None:
        """Try the folder.

        Raises:
            GpupoolError: when no file can be made there, or a file there is in memory.
        """
        if self.folder is None:
            return
        file = self.open_file()
        try:
            device = os.fstat(file).st_dev
        finally:
            os.close(file)
        if _is_in_memory(device, Path("/proc/self/mountinfo").read_text()):
            raise GpupoolError(
                f"no memory of suspended programs can go to {self.folder}",
                why="its files are in this machine's memory (tmpfs)",
                hint="--suspend-spill wants a folder on a disk",
            )

    def open_file(self) -> int:
        """Return the descriptor of a file for one lease.

        Raises:
            GpupoolError: when there can be none.
        """
        assert self.folder is not None
        try:
            return spilled_memory.open_file(self.folder)
        except OSError as error:
            raise GpupoolError(
                f"no memory of suspended programs can go to {self.folder}",
                why=str(error.strerror),
                hint=f"--suspend-spill wants a folder of this server's user, which has the uid "
                f"{os.geteuid()}",
            ) from error

    def place(self, size: int, taken: int, moving: int) -> Place:
        """Return where the memory of a lease goes.

        Args:
            size: its bytes.
            taken: bytes of this machine's memory that suspended leases have.
            moving: bytes of leases that are being suspended, which come on top of what is used.
        """
        on_disk = False
        if taken + size > self.limit:
            if self.folder is None:
                left = max(0, self.limit - taken) // MIB
                return Place(
                    f"it has {size // MIB} MiB on its GPUs, and {left} MiB are left of the "
                    f"{self.limit // MIB} MiB that this server has for suspended programs "
                    "(--suspend-memory)"
                )
            if problem := self._no_disk(size):
                return Place(problem)
            on_disk = True
        # It goes through the memory in any case.
        return Place(self.no_memory(size, moving), on_disk)

    def no_memory(self, size: int, moving: int = 0) -> str:
        """Return why this machine's memory has no room for so many bytes now; empty: it has."""
        left, whole = self.memory_available()
        spare = left - int(whole * MACHINE_KEEPS) - moving
        if size and size > spare:
            return (
                f"it has {size // MIB} MiB on its GPUs, and this server has "
                f"{max(0, spare) // MIB} MiB of memory to spare"
            )
        return ""

    def _no_disk(self, size: int) -> str:
        assert self.folder is not None
        try:
            disk = os.statvfs(self.folder)
        except OSError as error:
            return f"{self.folder} cannot be used: {error.strerror}"
        keeps = int(disk.f_blocks * disk.f_frsize * DISK_KEEPS)
        free = max(0, disk.f_bavail * disk.f_frsize - keeps)
        if size * SEALED > free:
            return (
                f"it has {size // MIB} MiB on its GPUs, and {free // MIB} MiB are to spare in "
                f"{self.folder} (--suspend-spill)"
            )
        return ""


def _is_in_memory(device: int, mounts: str) -> bool:
    """Return whether files of a device are in memory.

    Args:
        device: as ``st_dev`` has it.
        mounts: the text of /proc/self/mountinfo (proc(5)).
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        place, _, kind = line.partition(" - ")
        if place.split()[2:3] == [number]:
            return kind.split()[:1] in (["tmpfs"], ["ramfs"])
    return False
