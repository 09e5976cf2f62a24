"""A server's data about itself: its names, its description, its measurements and findings."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool.pool.automatic_drains import Signs
from gpupool.pool.measures import Measures
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import GpuId, Incarnation, ServerId
from gpupool.pool.telemetry import Finding


@dataclass(frozen=True, slots=True)
class Software:
    """A server's address, versions and labels; they enter the table with ``ServerUp``."""

    address: str  # host:port under which peers and clients reach it
    version: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    link_speed: int = 0  # Mbit/s of the interface that has the address; 0 when unknown
    rdma: bool = False
    alerts: bool = False  # it can send them
    formats: int = VERSION
    names: tuple[str, ...] = ()  # more addresses, by DNS names


@dataclass(slots=True)
class SelfChecks:
    """The findings of the server's checks; ``remoting.daemon`` replaces both each second."""

    findings: tuple[Finding, ...] = ()
    signs: Signs = field(default_factory=dict[tuple[GpuId, str], str])
    """Of failing GPUs, for which they are drained."""
    places_of: Callable[[ServerId], list[str]] = lambda _server: []
    """Returns where a server is looked for, the likeliest address first."""


@dataclass(frozen=True, slots=True)
class ServerInstance:
    """One run of this server: every start is another incarnation."""

    id: ServerId
    incarnation: Incarnation
    software: Software
    measures: Measures = field(default_factory=Measures)
    checks: SelfChecks = field(default_factory=SelfChecks)
