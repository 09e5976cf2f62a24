"""The confinement of a host's workers: properties wanted, properties in force, reasons for gaps.

A worker says which properties hold for it (``Ready.confinement``). Those that need the lease are
put in force here, by root, before the worker hears of the lease.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpupool.pool.errors import UsageError
from gpupool.pool.model.ids import GpuId
from gpupool.remoting.host.isolation import held_sockets, worker_mounts
from gpupool.remoting.host.isolation.held_sockets import Network
from gpupool.remoting.host.isolation.lease_cgroups import LeaseCgroups
from gpupool.remoting.protocol import mps_folders, worker_messages

LEASE_ADDRESSES, HELD = "lease-addresses", "held-connections"

PROPERTIES = {
    "network": "a network namespace without interfaces",
    "landlock-network": "a ban on TCP and on Unix sockets without paths, by Landlock",
    "folders": "a /run and a /tmp that hide other programs' Unix sockets",
    "devices": "a /dev with the standard device nodes and those of its GPUs alone",
    "shared-memory": "a /dev/shm of its lease's own",
    "system-calls": "a filter of system calls",
    "few-calls": "fewer system calls where all GPUs are emulated: no sockets of their own",
    HELD: "network connections limited to their peer",
    LEASE_ADDRESSES: "TCP with the servers of its lease alone, where NCCL needs it",
    "priority": "less of the processors than the server when both want them",
    "cgroup": "a control group of its lease's own",
}
"""Isolation properties that can be disabled by name, to find the one that breaks a program."""

VARIABLE = "GPUPOOL_UNCONFINED"
"""Names of ``PROPERTIES``, with commas between, that a server leaves out."""

BOUNDS = {"cpu": "cpu-weight"}
"""How workers claim a controller of their group that sets no limit."""

COMMON_NODES = (
    *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    *("/dev/nvidia-caps-imex-channels",),
)
"""Device nodes that are no single GPU's, which CUDA opens."""

PORTS_VARIABLE = "GPUPOOL_NCCL_PORTS"
"""First and last TCP port, as 32768-60999, for workers of leases over several servers."""

LOWEST_PORT, HIGHEST_PORT = 1024, 65535

NEEDED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Those that a server with GPUs has; where they are missing, they may be yet to be made."""


def wanted(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the properties that are to confine workers.

    Raises:
        UsageError: when the environment leaves out what does not exist.
    """
    words = environment.get(VARIABLE, "").replace(",", " ").split()
    for word in words:
        if word not in PROPERTIES:
            raise UsageError(
                f"{VARIABLE} names {word!r}",
                hint="known are " + ", ".join(PROPERTIES),
            )
    return frozenset(PROPERTIES) - frozenset(words)


