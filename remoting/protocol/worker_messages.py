"""The messages between the host and a worker process over their socket pair, as bytes.

Control messages are CBOR in the frames of ``protocol.framing``; a descriptor that belongs to a
message travels beside it (SCM_RIGHTS). What decides over privileges (``Confine``, ``Start``,
``JoinNetwork``, ``Become``) comes from the privileged helper, over a socket pair of its own: the
process that talks to strangers cannot say it. The worker tells ``Ready`` to both. Calls on the
budget have a socket pair of their own and a fixed binary form, because a program may wait for each
of them. The worker is not trusted with more than its lease: the host decodes its messages as
strictly as those of a stranger.

Messages about a worker's GPU turns go over a third socket pair. Each packet is one message of a
fixed size, because some of them are on the way of a program's next launch. Both ends are always of
the same build. The host takes nothing in them on trust: a worker that says what it may not, or too
much, is killed.
"""

import struct
from dataclasses import dataclass, field, replace
from typing import Annotated

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model import codec
from gpupool.pool.model.bounds import (
    Bound,
    Count,
    Digest,
    Figure,
    Int,
    Line,
    Microseconds,
    Name,
    Number,
    PathText,
    Uint32,
)
from gpupool.remoting.protocol.message_family import FrameFamily, Message, message

TURN_MESSAGE = struct.Struct("<HHI")
"""A device in the order of ``Assign``; an order or a word; a number."""

CLOSE, OPEN, WATCH = range(3)
"""Orders to a worker. The number of ``CLOSE`` comes back with ``DRAINED``."""

WANT, IDLE, DRAINED = range(3)
"""Words of a worker. Its launches wait; it has had none for a while; all its work is over."""

# The largest assignment, 256 devices, needs half of this; all fit an empty socket buffer. Both ends
# are always of the same build.
WORKER = FrameFamily("worker", size_max=48 * 1024)

EXIT_HOST_GONE = 3
"""The status of a worker that has lost its host."""

TEXT_SIZE_MAX = 2000
"""Characters of a log line or a reason that a worker reports; the rest is cut off."""

# --- from the host to the worker ----------------------------------------------------------------


class HostMessage(Message, family=WORKER):
    """A message of the host, or of the privileged helper."""

    __slots__ = ()


@message(0)
class Start(HostMessage):
    """How the worker confines itself before it hears of any client; sent once, first."""

    own_uid: bool  # it will become the user of its lease, so it must be able to
    cuda: bool  # whether to import CuPy
    landlock: bool
    directory: PathText  # its private directory, the only one that it may write to
    readable: tuple[PathText, ...]  # paths that it may read beside the operating system
    expose: tuple[PathText, ...]  # paths that it must make reachable before it changes its uid
    doors: dict[Name, PathText]  # name of a door to "module:function"
    #: Paths that it may not read, wherever they lie.
    unreadable: tuple[PathText, ...] = field(default=(), metadata=codec.OPTIONAL)


@message(5)
class Confine(HostMessage):
    """Further restrictions of the worker at its start; comes before ``Start``, if at all."""

    properties: tuple[Name, ...] = ()  # of ``isolation.confinement.PROPERTIES``
    devices: tuple[PathText, ...] = ()  # nodes of all GPUs that it may be assigned
    ports: tuple[Number, ...] = ()  # first and last TCP port for leases over several servers


@message(6)
class JoinNetwork(HostMessage):
    """The network of its lease, which comes with it; comes before ``Assign``, if at all.

    That of a lease over several servers is the machine's, if its workers may use TCP at all.
    """


@message(7)
class Become(HostMessage):
    """The user of its lease, before ``Assign``; the helper says it, and not the server."""

    uid: Int
    groups: tuple[Number, ...] = ()  # supplementary, only what GPU device nodes ask for


@dataclass(frozen=True, slots=True)
class AssignedDevice:
    """One partition of the session, in the order in which the program sees them."""

    index: Number
    uuid: Name
    name: Name
    memory: Number
    emulated: bool
    ordinal: Int  # CUDA ordinal in the worker; of an emulated device its place in the lease


