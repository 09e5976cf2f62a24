"""The users that workers run as: one for each lease on this server, while the server is root.

Otherwise all workers have the host's uid, and only what a process can give up by itself separates
them (``sandbox``). Workers of one lease share a uid because CUDA opens an event of another process
only if both have the same: it looks for the event's file under its own uid.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.host import orphan_reaper
from gpupool.remoting.host.remove_tree import remove_tree

UID_BASE = 52_000
"""Above the uids of distributions for people and services, below the ranges of container tools."""

UID_COUNT = 4_000

UID_LOCKS = Path("/run/gpupool-uids")
"""One lock file per uid in use, so that two servers on one machine never share one."""

KILL_TIMEOUT_S = 10.0

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
MEMORY_PREFIX = "gpupool-"


class UidPool:
    """Uids not in use by another live worker on this machine, of any server."""

    def __init__(
        self, base: int = UID_BASE, count: int = UID_COUNT, locks: Path = UID_LOCKS
    ) -> None:
        self._base = base
        self._count = count
        self._locks = locks
        self._held: dict[int, int] = {}

    def take(self) -> int:
        """Return a free uid, which is this process's until ``give_back`` or its end.

        Raises:
            GpupoolError: when there is none left.
        """
        for uid in range(self._base, self._base + self._count):
            if self._hold(uid):
                return uid
        raise GpupoolError("no worker can be started", why=f"all {self._count} uids are in use")

    def _hold(self, uid: int) -> bool:
        if uid in self._held:
            return False
        self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._locks / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._held[uid] = lock
        return True

    def sweep(self, clear: Callable[[int], object]) -> None:
        """Call ``clear`` with each uid that a killed server has left files of in shared memory."""
        found: set[int] = set()
        with contextlib.suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # It has gone meanwhile.
                    found.add(entry.stat(follow_symlinks=False).st_uid)
        for uid in sorted(found.intersection(range(self._base, self._base + self._count))):
            if self._hold(uid):
                clear(uid)
                self.give_back(uid)

    def give_back(self, uid: int) -> None:
        """Let others have ``uid``; every process of it must be gone."""
        os.close(self._held.pop(uid))


@dataclass(eq=False, slots=True)
class LeaseUser:
    """The user of one lease, which its workers here become."""

    lease: LeaseId
    uid: int
    running: set[int] = field(default_factory=set[int])
    """Pids of its workers that have not ended; read by threads that clean up after others."""

    holders: int = 0  # workers that got it and are not buried yet

    memory: Path | None = None
    """The directory that its workers see as ``/dev/shm``; None: they see the machine's own."""

    network: int = -1
    """Descriptor of the network namespace that its workers share; -1: they share none."""

    def own_memory(self) -> None:
        """Make a ``/dev/shm`` for its workers, if it has none yet; raise OSError if it cannot."""
        if self.memory is None:
            path = Path(tempfile.mkdtemp(prefix=MEMORY_PREFIX, dir=SHARED_MEMORY))
            os.chown(path, self.uid, self.uid)
            self.memory = path

    def own_network(self, pid: int | str) -> None:
        """Let its workers share the network of a process, if they have none yet.

        ``pid``: of one of them, or "self" for the machine's own.
        """
        if self.network >= 0:
            return
        with contextlib.suppress(OSError):  # It takes CAP_SYS_PTRACE.
            self.network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Forget the network."""
        if self.network >= 0:
            os.close(self.network)
            self.network = -1

    def clean_up(self, pid: int, *, killed: bool) -> bool:
        """Remove all that the ended worker ``pid`` has left; return whether nothing is left of it.

        ``killed`` says that its control group is empty already, which no process can leave.
        Processes of the lease's other workers stay. After the last worker nothing of the user is
        left, so that the next lease with this uid finds no memory of this one. Blocks.
        """
        gone = killed or kill_processes_of(self.uid, self.running)
        if self.running and self.memory is not None:
            remove_shared_memory(self.uid, pid, self.memory)
        remove_shared_memory(self.uid, pid if self.running else None)
        return gone


class LeaseUsers:
    """The user of each lease. Not thread-safe: one thread owns it."""

    def __init__(self, pool: UidPool, clear: Callable[[int], bool] | None = None) -> None:
        """Take uids of ``pool``; ``clear`` kills a uid's processes and says if nothing is left."""
        self._pool = pool
        self._clear = clear or clear_user
        self._users: dict[LeaseId, LeaseUser] = {}
        self._left: deque[int] = deque()  # uids of ended leases of which something was left

    def take(self, lease: LeaseId, pid: int) -> LeaseUser:
        """Return the user that the worker ``pid`` is to become.

        Raises:
            GpupoolError: when there is no uid left.
            OSError: when none can be had.
        """
        self._look_again()
        user = self._users.get(lease)
        if user is None:
            user = self._users[lease] = LeaseUser(lease, self._pool.take())
            remove_shared_memory(user.uid, None)  # of a server that was killed
        user.running.add(pid)
        user.holders += 1
        return user

    def ended(self, user: LeaseUser, pid: int) -> None:
        """Note that a worker has ended; after the last one, the lease's next gets another user.

        The cleaning up after the last one kills every process of the user.
        """
        user.running.discard(pid)
        if not user.running and self._users.get(user.lease) is user:
            del self._users[user.lease]

    def give_back(self, user: LeaseUser, *, gone: bool) -> None:
        """Take note that a worker is buried; its uid is free if nothing of its lease is left."""
        user.holders -= 1
        if not user.holders:
            user.close()
            if gone:
                self._pool.give_back(user.uid)
            else:
                self._left.append(user.uid)

    def _look_again(self) -> None:
        """Free the uid that has waited longest, if nothing of it is left by now.

        Thousands of killed processes need seconds for their end on a busy machine.
        """
        if not self._left:
            return
        uid = self._left.popleft()
        if self._clear(uid):
            self._pool.give_back(uid)
        else:
            self._left.append(uid)