def kernel_ports() -> tuple[int, int] | None:
    """Return the first and the last port that the kernel chooses, or nothing if it does not say."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return None


def nccl_networks(environment: Mapping[str, str]) -> tuple[Network, ...]:
    """Return the networks with which NCCL may speak beside the addresses of its lease's servers.

    Raises:
        UsageError: when the environment has something else there.
    """
    return held_sockets.networks(environment.get(held_sockets.VARIABLE, ""))


def nccl_ports(
    environment: Mapping[str, str],
    choice: Callable[[], tuple[int, int] | None] = kernel_ports,
) -> tuple[int, ...]:
    """Return the first and the last TCP port for leases over several servers, or nothing.

    ``choice`` says which ports the kernel chooses: NCCL listens on those.

    Raises:
        UsageError: when the environment has something else there, or lacks some of those ports.
    """
    text = environment.get(PORTS_VARIABLE, "").strip()
    if not text:
        return ()
    first, _, last = text.partition("-")
    ports = [int(word) for word in (first, last) if word.isascii() and word.isdigit()]
    if len(ports) != 2 or not LOWEST_PORT <= ports[0] <= ports[1] <= HIGHEST_PORT:
        hint = f"such as 32768-60999, between {LOWEST_PORT} and {HIGHEST_PORT}"
        raise UsageError(f"{PORTS_VARIABLE} is {text!r}", hint=hint)
    chosen = choice()
    if chosen is not None and not ports[0] <= chosen[0] <= chosen[1] <= ports[1]:
        first_chosen, last_chosen = chosen
        raise UsageError(
            f"{PORTS_VARIABLE} is {text!r}, on which NCCL cannot listen",
            why=f"the kernel chooses ports for it, which are {first_chosen} to {last_chosen}",
            hint=f"set {PORTS_VARIABLE}={first_chosen}-{last_chosen}",
        )
    return tuple(ports)


@dataclass(frozen=True, slots=True)
class Confinement:
    """The properties by which this host confines workers."""

    properties: frozenset[str] = frozenset(PROPERTIES)
    #: The device nodes of each GPU; None where those of a real one are not known.
    nodes: Mapping[GpuId, tuple[str, ...]] | None = field(
        default_factory=dict[GpuId, tuple[str, ...]]
    )
    #: Whether who starts workers is root, for the reasons of what is lacking.
    root: bool = field(default_factory=lambda: os.geteuid() == 0)
    ports: tuple[int, ...] = ()  # of ``PORTS_VARIABLE``
    loads: bool = False  # whether filters of packets can be loaded

    def asked(self, groups: LeaseCgroups | None) -> tuple[str, ...]:
        """Return the properties that a new worker must put in force itself."""
        not_asked = {"cgroup", "shared-memory", HELD}
        if not self.ports or not self.loads:
            not_asked.add(LEASE_ADDRESSES)
        if not self._knows_devices():
            not_asked.add("devices")
        if groups is not None and "cpu" in groups.controllers:
            not_asked.add("priority")
        return tuple(sorted(self.properties - not_asked))

    def _knows_devices(self) -> bool:
        """Return whether the nodes are known and there: some are made when a driver is loaded."""
        if self.nodes is None:
            return False
        own = [node for nodes in self.nodes.values() for node in nodes]
        return all(Path(node).exists() for node in (*own, *(NEEDED_NODES if own else ())))

    def message(self, groups: LeaseCgroups | None) -> worker_messages.Confine:
        """Return the message about them for a new worker, which is in one of ``groups``."""
        return worker_messages.Confine(self.asked(groups), self.devices(), self.ports)

    def devices(self) -> tuple[str, ...]:
        """Return the device nodes that a new worker may need, for any assigned GPUs."""
        common: list[str] = []
        for name in COMMON_NODES:
            path = Path(name)
            common += [str(each) for each in sorted(path.iterdir())] if path.is_dir() else [name]
        own = sorted({node for nodes in (self.nodes or {}).values() for node in nodes})
        return (*common, *own)

    def shares_memory(self, holds: Collection[str]) -> bool:
        """Return whether a worker gets its lease's ``/dev/shm``.

        Those of NVIDIA's MPS share files there with its daemon.
        """
        return (
            "shared-memory" in self.properties
            and {"private-devices", "own-uid"} <= set(holds)
            and worker_mounts.SHARED_MEMORY.is_dir()
            and not mps_folders.is_used()
        )

    def complete(
        self, holds: tuple[str, ...], pid: int, groups: LeaseCgroups | None
    ) -> tuple[str, ...]:
        """Return the properties of a worker: its own, and those that this host can add."""
        if "private-devices" in holds and not worker_mounts.may_enter(pid):
            # It has the nodes of all GPUs that are offered.
            holds = tuple("listed-devices" if name == "private-devices" else name for name in holds)
        memory = ("private-shared-memory",) if self.shares_memory(holds) else ()
        group = ("control-group",) if groups is not None else ()
        bounds = groups.controllers if groups is not None else ()
        words = (BOUNDS.get(name, f"{name}-limit") for name in sorted(bounds))
        return (*holds, *memory, *group, *words)

    def narrow(
        self, pid: int, holds: Collection[str], gpus: Collection[GpuId], memory: Path | None
    ) -> None:
        """Leave a worker the GPUs of its lease; it has not heard of the lease yet. Blocks.

        Raises:
            OSError: when that cannot be done; then it must not be used.
        """
        if "private-devices" not in holds or self.nodes is None:
            return
        own = {node for gpu in gpus for node in self.nodes.get(gpu, ())}
        every = {node for nodes in self.nodes.values() for node in nodes}
        worker_mounts.narrow(pid, sorted(every - own), memory)

    def widen(self, pid: int, holds: Collection[str], gpus: Collection[GpuId]) -> None:
        """Let a worker have GPUs besides: its lease is being moved to them. Blocks.

        Raises:
            OSError: when that cannot be done.
        """
        if "private-devices" in holds and self.nodes is not None:
            worker_mounts.widen(pid, self._nodes_of(gpus))

    def leave(
        self, pid: int, holds: Collection[str], gpus: Collection[GpuId], kept: Collection[GpuId]
    ) -> None:
        """Remove a moved lease's GPUs from a worker, except for device nodes of kept GPUs. Blocks.

        Raises:
            OSError: when that cannot be done.
        """
        if "private-devices" in holds and self.nodes is not None:
            gone = set(self._nodes_of(gpus)) - set(self._nodes_of(kept))
            worker_mounts.narrow(pid, sorted(gone), None)

    def _nodes_of(self, gpus: Collection[GpuId]) -> list[str]:
        nodes = self.nodes or {}
        return sorted({node for gpu in gpus for node in nodes.get(gpu, ())})

    def lacking(self, holds: Collection[str]) -> list[str]:
        """Return the missing confinement of a worker, with reasons, for the log and ``doctor``."""
        denied = "this system does not let the server make one" if self.root else "that needs root"
        found: list[str] = []

        def note(name: str, why: str) -> None:
            left_out = name in PROPERTIES and name not in self.properties
            text = PROPERTIES.get(name, name)
            found.append(f"{text} ({f'left out by {VARIABLE}' if left_out else why})")

        if "landlock" not in holds:
            note("files and signals by Landlock", "the kernel has none, or forbids it")
        elif "own-signals" not in holds and "own-uid" not in holds:
            note("signals by Landlock", "its Landlock is older than Linux 6.12")
        if HELD not in holds:
            note(HELD, "the kernel lets root alone attach filters of packets")
        if self.ports and "few-tcp-ports" not in holds:
            found.append(
                f"TCP ports, in leases over several servers: workers may use all of them "
                f"({PORTS_VARIABLE}; Landlock is none, or older than Linux 6.7)"
            )
        if self.ports and LEASE_ADDRESSES not in holds:
            note(
                LEASE_ADDRESSES,
                f"{PORTS_VARIABLE} lets these workers reach any address; it takes root, Linux 5.14 "
                "and a filter of system calls",
            )
        if "no-network" not in holds:
            note("network", denied)
            if (
                not {"no-tcp", "few-tcp-ports"}.intersection(holds)
                or "no-abstract-sockets" not in holds
            ):
                note("landlock-network", "its Landlock is none, or older than Linux 6.12")
        if "private-folders" not in holds:
            whole = ", or Python's path names one of them whole" if self.root else ""
            note("folders", denied + whole)
        if "private-devices" not in holds:
            unknown = "NVML does not name them, or some are not there yet"
            note("devices", f"a private /dev: {denied}" if self._knows_devices() else unknown)
        if not self.shares_memory(holds):
            note(
                "shared-memory",
                "MPS shares files there" if self.root and mps_folders.is_used() else denied,
            )
        if "control-group" not in holds:
            why = "no cgroup v2, or the server's is not delegated to it"
            note("cgroup", why)
        elif "memory-limit" not in holds:
            found.append("a memory limit by the kernel (its controller is not the server's)")
        if not {"cpu-weight", "low-priority"}.intersection(holds):
            note("priority", "the kernel does not let workers lower theirs")
        if "system-call-filter" not in holds:
            note("system-calls", "the kernel has no seccomp, or this kind of machine is not known")
        elif "few-calls" not in self.properties:
            note("few-calls", "")
        return found