@message(1)
class Assign(HostMessage):
    """The session that this worker serves; the socket of its budget comes with it."""

    lease: Number
    session: Digest
    ticket: Digest = field(repr=False)
    door: Name
    program: Line
    cuda_visible: Annotated[str, Bound(WORKER.size_max)]  # value of CUDA_VISIBLE_DEVICES
    devices: tuple[AssignedDevice, ...]
    place: Number = 0  # of this server among those of the lease, in the program's order
    servers: Number = 1  # of the lease
    uid: Int = -1  # to become, of the lease, and its group; -1 to stay who it is
    groups: tuple[Number, ...] = ()  # supplementary, only what GPU device nodes ask for
    settings: dict[Name, Line] = field(default_factory=dict[str, str])  # for CUDA's environment


@message(2)
class Connection(HostMessage):
    """An untouched connection, which comes with it; ``plain`` allows it to be unencrypted."""

    plain: bool
    lane: Digest = field(default=b"", metadata=codec.OPTIONAL)  # the number of ``Expecting``


@message(3)
class Proceed(HostMessage):
    """The overhead of the worker's CUDA contexts has been measured: it may allocate."""


@message(4)
class Dialled(HostMessage):
    """The answer to ``Dial``: the connection, or in ``reason`` why there is none."""

    reason: Line


@message(10)
class SendListener(HostMessage):
    """Brings the socket for the listener of the worker's filter, which is sent at ``Assign``.

    Comes before that, if the host makes the worker's sockets of TCP.
    """


@message(8)
class CheckGpu(HostMessage):
    """Test a GPU instead of serving a session; the worker serves nobody afterwards."""

    uuid: Name
    emulated: bool
    seconds: Figure  # for which to repeat it; an emulated GPU has 0
    spoil: bool = False  # a script says that this emulated GPU computes wrongly


# --- from the worker to the host ----------------------------------------------------------------


class WorkerMessage(Message, family=WORKER):
    """A message of the worker."""

    __slots__ = ()


@message(0)
class Ready(WorkerMessage):
    """The worker is warm and confined, and waits for a session."""

    certificate_sha256: Digest
    confinement: tuple[Name, ...]  # the restrictions in force, for people and tests
    cuda_problem: Line  # why it cannot use CUDA; empty when it can or need not


@message(1)
class Assigned(WorkerMessage):
    """The worker knows its session and can take connections."""


@message(2)
class ContextReady(WorkerMessage):
    """The worker's CUDA contexts exist, and hold nothing yet."""


@message(3)
class Connected(WorkerMessage):
    """A client has proven itself; said once."""

    transport: Name  # a ``Transport``


@message(4)
class Rejected(WorkerMessage):
    """A connection failed its handshake; the worker waits for another one."""

    reason: Line


@message(8)
class Expecting(WorkerMessage):
    """Others may connect from now on: the process's other workers, or the client once more."""

    #: Numbers that further connections of the client name in place of the session's.
    lanes: tuple[Digest, ...] = field(default=(), metadata=codec.OPTIONAL)


@message(9)
class Dial(WorkerMessage):
    """The worker wants a connection to another server of its lease; one at a time."""

    server: Name  # its id


@message(5)
class Report(WorkerMessage):
    """Totals of the session so far; sent at most once a second, while it is used."""

    calls: Count
    bytes_in: Count
    bytes_out: Count
    busy: bool = False  # a call is being executed
    waits: Count = field(default=0, metadata=codec.OPTIONAL)  # answers that a caller waited for
    wait_us: Microseconds = field(default=0, metadata=codec.OPTIONAL)  # time to execute those
    #: Time in which calls were executed; None where the GPU's driver knows better.
    executed_us: Microseconds | None = field(default=None, metadata=codec.OPTIONAL)
    #: The kernel's estimates for the client's connection; None where it is no TCP connection.
    rtt_us: Uint32 | None = field(default=None, metadata=codec.OPTIONAL)
    rtt_var_us: Uint32 | None = field(default=None, metadata=codec.OPTIONAL)
    retransmits: Uint32 | None = field(default=None, metadata=codec.OPTIONAL)
    nccl: bool = field(default=False, metadata=codec.OPTIONAL)  # it has loaded NCCL

    def fault_after(self, before: "Report") -> str:
        """Return why no worker can have counted so since the report before; empty: one can."""
        counts = [(getattr(before, name) or 0, getattr(self, name) or 0) for name in COUNTERS]
        if any(now > COUNTER_MAX for _, now in counts):
            return "it sent counters beyond all measure"
        return "it sent counters that fell" if any(now < was for was, now in counts) else ""

    def at_least(self, before: "Report") -> "Report":
        """Return this report with each counter as large as it was before: none of them falls."""
        found = {name: getattr(before, name) or 0 for name in COUNTERS}
        grown = {name: most for name, most in found.items() if (getattr(self, name) or 0) < most}
        return replace(self, **grown) if grown else self


