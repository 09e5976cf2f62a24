"""What a server asks its keeper for, and the answers: the whole list of what it can ask for.

A keeper is the privileged process of a server without privileges (``remoting.privileges``). One
message is one packet of a ``SOCK_SEQPACKET`` socket: kind and number of the call, then CBOR. A
descriptor that belongs to a message travels beside it (SCM_RIGHTS). The keeper decodes as strictly
as if a stranger had sent it, because one that has taken over the server may have.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, cast

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model import codec
from gpupool.pool.model.bounds import Int, Line, Name, Number, PathText
from gpupool.pool.model.ids import Plain
from gpupool.remoting.protocol import framing

PACKET_SIZE_MAX = 64 * 1024
"""A server with 256 GPUs names their nodes in half of it."""

HEADER = struct.Struct(">BI")


# --- from the server to its keeper --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Kill what a former server left, and prepare for workers; the first call, made once."""

    cuda: bool  # whether any GPU is real
    nodes: dict[Name, tuple[PathText, ...]] | None  # device nodes of each GPU; None: not known


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker; its ends of the control socket and of the pipe for errors come with it."""

    worker: Number  # a number that was never used
    doors: tuple[Name, ...] = ()  # that it may serve; all of the server's if none is named


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker; has no answer."""

    worker: Number


@dataclass(frozen=True, slots=True)
class ReapWorker:
    """Take note of a worker's end, which its pidfd has told."""

    worker: Number


@dataclass(frozen=True, slots=True)
class ConfineWorker:
    """Put a worker that was started into a control group, and tell it to confine itself."""

    worker: Number


@dataclass(frozen=True, slots=True)
class AskConfinement:
    """Say what confines a worker that has told both of us that it is ready."""

    worker: Number


@dataclass(frozen=True, slots=True)
class AssignWorker:
    """Give a worker to a lease: its user, devices, memory, control group and kernels."""

    worker: Number
    lease: Number
    gpus: tuple[Name, ...]
    memory: Int  # bytes of this machine's memory that the lease may have
    user: Name  # the pool's user whose kernels it may load
    across: bool  # whether the lease has other servers, too


@dataclass(frozen=True, slots=True)
class BuryWorker:
    """Kill and remove what a worker, which was reaped, has left."""

    worker: Number


@dataclass(frozen=True, slots=True)
class MeasureFiles:
    """Measure the files of the workers that are assigned."""


@dataclass(frozen=True, slots=True)
class SuspendWorkers:
    """Take workers of one lease off their GPUs: all of them, or none."""

    stop: tuple[Number, ...]  # those on emulated GPUs, which are only stopped
    save: tuple[Number, ...]  # those whose GPU memory goes into their own memory
    size: Int  # bytes of that, about
    memory: Int  # bytes of this machine's memory that the lease may have meanwhile
    memory_after: Int  # the same when it has not been done
    #: Those bytes go on to a disk; an empty file for them comes with it.
    spill: bool = False


@dataclass(frozen=True, slots=True)
class ResumeWorkers:
    """Let suspended workers of one lease go on, all at once."""

    stopped: tuple[Number, ...]
    saved: tuple[Number, ...]
    size: Int  # bytes that go back to GPUs, about
    memory_after: Int  # bytes of this machine's memory that the lease may have then
    #: Where each real GPU's part of them goes; empty: where it was.
    moves: dict[Name, Name] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class LoadFilter:
    """Load a filter of packets for sockets of workers, which this process may not load itself."""

    #: Those of a lease's servers, as 10.0.0.1/32; None: for connections that are there already.
    networks: tuple[Name, ...] | None


@dataclass(frozen=True, slots=True)
class Close:
    """Remove the directories of all workers; the last call."""


# --- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The keeper is ready."""

    own_uid: bool  # whether workers get uids of their own
    reason: Line  # why not
    expose: tuple[PathText, ...]  # directories that a worker must bring within its own uid's reach
    killed: Number  # workers that a former server left


@dataclass(frozen=True, slots=True)
class Started:
    """A worker runs; its pidfd comes with it."""

    pid: Number
    start_time: Number
    directory: PathText


@dataclass(frozen=True, slots=True)
class Reaped:
    """A worker has ended."""

    returncode: Int