def clear_user(uid: int) -> bool:
    """Kill the remaining processes of an ended lease's user; return whether nothing was left."""
    if not kill_processes_of(uid, rounds_max=1):
        return False
    remove_shared_memory(uid, None)
    return True


def processes_of(uid: int) -> dict[int, int]:
    """Return the live processes with real, effective or saved uid ``uid``: pid to parent."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # It ended meanwhile.
            status = (entry / "status").read_text(errors="replace")
            fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            zombie = fields.get("State", "").split()[:1] == ["Z"]
            if not zombie and str(uid) in fields.get("Uid", "").split()[:3]:
                found[int(entry.name)] = int(fields.get("PPid", "0"))
    return found


def without_worker(found: Mapping[int, int], running: Collection[int]) -> tuple[list[int], bool]:
    """Return the processes that descend from no running worker, and whether none is in doubt.

    A worker stays the ancestor of all that it starts (``sandbox.keep_descendants``). A parent that
    has just ended tells nothing: its children have another one by now.

    Args:
        found: processes of one uid, and their parents.
        running: pids of workers.
    """
    strays: list[int] = []
    sure = True
    for pid in found:
        at = pid
        while at in found and at not in running:
            at = found[at]
        if at in running:
            continue
        if at == 0 or orphan_reaper.start_time_of(at) is not None:
            strays.append(pid)
        else:
            sure = False
    return strays, sure


def kill_processes_of(uid: int, running: Collection[int] = (), *, rounds_max: int = 100) -> bool:
    """Kill the processes that a dead worker left under its uid; return whether all are gone.

    Args:
        uid: of its lease.
        running: pids of the other workers of that lease, which stay with all that they started.
            Each round reads them anew after it has listed the processes: a worker gets its uid
            only once it is among them.
        rounds_max: how often to look.
    """
    if not running:
        _kill_all_of(uid)
    for _ in range(rounds_max):
        strays, sure = without_worker(processes_of(uid), running)
        if not strays and sure:
            return True
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return False


def _kill_all_of(uid: int) -> None:
    """Kill all processes of a user by one call of the kernel, which none of them can outrun.

    ``kill(-1)`` signals all that the caller may signal, so the caller becomes that user. It spares
    the caller itself (kill(2)).
    """
    if uid < UID_BASE:
        return  # A mistake elsewhere must not end all that root or a person runs.
    command = ["/bin/sh", "-c", "kill -9 -1"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # Then they are looked for.
        subprocess.run(
            command,
            user=uid,
            group=uid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            timeout=KILL_TIMEOUT_S,
            check=False,
        )


def remove_shared_memory(uid: int, pid: int | None, directory: Path | None = None) -> None:
    """Remove CUDA's shared memory files of a process that has ended.

    Args:
        uid: whose files are removed, and nobody else's.
        pid: of the process; None: all that the user has there, from whichever program.
        directory: where; None: in the machine's.
    """
    if pid is not None and orphan_reaper.start_time_of(pid) is not None:
        return  # the pid is another's by now
    prefix = "" if pid is None else f"cuda.shm.{uid:x}.{pid:x}."
    with contextlib.suppress(OSError), os.scandir(directory or SHARED_MEMORY) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # Somebody else has removed it.
                if not entry.name.startswith(prefix):
                    continue
                if entry.stat(follow_symlinks=False).st_uid != uid:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(Path(entry.path))
                else:
                    os.unlink(entry.path)
