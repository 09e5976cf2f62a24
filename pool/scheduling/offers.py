"""The answers of a server to a request: the GPUs to give now, or the reason for none.

``placement`` makes them. They stand apart from it, because clients only read them.
"""

from dataclasses import dataclass

from gpupool.pool.model.ids import GpuId, Incarnation, ServerId


@dataclass(frozen=True, slots=True)
class OfferedGpu:
    """One GPU that could serve the request now."""

    gpu: GpuId
    index: int
    name: str
    memory: int  # what the partition would be, bytes
    memory_free: int
    physical: GpuId  # the card, the same for all MIG instances of it
    capacity: int = 0  # bytes of the GPU when nothing is granted


@dataclass(frozen=True, slots=True)
class Offer:
    """The GPUs that one server can give now."""

    server: ServerId
    name: str
    incarnation: Incarnation
    gpus: tuple[OfferedGpu, ...]
    load: float  # granted share of this server's memory, 0 to 1


@dataclass(frozen=True, slots=True)
class NoOffer:
    """Why a server gives nothing.

    ``kind`` is the value of a ``RefusalKind``.
    """

    server: ServerId
    name: str
    kind: str
    why: str
    ahead: int = 0  # requests that wait longer than this one
    never_here: bool = False  # busy, and not for a while: only other servers could ever serve it
