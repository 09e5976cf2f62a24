"""The description of a server besides its GPUs: address, versions, labels, network."""

from dataclasses import dataclass

from gpupool.pool.model.formats import VERSION


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
