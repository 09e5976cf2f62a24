"""The actions that the controller returns: everything that it cannot do itself without I/O.

``control_server`` carries them out over sockets, the log and the host; the simulator with fakes.
``Propose`` belongs to them and stands at the proposer, which alone emits it.
"""

from dataclasses import dataclass, field

from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import Lease, Partition
from gpupool.pool.record_query import ExporterQuery
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.view_encoding import ViewOrder
from gpupool.remoting.server.proposer import Propose


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` as the answer to ``call``, or as a push when that is 0."""

    connection: int
    call: int
    message: m.Outgoing


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the connection once everything before has been sent, and log why."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class StartSession:
    """Tell the host to start a worker; report with ``session_opened``."""

    number: int
    lease: Lease
    partitions: tuple[Partition, ...]
    door: str
    program: str
    settings: dict[str, str] = field(default_factory=dict[str, str])  # for the worker's driver


@dataclass(frozen=True, slots=True)
class KillLease:
    """Tell the host to kill all workers of a lease now."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class CompilePolicy:
    """Compile a packed document outside of this process; report with ``policy_compiled``."""

    number: int
    packed: bytes
    now_ms: int


@dataclass(frozen=True, slots=True)
class AskUsage:
    """Ask the exporter for its records; report with ``usage_answered``."""

    number: int
    query: ExporterQuery


@dataclass(frozen=True, slots=True)
class MakeView:
    """Make a large view beside the loop; report with ``view_made``. One at a time is asked for."""

    order: ViewOrder


@dataclass(frozen=True, slots=True)
class AskKey:
    """Ask this voter for the CA's key."""

    peer: ServerId


@dataclass(frozen=True, slots=True)
class MakeCa:
    """Make the next CA, and have the voters keep its key; report with ``ca_made``."""

    number: int


Action = (
    Send
    | Hangup
    | Propose
    | StartSession
    | KillLease
    | CompilePolicy
    | AskUsage
    | MakeView
    | AskKey
    | MakeCa
)
