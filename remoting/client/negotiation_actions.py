"""The actions, phases and settings of a negotiation.

A ``Negotiation`` returns the actions from each input, and its caller carries them out: the
allocator with connections, the simulator with fakes.
"""

from dataclasses import dataclass
from enum import Enum

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.ranking import Choice
from gpupool.remoting.protocol import messages as m


@dataclass(frozen=True, slots=True)
class Call:
    """Send ``message`` to ``server``, and report its answer or error under ``number``."""

    number: int
    server: ServerId
    message: m.CallFor[m.Answer]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Tell:
    """The text about the request's wait has changed."""

    text: str


@dataclass(frozen=True, slots=True)
class Widen:
    """Connect to ``count`` servers, or to all if there are fewer."""

    count: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Final, unless ``retry_without`` follows: the lease is there."""

    lease: LeaseId
    request: Request
    choice: Choice
    idle_timeout_s: float = 0.0  # the lease ends when unused for so long; 0: never
    time_left_s: float = 0.0  # the lease ends so long after the grant; 0: without limit


@dataclass(frozen=True, slots=True)
class Failed:
    """Final: there is no lease, except perhaps one that nobody uses.

    Whether the claim at ``unsettled`` was granted is not known. Hanging up on that server ends the
    lease if it was.
    """

    error: GpupoolError
    unsettled: ServerId | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    """A round has ended with a choice: for each server, why it was chosen or not."""

    lines: tuple[str, ...]


Action = Call | Tell | Widen | Explain | Granted | Failed


class Phase(Enum):
    """The phases of a negotiation."""

    NEW = "new"
    ASKING = "asking"
    CLAIMING = "claiming"
    CANCELLING = "cancelling"
    WAITING = "waiting"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationSettings:
    """Durations in seconds of the client's monotonic clock."""

    ask_first_count: int = 32
    """Servers asked at first; while they cannot serve the request, twice as many are."""

    ask_timeout_s: float = 2.0
    widen_timeout_s: float = 1.0
    """Time for connections to further servers and for their answers."""

    gather_s: float = 0.02
    """Time in which further offers are collected after the first one."""

    claim_timeout_s: float = 2.5
    """More than the 1.6 s that a server takes at most to answer a claim."""

    cancel_timeout_s: float = 2.5
    cancel_patience_s: float = 10.0
    """Time in which a client with a short ``--wait`` tries to get a cancel committed."""

    backoff_base_s: float = 0.05
    backoff_max_s: float = 5.0
    renew_every_s: float = 5.0
    """The waiting entry lapses after 15 s."""

    avoid_s: float = 30.0
    """Time for which a server is avoided after it did not take its part of a lease."""
