"""A server's requests to its privileged helper, and the answers: the complete list.

A privileged helper is the privileged process of a server without privileges
(``remoting.privileges``). One message is one packet of a ``SOCK_SEQPACKET`` socket: kind and number
of the call, then CBOR. A descriptor that belongs to a message travels beside it (SCM_RIGHTS). The
privileged helper decodes as strictly as if a stranger had sent it, because one that has taken over
the server may have.
"""

from dataclasses import field

from gpupool.pool.model.bounds import AskedLease, GpuKey, Int, Line, Name, Number, PathText
from gpupool.pool.model.ids import GpuId
from gpupool.remoting.protocol.message_family import A_co, Asks, Message, PacketFamily, message

# A server with 256 GPUs names their nodes in half of this. Both ends are always of the same build.
HELPER = PacketFamily("keeper", size_max=64 * 1024, call_size=4)


# --- answers ------------------------------------------------------------------------------------


class Answer(Message, family=HELPER):
    """An answer of the privileged helper; a descriptor that belongs to it comes with it."""

    __slots__ = ()


@message(0)
class Opened(Answer):
    """The privileged helper is ready."""

    own_uid: bool  # whether workers get uids of their own
    reason: Line  # why not
    expose: tuple[PathText, ...]  # directories that a worker must bring within its own uid's reach
    killed: Number  # workers that a former server left


@message(1)
class Started(Answer):
    """A worker runs; its pidfd comes with it."""

    pid: Number
    start_time: Number
    directory: PathText


@message(2)
class Reaped(Answer):
    """A worker has ended."""

    returncode: Int


@message(3)
class Confinement(Answer):
    """The confinement in force for a worker."""

    holds: tuple[Name, ...]


@message(4)
class AssignedUser(Answer):
    """The user that a worker becomes."""

    uid: Int  # -1: it stays who it is
    groups: tuple[Number, ...]


@message(5)
class Buried(Answer):
    """Nothing of a worker is left, as far as can be."""

    out_of_memory: bool  # the kernel killed a process of its lease for that


@message(8)
class Files(Answer):
    """The use of this server by workers: of its disk, and of its memory beside their own."""

    sizes: dict[Number, Int]  # bytes of files, by worker
    whole: Int  # bytes of the file system
    #: Bytes of memory of processes that a worker has started, and of files without a name.
    memory: dict[Number, Int] = field(default_factory=dict[int, int])
    left: Int = 1 << 50  # bytes that are free on the file system


@message(9)
class Moved(Answer):
    """Workers were suspended or resumed, or were not."""

    problem: Line = ""  # why it was not done; empty: it was
    lost: tuple[Number, ...] = ()  # workers that can neither run nor be resumed
    stopped: tuple[Number, ...] = ()  # workers that turned out to have nothing on a GPU
    unmoved: bool = False  # they can be resumed on the GPUs that they were on, not on the others
    spilled: Int = 0  # bytes that are on the disk, and not in memory


@message(10)
class Loaded(Answer):
    """A filter is loaded; its descriptor comes with it."""


@message(6)
class Done(Answer):
    """It is done."""


@message(7)
class Failed(Answer):
    """It could not be done."""

    what: Line
    why: Line
    hint: Line = ""


Answered = tuple[Answer, int]
"""With the descriptor that comes with it, or -1."""

# --- from the server to its privileged helper -----------------------------------------------------


class Request(Message, family=HELPER):
    """A message from the server."""

    __slots__ = ()


class RequestFor(Request, Asks[A_co]):
    """A request that is answered by an ``A_co``, or by ``Failed``."""

    __slots__ = ()


@message(0)
class Open(RequestFor[Opened]):
    """Kill a former server's remains, and prepare for workers; the first call, made once."""

    cuda: bool  # whether any GPU is real
    nodes: dict[GpuKey, tuple[PathText, ...]] | None  # device nodes of each GPU; None: not known


@message(1)
class StartWorker(RequestFor[Started]):
    """Start a worker; its ends of the control socket and of the pipe for errors come with it."""

    worker: Number  # a number that was never used
    doors: tuple[Name, ...] = ()  # that it may serve; all of the server's if none is named


@message(2)
class KillWorker(RequestFor[None]):
    """Kill a worker; has no answer."""

    worker: Number


@message(3)
class ReapWorker(RequestFor[Reaped]):
    """Take note of a worker's end, which its pidfd has told."""

    worker: Number


@message(4)
class ConfineWorker(RequestFor[Done]):
    """Put a worker that was started into a control group, and tell it to confine itself."""

    worker: Number


@message(5)
class AskConfinement(RequestFor[Confinement]):
    """Report the confinement of a worker that has told both of us that it is ready."""

    worker: Number


@message(6)
class AssignWorker(RequestFor[AssignedUser]):
    """Give a worker to a lease: its user, devices, memory, control group and kernels."""

    worker: Number
    lease: AskedLease
    gpus: tuple[GpuKey, ...]
    memory: Int  # bytes of this machine's memory that the lease may have
    user: Name  # the pool's user whose kernels it may load
    across: bool  # whether the lease has other servers, too


@message(7)
class BuryWorker(RequestFor[Buried]):
    """Kill and remove the remains of a reaped worker."""

    worker: Number


@message(9)
class MeasureFiles(RequestFor[Files]):
    """Measure the files of the workers that are assigned."""


@message(10)
class SuspendWorkers(RequestFor[Moved]):
    """Take workers of one lease off their GPUs: all of them, or none."""

    stop: tuple[Number, ...]  # those on emulated GPUs, which are only stopped
    save: tuple[Number, ...]  # those whose GPU memory goes into their own memory
    size: Int  # bytes of that, about
    memory: Int  # bytes of this machine's memory that the lease may have meanwhile
    memory_after: Int  # the same when it has not been done
    #: Those bytes go on to a disk; an empty file for them comes with it.
    spill: bool = False


@message(11)
class ResumeWorkers(RequestFor[Moved]):
    """Let suspended workers of one lease go on, all at once."""

    stopped: tuple[Number, ...]
    saved: tuple[Number, ...]
    size: Int  # bytes that go back to GPUs, about
    memory_after: Int  # bytes of this machine's memory that the lease may have then
    #: Where each real GPU's part of them goes; empty: where it was.
    moves: dict[GpuKey, GpuKey] = field(default_factory=dict[GpuId, GpuId])


@message(12)
class LoadFilter(RequestFor[Loaded]):
    """Load a filter of packets for sockets of workers, which this process may not load itself."""

    #: Those of a lease's servers, as 10.0.0.1/32; None: for connections that are there already.
    networks: tuple[Name, ...] | None


@message(8)
class Close(RequestFor[Done]):
    """Remove the directories of all workers; the last call."""
