"""The host's handle of one worker process: its state, its messages, its end."""

import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import trio

from gpupool.pool.errors import GpupoolError, RemoteProtocolError
from gpupool.pool.fair_access import Holder
from gpupool.pool.measures import Transport
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.remoting.host import spawn
from gpupool.remoting.host.budget import Budget, BudgetError
from gpupool.remoting.host.measuring.execution import Execution
from gpupool.remoting.host.shared_handles import TOKEN_SIZE, Sharing
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.protocol import helper_messages, worker_messages
from gpupool.remoting.protocol.handshake import SESSION_SIZE
from gpupool.remoting.transport.descriptor_passing import DESCRIPTOR_COUNT_MAX, receive_packet

RECEIVE_SIZE = 65536

LOG_TEXT_MAX = 64 * 1024
"""Characters of one worker that reach the log; a program could make it talk for ever."""

PLEDGES_MAX = 1 << 16
"""Pieces of memory of one lease that are charged under tokens, with those that are not to be found
any more while somebody has them."""

LANE_WAYS = 2
"""Further connections of a client go up or down, and each way has a number."""

MESSAGES_PER_S, MESSAGES_MAX = 1000.0, 10_000
"""A worker reports once a second, and is refused connections no faster than they come in."""

SILENT_CALLS_PER_S, SILENT_CALLS_MAX = 1000.0, 65_536
"""Rate and burst of budget calls without an answer, beyond those with one: released memory was
reserved before, except for a pool's release in pieces."""

BUDGET_RECEIVE_SIZE, MESSAGES_PER_TURN = 4096, 32
"""Most bytes and messages of one worker before others get their turn: 256 calls, or about a
millisecond."""

LAST_WORDS_TIMEOUT_S = 1.0
"""A dead worker's sockets are read for so long; they end at once unless a child of it lives on."""


class WorkerState(Enum):
    """How far a worker is. Every state may go to ``ENDED``."""

    STARTING = "starting"
    WARM = "warm"
    WAITING = "waiting"  # for the client's data connection
    CONNECTED = "connected"
    ENDED = "ended"


class FloodLimit:
    """Counts unsolicited messages; more than any worker of ours sends is an attack."""

    def __init__(self, per_s: float, most: int) -> None:
        """Allow ``most`` at once, and ``per_s`` in the long run."""
        self._per_s, self._most = per_s, most
        self._left, self._at = float(most), trio.current_time()

    def take(self) -> None:
        """Count one.

        Raises:
            RemoteProtocolError: when it is one too many.
        """
        self._left -= 1
        if self._left < 0:
            now = trio.current_time()
            self._left += min(self._most, (now - self._at) * self._per_s)
            self._at = now
            if self._left < 0:
                raise RemoteProtocolError("a flood", why=f"more than {self._per_s:.0f} a second")

    def earn(self) -> None:
        """Allow one more, for which something was done."""
        self._left += 1


@dataclass(slots=True)
class WorkerProcess:
    """A worker's process, a child of the privileged helper."""

    pid: int
    pidfd: int  # opened before anything could reap it; readable once it has ended
    kill: Callable[[], None]  # a process that was reaped is left alone
    reap: Callable[[], Awaitable[helper_messages.Reaped]]
    returncode: int | None = None
    exited: trio.Event = field(default_factory=trio.Event)  # it is reaped
    spawned_at: float = 0.0  # trio's time


@dataclass(slots=True)
class WorkerSession:
    """The session that a worker serves, from its assignment on."""

    id: bytes = b""
    lease: LeaseId | None = None
    holder: Holder | None = None  # of its lease
    door: str = ""
    devices: tuple[GpuId, ...] = ()
    real: tuple[GpuId, ...] = ()  # those of ``devices`` that are not emulated
    uid: int = -1  # of its lease, once it is assigned; -1: the host's
    budget: socket.socket | None = None  # non-blocking
    contexts: bool = False  # its CUDA contexts exist
    imports: bool = False  # it has asked for what another worker of the lease shares
    transport: Transport | None = None  # of its client's connection
    lanes: tuple[bytes, ...] = ()  # numbers of further connections of its client
    peers: frozenset[ServerId] = frozenset()  # the other servers of its lease
    expects_peers: bool = False  # it takes connections of the workers there
    dialling: bool = False  # a connection for it is being made
    totals: worker_messages.Report = worker_messages.Report(0, 0, 0)
    reported_at: float = float("-inf")  # trio's time; it reports while it executes calls
    execution: Execution = field(default_factory=Execution)


