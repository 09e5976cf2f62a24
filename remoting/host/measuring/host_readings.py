"""Linux's readings of the machine and of our processes, from /proc; blocks, so needs a thread.

A reading that is not to be had is None or absent: elsewhere than on Linux, all of them are.
"""

import os
import resource
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gpupool.pool.model.units import KIB
from gpupool.pool.telemetry import HostTelemetry
from gpupool.remoting.host.isolation.lease_cgroups import SERVER_GROUP
from gpupool.remoting.host.measuring.network_speed import speed_of

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STAT_FIELDS_AT = 3
"""Number of the first field behind the name in ``/proc/PID/stat``, see proc_pid_stat(5)."""

USER_FIELD, SYSTEM_FIELD = 14, 15
IDLE_FIELDS = (3, 4)
"""Of the line "cpu" in ``/proc/stat``: idle and waiting for disks."""

NETWORK_IN_FIELD, NETWORK_OUT_FIELD = 0, 8


class HostReader:
    """Reads one machine again and again: some readings are differences."""

    def __init__(
        self, folder: Path, interface: str, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        """Prepare.

        Args:
            folder: of the server's state, whose file system is measured.
            interface: that has the advertised address; empty: it is not known.
            proc: where the kernel tells of processes.
            sys: where it tells of devices.
        """
        self._folder = folder
        self._interface = interface
        self._proc = proc
        self._sys = sys
        self._cpu: tuple[int, int] | None = None  # ticks, and idle ones
        self._seen: dict[tuple[str, int], float] = {}  # seconds of each process
        self._ended: dict[str, float] = {}  # seconds of those that are gone

    def read(self, processes: Mapping[str, Iterable[int]]) -> HostTelemetry:
        """Read everything; ``processes`` has the ids by name."""
        memory = self._memory()
        network = self._network()
        disk = self._disk()
        limits = self._cgroup()
        pids = [(name, pid) for name, each in processes.items() for pid in each]
        return HostTelemetry(
            cpu_busy=self._cpu_busy(),
            memory_total=memory.get("MemTotal"),
            memory_available=memory.get("MemAvailable"),
            network_in=network[0] if network else None,
            network_out=network[1] if network else None,
            network_speed=speed_of(self._interface, self._sys) or None,
            disk_total=disk[0] if disk else None,
            disk_free=disk[1] if disk else None,
            resident=self._resident(pids),
            cpu_s=self._cpu_seconds(pids),
            descriptors=self._descriptors(),
            descriptors_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            disk_read_only=self._read_only(),
            network_mtu=self._mtu(),
            **limits,
        )

    def _text(self, *names: str) -> str:
        try:
            return self._proc.joinpath(*names).read_text(errors="replace")
        except OSError:
            return ""

    def _cpu_busy(self) -> float | None:
        words = self._text("stat").partition("\n")[0].split()
        if not words or words[0] != "cpu":
            return None
        # The last two are time of guests, which is in the first two as well.
        ticks = [int(word) for word in words[1:9]]
        whole, idle = sum(ticks), sum(ticks[each] for each in IDLE_FIELDS)
        before, self._cpu = self._cpu, (whole, idle)
        if before is None or whole <= before[0]:
            return None
        return round(min(max(1 - (idle - before[1]) / (whole - before[0]), 0.0), 1.0), 4)

    def _memory(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for line in self._text("meminfo").splitlines():
            name, _, value = line.partition(":")
            words = value.split()
            if name in ("MemTotal", "MemAvailable") and words:
                found[name] = int(words[0]) * KIB
        return found

    def _network(self) -> tuple[int, int] | None:
        for line in self._text("net", "dev").splitlines():
            name, colon, rest = line.partition(":")
            if colon and name.strip() == self._interface:
                words = rest.split()
                return int(words[NETWORK_IN_FIELD]), int(words[NETWORK_OUT_FIELD])
        return None

    def _disk(self) -> tuple[int, int] | None:
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return None
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def _read_only(self) -> bool:
        with suppress(OSError):
            return bool(os.statvfs(self._folder).f_flag & os.ST_RDONLY)
        return False

    def _mtu(self) -> int | None:
        with suppress(OSError, ValueError):
            if self._interface:
                path = self._sys / "class" / "net" / self._interface / "mtu"
                return int(path.read_text())
        return None

    def _cgroup(self) -> dict[str, int]:
        """Return the server cgroup's limits and use of memory and processes, where limited."""
        line = next((x for x in self._text("self", "cgroup").splitlines() if x[:3] == "0::"), "")
        if not line:
            return {}
        folder = self._sys / "fs" / "cgroup" / line[3:].lstrip("/")
        if folder.name == SERVER_GROUP:  # which has no limits of its own
            folder = folder.parent

        def number(name: str) -> int | None:
            with suppress(OSError, ValueError):  # without a limit it says "max"
                return int((folder / name).read_text())
            return None

        found: dict[str, int | None] = {}
        if (limit := number("memory.max")) is not None and (used := number("memory.current")):
            found |= {"memory_limit": limit, "memory_charged": max(0, used - _pages(folder))}
        if (most := number("pids.max")) is not None:
            found |= {"pids_max": most, "pids": number("pids.current")}
        return {name: value for name, value in found.items() if value is not None}

    def _resident(self, pids: Iterable[tuple[str, int]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, pid in pids:
            for line in self._text(str(pid), "status").splitlines():
                if line.startswith("VmRSS:"):
                    found[name] = found.get(name, 0) + int(line.split()[1]) * KIB
        return found

    def _cpu_seconds(self, pids: Iterable[tuple[str, int]]) -> dict[str, float]:
        """Return the time of processors by name, which never falls when a process ends."""
        seen: dict[tuple[str, int], float] = {}
        for key in pids:
            text = self._text(str(key[1]), "stat")
            words = text.rpartition(")")[2].split()  # behind the name, which may contain anything
            if len(words) > SYSTEM_FIELD - STAT_FIELDS_AT:
                ticks = [int(words[each - STAT_FIELDS_AT]) for each in (USER_FIELD, SYSTEM_FIELD)]
                seen[key] = sum(ticks) / TICKS_PER_S
        for key, before in self._seen.items():
            # A smaller number is that of another process, which got the same id.
            if seen.get(key, -1.0) < before:
                self._ended[key[0]] = self._ended.get(key[0], 0.0) + before
        self._seen = seen
        found = dict(self._ended)
        for (name, _pid), seconds in seen.items():
            found[name] = found.get(name, 0.0) + seconds
        return {name: round(seconds, 2) for name, seconds in found.items()}

    def _descriptors(self) -> int | None:
        with suppress(OSError):
            return sum(1 for _ in (self._proc / "self" / "fd").iterdir())
        return None


def _pages(folder: Path) -> int:
    """Return the bytes of a cgroup that are pages of files, which the kernel takes back."""
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
    return 0
