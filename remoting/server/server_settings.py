"""The settings of a control server: durations in seconds of its monotonic clock, and limits.

Beside them a server's data about itself: names, description, measurements and findings.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The durations of the controller."""

    #: A claim or other command is answered within this, so that a minority refuses within 2 s.
    call_timeout_s: float = 1.6

    #: The limit of a cancel that no client waits for; the lease itself ends by other means.
    cleanup_timeout_s: float = 60.0

    #: A client that knows of a lease waits so long until this server knows of it too.
    lease_wait_s: float = 2.0

    #: The interval of the reconciler; a change that concerns this server does not wait for it.
    sync_interval_s: float = 0.25
    rest_interval_s: float = 0.5  # while nothing that it proposed is under way

    #: A view with more rows is made beside the loop: so many take 4 ms, and GPUs count as rows.
    view_rows_at_once: int = 512

    #: The interval at which a voter without the CA's key asks for it; who connects, at once.
    key_every_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The limits on connections."""

    #: A client whose network is silently lost is noticed by the kernel within this.
    client_timeout_s: float = 10.0

    #: From the first byte to a valid token, or certificate, or session.
    unauthenticated_timeout_s: float = 2.0

    #: Connections that have not proven anything yet, of all addresses that never did; when there
    #: are more, the oldest one of the busiest address goes.
    unauthenticated_count_max: int = 1024

    #: The same for one address, known or not.
    unauthenticated_per_address_max: int = 64

    #: TLS handshakes of unknown addresses that begin in a second: each costs up to 1 ms, with all
    #: that belongs to it.
    handshakes_per_s: float = 150.0

    #: TLS of unknown addresses that have proven nothing: each takes up to 64 KiB. When there is
    #: more, the oldest one of the busiest address goes; the next ones wait without TLS.
    unauthenticated_tls_count_max: int = 128

    client_count_max: int = 10_000

    #: Messages that wait for one client to read; beyond it, the server hangs up.
    outbox_count_max: int = 256
