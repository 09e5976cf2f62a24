"""Control groups for leases (cgroup v2): resource limits of each, and one way to kill all.

Below the server's own group there is one for each lease, and in it one for each of its workers,
which holds all that the worker starts. When they want the processors, all leases together weigh as
much as the server, and each lease as much as another. Only a server whose group is delegated to it,
or that is root, can make them. A group with processes hands no controllers down, so the server's
move into a group below. Where other programs are in there as well, as in a session of a terminal,
the leases' groups are beside the server's own. Even then the controllers may belong to another
program, and the kernel may be too old to kill a group: the host goes on without what is missing.
"""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.pool.model.ids import LeaseId

MOUNTS, MEMBERSHIP = Path("/proc/self/mountinfo"), Path("/proc/self/cgroup")
PREFIX = "gpupool-"
SERVER_GROUP = f"{PREFIX}server"
"""The server's processes are in there, where its own group hands controllers down."""

CONTROLLERS = ("cpu", "memory", "pids")
CONTROLLERS_BESIDE = ("memory", "pids")
"""In a group that has others' groups below: these would share the processors in another way."""

TASK_COUNT_MAX = 2048
"""As ``sandbox.PROCESS_COUNT_MAX``, which holds for a uid: threads count."""

KILL_TIMEOUT_S = 2.0
"""A killed process ends within milliseconds, unless it hangs in the kernel."""

_POLL_S = 0.005
_MOVE_COUNT = 3
"""A process may start another one while they are moved."""


@dataclass(slots=True)
class WorkerGroup:
    """The group of one worker, inside of that of its lease."""

    path: Path

    def kill(self) -> bool:
        """Kill all that is in it and remove it; return whether nothing is left. Blocks."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        try:
            while not self._is_empty():
                (self.path / "cgroup.kill").write_text("1")
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_S)
        except OSError:
            return False  # For one, before Linux 5.14 a group cannot be killed.
        self.remove()
        return True

    def remove(self) -> None:
        """Remove it, which must be empty, and its lease's if that is empty too."""
        with contextlib.suppress(OSError):  # Others of the lease run.
            self.path.rmdir()
            self.path.parent.rmdir()

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel has killed a process of the lease for its memory."""
        try:
            text = (self.path.parent / "memory.events").read_text()
        except OSError:
            return False
        counts = dict(line.split() for line in text.splitlines())
        return counts.get("oom_kill", "0") != "0"

    def _is_empty(self) -> bool:
        return "populated 0" in (self.path / "cgroup.events").read_text().splitlines()


class LeaseCgroups:
    """The groups of one host's leases."""

    def __init__(self, base: Path, controllers: frozenset[str]) -> None:
        """Use ``base`` as the parent of groups with these controllers."""
        self._base = base
        self.controllers = controllers
        self._homes: dict[LeaseId, Path] = {}
        self._lock = threading.Lock()

    @staticmethod
    def make(
        mounts: Path = MOUNTS, membership: Path = MEMBERSHIP, *, siblings: Collection[int] = ()
    ) -> "LeaseCgroups | None":
        """Make the group of this process's leases; None where that cannot be done.

        Args:
            mounts: as proc_pid_mountinfo(5) has it.
            membership: as cgroups(7) has it.
            siblings: other processes of the same server, which are in its group.
        """
        try:
            own = own_group(mounts.read_text(), membership.read_text())
            if own is None:
                return None
            for each in (own, own.parent):
                _sweep(each)
            base, names = _make_base(own, siblings)
        except OSError:
            return None
        return LeaseCgroups(base, frozenset(_hand_down(base, names)))

    def hold(self, pid: int) -> WorkerGroup | None:
        """Put a worker and its future children into a separate group; None if that fails.

        Done while it starts, because the kernel takes milliseconds to move a process.
        """
        worker = WorkerGroup(self._base / f"lease-{pid}" / f"worker-{pid}")
        try:
            worker.path.mkdir(parents=True)
            _move(pid, worker.path)
        except OSError:
            worker.remove()
            return None
        return worker

    def join(self, lease: LeaseId, worker: WorkerGroup, memory: int) -> None:
        """Make a worker's group that of its lease, or move it into that; bound the lease. Blocks.

        Args:
            lease: whose worker it is.
            worker: as ``hold`` returned it.
            memory: bytes of this machine's memory that all its workers may have.

        Raises:
            OSError: when that cannot be done.
        """
        with self._lock:
            homes = {one: home for one, home in self._homes.items() if home.exists()}
            home = homes.setdefault(lease, worker.path.parent)
            self._homes = homes
            if home != worker.path.parent:
                place = home / worker.path.name
                place.mkdir()
                _move(int(place.name.removeprefix("worker-")), place)
                worker.remove()
                worker.path = place
            self.bound(worker, memory)
            if "pids" in self.controllers:
                (home / "pids.max").write_text(str(TASK_COUNT_MAX))

    def bound(self, worker: WorkerGroup, memory: int) -> None:
        """Bound the memory of a worker's lease; raise OSError where that cannot be done."""
        if "memory" not in self.controllers:
            return
        home = worker.path.parent
        (home / "memory.max").write_text(str(memory))
        with contextlib.suppress(OSError):  # The kernel counts no swap.
            (home / "memory.swap.max").write_text(str(memory))

    def close(self) -> None:
        """Remove its empty groups; a later server removes the rest."""
        _remove(self._base)


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def own_group(mounts: str, membership: str) -> Path | None:
    """Return the directory of this process's control group, if it is of version 2.

    Args:
        mounts: as proc_pid_mountinfo(5) has it.
        membership: as cgroups(7) has it.
    """
    inside = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), None)
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        root, place = mount.split()[3:5]
        if inside is None or kind.split()[:1] != ["cgroup2"]:
            continue
        path = Path(inside)
        if ".." not in path.parts and path.is_relative_to(root):
            return Path(place) / path.relative_to(root)
    return None