@dataclass(slots=True)
class WorkerEnding:
    """The reasons for which a worker ends."""

    kill_reason: str = ""  # why the host killed it, if it did
    said_reason: str = ""  # why it exits, by its own last message
    out_of_memory: bool = False  # the kernel killed a process of its lease for that
    failed: bool = False  # its end is worth a line in the log


@dataclass(slots=True)
class GpuTest:
    """The test of a GPU, which a warm worker makes in the place of a session."""

    over: trio.Event = field(default_factory=trio.Event)
    found: worker_messages.GpuChecked | None = None


@dataclass(slots=True)
class WorkerHandle:
    """A worker process and everything that the host keeps for it."""

    number: int
    process: WorkerProcess
    control: socket.socket  # non-blocking
    errors: int  # read end of the pipe that is the worker's stderr
    directory: Path
    doors: frozenset[str] = frozenset()  # that it may serve
    state: WorkerState = WorkerState.STARTING
    claimed: bool = False  # for a session, though it may not be assigned yet
    said_ready: trio.Event = field(default_factory=trio.Event)
    ready: trio.Event = field(
        default_factory=trio.Event
    )  # and its privileged helper has confirmed it
    assigned: trio.Event = field(default_factory=trio.Event)
    connected: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)  # nothing of it is left
    said: worker_messages.Ready = worker_messages.Ready(b"", (), "")  # once ``said_ready``
    confinement: tuple[str, ...] = ()  # by its privileged helper's word
    session: WorkerSession = field(default_factory=WorkerSession)
    test: GpuTest | None = None
    ending: WorkerEnding = field(default_factory=WorkerEnding)
    log_left: int = LOG_TEXT_MAX

    @property
    def label(self) -> str:
        """Return how the log names it."""
        lease = f", lease {self.session.lease:04x}" if self.session.lease is not None else ""
        return f"worker {self.process.pid}{lease}"

    def send(self, message: worker_messages.HostMessage, descriptor: int | None = None) -> None:
        """Send one message, with a descriptor that stays the caller's to close.

        Never waits: a worker reads its control socket at all times, so one whose socket buffer is
        full is broken.

        Raises:
            WorkerFailedError: when the worker does not take the whole message.
        """
        spawn.send(self.control, message, descriptor)

    def expect_lanes(self, lanes: tuple[bytes, ...], others: Iterable["WorkerHandle"]) -> None:
        """Note the numbers that further connections of the client name; once, and new ones.

        A worker that was taken over must not get the connections of another one's client.
        """
        known = {name for other in others for name in (other.session.id, *other.session.lanes)}
        right = [len(lane) for lane in lanes] == [SESSION_SIZE] * LANE_WAYS
        if self.session.lanes or not right or known.intersection(lanes):
            self.kill("it expects connections that are not its client's")
        else:
            self.session.lanes = lanes

    def say(self, text: str, log: Callable[[str], None]) -> None:
        """Log a line that this worker or its client has caused, unless there were too many."""
        if self.log_left <= 0:
            return
        self.log_left -= len(text) + 1
        last = "" if self.log_left > 0 else " (and nothing more of it is logged)"
        log(f"{self.label}: {text}{last}")

    def kill(self, reason: str, *, failed: bool = True) -> None:
        """Kill the process; the first reason given stays."""
        if self.state is WorkerState.ENDED:
            return
        if not self.ending.kill_reason:
            self.ending.kill_reason = reason
            self.ending.failed |= failed
        self.process.kill()

    def exit_reason(self) -> str:
        """Return why it ended, once the process has been waited for.

        A process that crashed is often noticed first by what no longer works, and killed for
        that; so a reason to kill it counts only if that is what it died of, or if it lost us
        before.
        """
        code = self.process.returncode
        if code == -signal.SIGKILL and not self.ending.kill_reason and self.ending.out_of_memory:
            return "its lease used all of this server's memory that it may have"
        if code in (-signal.SIGKILL, worker_messages.EXIT_HOST_GONE) and self.ending.kill_reason:
            return self.ending.kill_reason
        if self.ending.said_reason:
            return self.ending.said_reason
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


