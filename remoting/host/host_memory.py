"""The use of the server's own memory by workers, and a lease's limit of it.

Memory that a client asks for is bounded call by call, for each worker. The driver allocates more,
for images of modules, nodes of graphs and events, and reports no sizes; so the sum is watched.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USE = Path("/sys/fs/cgroup/memory.current")
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
RESIDENT = re.compile(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)
"""Anonymous and shared memory, including swap. Mapped files do not count: all workers share their
libraries."""
_ENDED = re.compile(r"^State:\s+[ZX]", re.MULTILINE)
_THREAD_COUNT_MAX = 4096
"""Above a lease's limit (``sandbox.PROCESS_COUNT_MAX``)."""


def machine_memory() -> int:
    """Return the bytes that this machine, or this container, has."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CGROUP_LIMIT.read_text().strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdigit() else whole


def available() -> int:
    """Return the bytes that this machine, or this container, can still give to programs."""
    found = _AVAILABLE.search(Path("/proc/meminfo").read_text())
    left = 1024 * int(found.group(1)) if found else 0
    try:
        limit, used = (each.read_text().strip() for each in (CGROUP_LIMIT, CGROUP_USE))
    except OSError:
        return left
    return min(left, max(0, int(limit) - int(used))) if limit.isdigit() else left


def resident(pid: int) -> int:
    """Return the bytes of memory and swap that a process has; 0 where that cannot be seen."""
    text = _status(pid)
    if _ENDED.search(text):
        text = _status(thread_of(pid))
    return 1024 * sum(map(int, RESIDENT.findall(text)))


def thread_of(pid: int) -> int:
    """Return the id of a live thread of a process, by which /proc shows the process as well.

    That of the process is its first thread's. Once that has ended, the kernel shows nothing of the
    memory and the files by it, though others may go on (proc_pid_task(5)).
    """
    if not _ENDED.search(_status(pid)):
        return pid
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task")[:_THREAD_COUNT_MAX]:
            text = _status(int(name))
            if text and not _ENDED.search(text):
                return int(name)
    return pid


def _status(thread: int) -> str:
    """Return ``/proc/TID/status`` of a thread; empty if there is none."""
    try:
        return Path(f"/proc/{thread}/status").read_text(errors="replace")
    except OSError:
        return ""


def floor(machine: int, most: int, workers: int) -> int:
    """Return the machine memory that even the smallest partition may use.

    Args:
        machine: bytes of the machine's memory, of which one lease has a quarter at most so.
        most: bytes on a machine that has enough.
        workers: bytes for all its workers, which they need by themselves.
    """
    return min(most, machine // 4) + workers


def allowance(machine: int, partition: int, gpus: int, floor: int) -> int:
    """Return a lease's limit, at least ``floor``: its share of the machine is that of the GPUs.

    Args:
        machine: bytes of the machine's memory.
        partition: bytes that the lease has of the GPUs here.
        gpus: bytes of all GPUs here.
        floor: bytes that even the smallest partition may have.
    """
    return max(floor, machine * partition // max(gpus, 1))


def maps(process: int, part: str) -> bool:
    """Return whether a process maps a file with ``part`` in its path; False if unreadable."""
    try:
        return part in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False