def _make_base(own: Path, siblings: Collection[int]) -> tuple[Path, list[str]]:
    """Make the parent control group of leases; return it, and the controllers that it has."""
    place, names = _place_for(own, siblings)
    prefix = f"{PREFIX}{os.getpid()}-"
    if place != own:
        with contextlib.suppress(OSError):  # It is not ours.
            return Path(tempfile.mkdtemp(prefix=prefix, dir=place)), names
        names = []
    return Path(tempfile.mkdtemp(prefix=prefix, dir=own)), names


def _place_for(own: Path, siblings: Collection[int]) -> tuple[Path, list[str]]:
    """Return the parent for the leases' base group, and the controllers that it hands down."""
    names = _controllers_of(own, CONTROLLERS)
    if names and not _may_hand_down(own):
        with contextlib.suppress(OSError):  # Others' processes are in there.
            _move_down(own, siblings)
    for place, wanted in ((own, names), (own.parent, CONTROLLERS_BESIDE)):
        if _may_hand_down(place) and (found := _hand_down(place, _controllers_of(place, wanted))):
            return place, found
    return own, []


def _may_hand_down(group: Path) -> bool:
    """Return whether a group contains no processes directly, or is the root group.

    The kernel lets one with processes hand down two of the controllers all the same. Groups below
    it then take only threads, so no worker could be moved there (cgroups(7), "threaded").
    """
    if not (group / "cgroup.type").exists():
        return True
    try:
        return not (group / "cgroup.procs").read_text().strip()
    except OSError:
        return False


def _controllers_of(group: Path, wanted: Sequence[str]) -> list[str]:
    """Return the wanted controllers that a group has; none if it is no control group."""
    try:
        there = (group / "cgroup.controllers").read_text().split()
    except OSError:
        return []
    return [name for name in wanted if name in there]


def _hand_down(group: Path, names: Sequence[str]) -> list[str]:
    """Let the groups below have these controllers; return those that they could get."""
    found: list[str] = []
    for name in names:
        # One by one: that of the processors is refused where a real-time process runs.
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{name}")
            found.append(name)
    return found


def _move_down(own: Path, siblings: Collection[int] = ()) -> None:
    """Put our processes into a group below ``own``, unless others are there as well.

    Ours are this one, its siblings, and what they have started: under systemd, the signer.
    """
    first = {os.getpid(), *siblings}
    below = own / SERVER_GROUP
    for _ in range(_MOVE_COUNT):
        there = {int(pid) for pid in (own / "cgroup.procs").read_text().split()}
        if not all(_comes_from(pid, first) for pid in there):
            raise OSError("the group is others' as well")
        below.mkdir(exist_ok=True)
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                _move(pid, below)


def _comes_from(pid: int, first: Collection[int]) -> bool:
    """Return whether a process is one of ``first``, or has one of them above it."""
    while pid > 1 and pid not in first:
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return True  # It has ended, or the kernel will refuse to move it.
        pid = int(text.rpartition(")")[2].split()[1])
    return pid in first


def _sweep(own: Path) -> None:
    """Remove the groups left by servers that have ended."""
    for path in own.glob(f"{PREFIX}[0-9]*-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            _remove(path)


def _remove(base: Path) -> None:
    """Remove empty groups: two levels below ``base``, and ``base``."""
    for path in (*base.glob("*/*/"), *base.glob("*/"), base):
        with contextlib.suppress(OSError):  # Something still runs there, or it is a file.
            path.rmdir()
