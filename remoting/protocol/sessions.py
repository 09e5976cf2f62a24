"""The control server's requests to the host: open a session, hand over its connection, end it.

``host/`` implements ``SessionHost`` with real worker processes; tests and simulations fake it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from gpupool.pool.host_suspension import HostSuspension
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.model.state import Gpu, Lease, Partition

if TYPE_CHECKING:
    import socket

    from gpupool.pool.model.commands import GpuReading
    from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry


@dataclass(frozen=True, slots=True)
class SessionDevice:
    """One partition as the program will see it."""

    index: int
    uuid: GpuId
    name: str
    memory: int  # bytes of the partition
    emulated: bool


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Where one client process reaches its worker, and how each proves itself to the other."""

    session: bytes  # 16 random bytes, made by the host
    certificate_sha256: bytes  # of the worker's DER certificate
    ticket: bytes = field(repr=False)  # 32 random bytes, for this session alone
    unix_path: str  # Unix socket for clients on the same host; empty when there is none
    devices: tuple[SessionDevice, ...]


@dataclass(frozen=True, slots=True)
class Departure:
    """A host's report on a lease that is to continue on another server."""

    ready: bool = False  # or its session is only being opened
    session: bytes = b""  # of its one process; empty: it has none
    refusal: str = ""  # why it cannot go


NO_MOVES: Mapping[GpuId, GpuId] = MappingProxyType({})

DOCTOR = "doctor"
"""The client name of ``gpupool doctor``, which alone is told the confinement of workers."""

SIGNER_OPEN = "the signer here has its server's user: code in the server can read its secret"
WORKERS_HAVE, WORKERS_LACK = "workers here are confined by ", "workers here are not confined by "
"""How warnings to it begin."""


class SessionHost(Protocol):
    """The workers of one server; implemented by remoting.host, faked by tests and simulations."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the devices to offer, in nvidia-smi's order."""
        ...

    def readings(self) -> "dict[GpuId, GpuReading]":
        """Return the latest foreign memory and fault of every GPU."""
        ...

    def worker_count(self) -> dict[LeaseId, int]:
        """Return how many live workers each lease has that was used and not killed; 0: none."""
        ...

    def confinement(self) -> tuple[str, ...]:
        """Return the confinement of all live workers, by name; empty before any report."""
        ...

    def unconfined(self) -> tuple[str, ...]:
        """Return the confinement that workers lack, with reasons, for people."""
        ...

    def idle_s(self) -> dict[LeaseId, float]:
        """Return for each lease with sessions here, seconds since its last use; 0 while in use."""
        ...

    async def open_session(
        self,
        lease: Lease,
        partitions: Sequence[Partition],
        *,
        door: str,
        program: str,
        settings: Mapping[str, str] | None = None,
    ) -> SessionInfo:
        """Start (or take a spare) worker for one client process of ``lease``.

        ``settings`` are variables for its driver, of ``settings.ALLOWED`` alone.

        Raises:
            GpupoolError: when no worker can be had.
        """
        ...

    def knows_session(self, session: bytes) -> bool:
        """Return whether ``session`` waits for its data connection."""
        ...

    async def hand_over(self, session: bytes, connection: "socket.socket") -> None:
        """Give a worker its data connection, untouched; the descriptor is the worker's now."""
        ...

    async def kill_lease(self, lease: LeaseId, reason: str) -> None:
        """Kill every worker of ``lease`` and return once all are gone (waited for)."""
        ...

    def suspend(self, lease: LeaseId, number: int) -> None:
        """Suspend a lease's workers, which release their GPU memory; return at once.

        An order with a lower number than an earlier one of this lease, or the same again, does
        nothing. Sessions of the lease are opened once it has been resumed.
        """
        ...

    def resume(self, lease: LeaseId, number: int, moves: Mapping[GpuId, GpuId] = NO_MOVES) -> None:
        """Resume a lease's workers with all their state; return at once.

        One that has not begun to be suspended is not suspended any more when this returns. What a
        suspended one has on a GPU that is a key of ``moves`` is on the other GPU from then on.
        """
        ...

    def suspensions(self) -> Mapping[LeaseId, HostSuspension]:
        """Return how far the host is with each live lease that had such an order."""
        ...

    def depart(self, lease: LeaseId, target: ServerId | None) -> Departure:
        """Let the one session of a lease connect to the server where it is to go on.

        Args:
            lease: one of which no further session is opened meanwhile.
            target: that server; None: it goes nowhere any more, and reaches no other server.
        """
        ...

    def weigh(self, weights: Mapping[LeaseId, float]) -> None:
        """Multiply the leases' due shares of GPU time by ``weights``, until the next call.

        Args:
            weights: above 0; leases that are not in it have 1, such as the host does not know.
        """
        ...

    def telemetry(self) -> "tuple[tuple[GpuTelemetry, ...], tuple[SessionTelemetry, ...]]":
        """Return the latest readings of GPUs and sessions."""
        ...