async def wait_exit(worker: WorkerHandle) -> None:
    """Wait until the process of ``worker`` has ended, and reap it."""
    await trio.lowlevel.wait_readable(worker.process.pidfd)
    try:
        worker.process.returncode = (await worker.process.reap()).returncode
    except GpupoolError:  # The privileged helper has closed, and killed what was left.
        worker.process.returncode = -signal.SIGKILL
    worker.process.exited.set()


async def read_messages(
    worker: WorkerHandle, handle: Callable[[worker_messages.WorkerMessage], None]
) -> None:
    """Pass on the messages of ``worker``, until it closes or sends one that is not allowed."""
    reader = worker_messages.WORKER.reader()
    limit = FloodLimit(MESSAGES_PER_S, MESSAGES_MAX)
    control = trio.socket.from_stdlib_socket(worker.control)
    try:
        while data := await control.recv(RECEIVE_SIZE):
            reader.feed(data)
            for number, frame in enumerate(reader.frames(), 1):
                limit.take()
                if number % MESSAGES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
                handle(worker_messages.WORKER.decode(worker_messages.WorkerMessage, frame))
        # A process that dies closes its sockets first, and its exit status says more than that.
        with trio.move_on_after(LAST_WORDS_TIMEOUT_S):
            await worker.process.exited.wait()
        if not worker.process.exited.is_set():
            worker.kill("it closed its control socket")
    except OSError as error:
        worker.kill(f"its control socket failed: {error}")
    except Exception as error:  # noqa: BLE001 - whatever a worker says ends that worker alone
        worker.kill(f"it broke the protocol: {error}")


async def serve_budget(worker: WorkerHandle, budget: Budget, sharing: Sharing) -> None:
    """Answer the budget calls of ``worker``, until it closes or makes one that is not allowed."""
    assert worker.session.budget is not None
    sock = worker.session.budget
    buffer = bytearray()
    descriptors: list[int] = []
    limit = FloodLimit(SILENT_CALLS_PER_S, SILENT_CALLS_MAX)
    try:
        while True:
            data, found = await receive_packet(sock, BUDGET_RECEIVE_SIZE, DESCRIPTOR_COUNT_MAX)
            descriptors += found
            if len(descriptors) > 1:
                raise RemoteProtocolError("more than one descriptor at a time")
            if not data:
                break
            buffer += data
            answered = False
            for call in worker_messages.decode_budget_calls(buffer):
                if answered:
                    raise RemoteProtocolError("a call before the answer to the one before it")
                if call.operation >= worker_messages.PLEDGE:
                    answer, passed = answer_holding(worker, budget, call), []
                elif call.operation >= worker_messages.SHARE:
                    answer, passed = answer_sharing(worker, budget, sharing, call, descriptors)
                else:
                    answer, passed = answer_budget_call(worker, budget, call), []
                # A worker has one call in hand at most, so the answer always fits.
                answered = bool(answer)
                if answered:
                    limit.earn()
                else:
                    limit.take()
                if answer and socket.send_fds(sock, [answer], passed) != len(answer):
                    raise WorkerFailedError("answers are not read")
            if descriptors and not buffer:
                raise RemoteProtocolError("a descriptor that nobody asked for")
    except OSError as error:
        worker.kill(f"its budget socket failed: {error}")
    except Exception as error:  # noqa: BLE001 - whatever a worker says ends that worker alone
        worker.kill(f"it broke the rules of the budget: {error}")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def answer_sharing(
    worker: WorkerHandle,
    budget: Budget,
    sharing: Sharing,
    call: worker_messages.BudgetCall,
    descriptors: list[int],
) -> tuple[bytes, list[int]]:
    """Share, find or forget a handle; return the answer, and the descriptor that goes with it.

    A shared descriptor is taken out of ``descriptors``.

    Raises:
        BudgetError: when the worker asks for more than it may have.
    """
    if worker.session.lease is None or len(call.payload) < TOKEN_SIZE:
        raise BudgetError("a handle without a token, or without a lease")
    token, value = call.payload[:TOKEN_SIZE], call.payload[TOKEN_SIZE:]
    if call.operation == worker_messages.SHARE:
        if call.device and not descriptors:
            raise BudgetError("a descriptor is missing")
        descriptor = descriptors.pop() if call.device else -1
        if budget.shared(worker.session.lease) >= PLEDGES_MAX:
            if descriptor >= 0:
                os.close(descriptor)
            return worker_messages.BUDGET_ANSWER.pack(0, 0), []
        granted = sharing.share(worker.number, worker.session.lease, token, value, descriptor)
        return worker_messages.BUDGET_ANSWER.pack(granted, 0), []
    if call.operation == worker_messages.FORGET:
        sharing.forget(worker.number, worker.session.lease, token)
        return worker_messages.BUDGET_ANSWER.pack(1, 0), []
    found = sharing.find(worker.session.lease, token)
    if found is None:
        return worker_messages.BUDGET_ANSWER.pack(0, 0), []
    worker.session.imports = worker.session.imports or found.worker != worker.number
    if call.device:
        budget.hold(worker.number, token)
    passed = [found.descriptor] if found.descriptor >= 0 else []
    return worker_messages.BUDGET_ANSWER.pack(
        1 + len(passed), len(found.value)
    ) + found.value, passed