COUNTERS = ("calls", "bytes_in", "bytes_out", "waits", "wait_us", "executed_us", "retransmits")
"""Figures of a report that never fall."""
COUNTER_MAX = 2**53
"""No program gets there, and each float can tell it."""


@message(6)
class Log(WorkerMessage):
    """One line for the server's log."""

    text: Line


@message(7)
class Ended(WorkerMessage):
    """The last message: why the worker exits. ``failed`` when it was not the client's wish."""

    reason: Line
    failed: bool


@message(10)
class GpuChecked(WorkerMessage):
    """The result of ``CheckGpu``; an empty problem means that all was right."""

    passes_a_second: Figure
    problem: Line


@message(9)
class TakeTurns(HostMessage):
    """Brings the socket for the worker's turns."""


def shortened(text: str) -> str:
    """Return ``text`` without control characters, cut to the limit of a message."""
    kept = "".join(c if c.isprintable() else " " for c in text[:TEXT_SIZE_MAX])
    return kept if len(text) <= TEXT_SIZE_MAX else kept + "..."


# --- the budget ---------------------------------------------------------------------------------

RESERVE, RELEASE, USAGE, SHARE, FIND, FORGET, PLEDGE, TAKE_BACK, LET_GO = range(1, 10)

BUDGET_CALL = struct.Struct(">BxHxxxxQ")
"""Operation, device index, bytes. ``RELEASE`` has no answer.

From ``SHARE`` on, the field for bytes holds the size of the body. The body is a token, followed for
``SHARE`` by the handle behind it, for ``PLEDGE`` and ``TAKE_BACK`` by bytes as ``PLEDGED``. The
field for the device says for ``SHARE`` whether a descriptor comes with it, and for ``FIND`` whether
the finder opens the handle, which it lets go of later.
"""

PLEDGED = struct.Struct(">Q")

BUDGET_ANSWER = struct.Struct(">BxxxxxxxQ")
"""1 when granted, else 0; and the bytes that the whole lease holds on that GPU.

To ``FIND``: 2 when a descriptor comes with it; and the size of the handle, which follows.
"""

BUDGET_PAYLOAD_SIZE_MAX = 1024
SIZE_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class BudgetCall:
    """One call on the budget."""

    operation: int
    device: int
    size: int
    payload: bytes = b""


def decode_budget_calls(buffer: bytearray) -> list[BudgetCall]:
    """Take every whole call off the front of ``buffer``.

    Raises:
        RemoteProtocolError: for an operation that does not exist, or too large a payload.
    """
    calls: list[BudgetCall] = []
    at = 0
    while len(buffer) - at >= BUDGET_CALL.size:
        operation, device, size = BUDGET_CALL.unpack_from(buffer, at)
        end = at + BUDGET_CALL.size
        if not RESERVE <= operation <= LET_GO:
            raise RemoteProtocolError("malformed budget call", why=f"operation {operation}")
        if operation >= SHARE:
            if size > BUDGET_PAYLOAD_SIZE_MAX:
                raise RemoteProtocolError("malformed budget call", why=f"{size} bytes behind it")
            end += size
        if end > len(buffer):
            break
        payload = bytes(buffer[at + BUDGET_CALL.size : end])
        calls.append(BudgetCall(operation, device, size, payload))
        at = end
    del buffer[:at]
    return calls