@dataclass(frozen=True, slots=True)
class Confinement:
    """What holds for a worker."""

    holds: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class AssignedUser:
    """The user that a worker becomes."""

    uid: Int  # -1: it stays who it is
    groups: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class Buried:
    """Nothing of a worker is left, as far as can be."""

    out_of_memory: bool  # the kernel killed a process of its lease for that


@dataclass(frozen=True, slots=True)
class Files:
    """The use of this server by workers: of its disk, and of its memory beside their own."""

    sizes: dict[Number, Int]  # bytes of files, by worker
    whole: Int  # bytes of the file system
    #: Bytes of memory of processes that a worker has started, and of files without a name.
    memory: dict[Number, Int] = field(default_factory=dict[int, int])
    left: Int = 1 << 50  # bytes that are free on the file system


@dataclass(frozen=True, slots=True)
class Moved:
    """Workers were suspended or resumed, or were not."""

    problem: Line = ""  # why it was not done; empty: it was
    lost: tuple[Number, ...] = ()  # workers that can neither run nor be resumed
    stopped: tuple[Number, ...] = ()  # workers that turned out to have nothing on a GPU
    unmoved: bool = False  # they can be resumed on the GPUs that they were on, not on the others
    spilled: Int = 0  # bytes that are on the disk, and not in memory


@dataclass(frozen=True, slots=True)
class Loaded:
    """A filter is loaded; its descriptor comes with it."""


@dataclass(frozen=True, slots=True)
class Done:
    """It is done."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not be done."""

    what: Line
    why: Line
    hint: Line = ""


Request = (
    Open
    | StartWorker
    | KillWorker
    | ReapWorker
    | ConfineWorker
    | AskConfinement
    | AssignWorker
    | BuryWorker
    | SuspendWorkers
    | ResumeWorkers
    | Close
    | MeasureFiles
    | LoadFilter
)
Answer = (
    Opened
    | Started
    | Reaped
    | Confinement
    | AssignedUser
    | Buried
    | Done
    | Failed
    | Files
    | Moved
    | Loaded
)

# The position is the kind. Both ends are always of the same build.
_REQUESTS: tuple[type[Any], ...] = (
    *(Open, StartWorker, KillWorker, ReapWorker, ConfineWorker),
    *(AskConfinement, AssignWorker, BuryWorker, Close, MeasureFiles),
    *(SuspendWorkers, ResumeWorkers, LoadFilter),
)
_ANSWERS: tuple[type[Any], ...] = (
    *(Opened, Started, Reaped, Confinement, AssignedUser, Buried, Done, Failed, Files, Moved),
    Loaded,
)
_KIND_OF = {kind: number for kinds in (_REQUESTS, _ANSWERS) for number, kind in enumerate(kinds)}


def encode(call: int, message: Request | Answer) -> bytes:
    """Return the packet that carries ``message``.

    Raises:
        RemoteProtocolError: when it is too large.
    """
    packet = HEADER.pack(_KIND_OF[type(message)], call) + framing.dump(codec.encode(message))
    if len(packet) > PACKET_SIZE_MAX:
        raise RemoteProtocolError("oversize packet", why=f"{len(packet)} bytes")
    return packet


def decode_request(packet: bytes) -> tuple[int, Request]:
    """Return the number of the call, and what is asked for.

    Raises:
        RemoteProtocolError: when it makes no sense.
    """
    call, message = _decode(_REQUESTS, packet)
    return call, cast(Request, message)


def decode_answer(packet: bytes) -> tuple[int, Answer]:
    """Return the number of the call, and its answer.

    Raises:
        RemoteProtocolError: when it makes no sense.
    """
    call, message = _decode(_ANSWERS, packet)
    return call, cast(Answer, message)


def _decode(kinds: tuple[type[Any], ...], packet: bytes) -> tuple[int, object]:
    if not HEADER.size < len(packet) <= PACKET_SIZE_MAX:
        raise RemoteProtocolError("malformed packet", why=f"{len(packet)} bytes")
    header: tuple[int, int] = HEADER.unpack_from(packet)
    kind, call = header
    if kind >= len(kinds):
        raise RemoteProtocolError("unknown call", why=f"kind {kind}")
    plain: Plain = framing.load(packet[HEADER.size :])
    try:
        return call, codec.decode(kinds[kind], plain)
    except codec.CodecError as error:
        raise RemoteProtocolError("malformed call", why=str(error)) from error