def answer_holding(worker: WorkerHandle, budget: Budget, call: worker_messages.BudgetCall) -> bytes:
    """Record the holders of shared memory; return the answer.

    Raises:
        BudgetError: when the worker reports something impossible.
    """
    token, rest = call.payload[:TOKEN_SIZE], call.payload[TOKEN_SIZE:]
    done = worker_messages.BUDGET_ANSWER.pack(1, 0)
    if call.operation == worker_messages.LET_GO:
        budget.let_go(worker.number, token)
        return done
    if len(rest) != worker_messages.PLEDGED.size:
        raise BudgetError("a pledge without its size")
    (size,) = worker_messages.PLEDGED.unpack(rest)
    if call.operation == worker_messages.TAKE_BACK:
        budget.take_back(worker.number, token, size)
        return done
    if call.device >= len(worker.session.devices):
        raise BudgetError(f"no device {call.device}")
    budget.pledge(worker.number, worker.session.devices[call.device], token, size)
    return done


def answer_budget_call(
    worker: WorkerHandle, budget: Budget, call: worker_messages.BudgetCall
) -> bytes:
    """Carry out one call and return its answer; a release has none.

    Raises:
        BudgetError: when the worker asks for more than it may have.
    """
    if call.device >= len(worker.session.devices) or worker.session.lease is None:
        raise BudgetError(f"no device {call.device}")
    gpu = worker.session.devices[call.device]
    granted = False
    if call.operation == worker_messages.RESERVE:
        granted = budget.reserve(worker.number, gpu, call.size)
    elif call.operation == worker_messages.RELEASE:
        budget.release(worker.number, gpu, call.size)
        return b""
    return worker_messages.BUDGET_ANSWER.pack(granted, budget.usage(worker.session.lease, gpu))


async def read_errors(worker: WorkerHandle, log: Callable[[str], None]) -> None:
    """Log the output of ``worker`` up to a limit, and read on so that it never blocks."""
    pending = b""
    async with trio.lowlevel.FdStream(worker.errors) as stream:
        async for data in stream:
            *lines, pending = (pending + data).split(b"\n")
            pending = pending[: worker_messages.TEXT_SIZE_MAX]
            for line in lines:
                _log_line(worker, line, log)
    _log_line(worker, pending, log)


def _log_line(worker: WorkerHandle, line: bytes, log: Callable[[str], None]) -> None:
    text = worker_messages.shortened(line.decode(errors="replace")).strip()
    if text:
        worker.say(text, log)
