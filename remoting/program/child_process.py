"""The program under ``gpupool run``, started as a shell would have started it in our place.

It has our descriptors, terminal and process group, and each signal as often as without us. We stop
when it stops, and end as it ends.

The process that becomes the program is made before this one has threads and connections. So it has
the descriptors, signals, limits and terminal that a shell gives to a program, and nothing of ours.
It waits for its orders, and ends when we end before them.

The program is in our process group. So it gets by itself each signal that a terminal, a shell or
``timeout`` sends to the group, and would get it twice if we passed it on. A signal does not tell
whether it was sent to a group. So a third process, the bystander, stands in the group. It blocks
all signals, which stay pending for it. A signal that it got as well was sent to the group, all
others to us alone: we pass those on.

The kernel signals a group in one go, its newest member first: the bystander has its signal when we
have ours. Both are asked in turn until neither has anything new, and signals of one kind that have
merged in between count once. Some senders go through a list of processes instead. So a signal of
ours waits a moment for that of the bystander, and the other way round. Real-time signals never
merge, and are counted. We block all signals, too, before there are threads, and read them from a
descriptor.
"""

import ctypes
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import inf
from types import TracebackType
from typing import NoReturn, Self

import trio

from gpupool.remoting.program.door_choice import NotExecutableError

PR_SET_PDEATHSIG = 1
PIECE_SIZE = 1 << 16
NUMBERED = ("LISTEN_PID", "WATCHDOG_PID")
"""Variables by which systemd names the one process that they are meant for."""

STOPPED = "T"
"""By a signal; one that a debugger has stopped goes on by itself."""


class ProgramProcess:
    """The process, in the words of ``subprocess.Popen``."""

    def __init__(self, mask: Collection[int], death_signal: int) -> None:
        """Fork.

        Args:
            mask: the signals that the program finds blocked.
            death_signal: the program gets it when this process is killed; 0 for none.
        """
        self._orders, theirs = socket.socketpair()
        self.returncode: int | None = None
        ours = os.getpid()
        # A process that ignores SIGCHLD is told no exit code of a child.
        children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The kernel watches the thread that forks. This one lives as long as we do.
        self.pid = fork()
        if not self.pid:
            self._orders.close()
            signal.signal(signal.SIGCHLD, children)
            _become(theirs, mask, death_signal, ours)
        theirs.close()

    def start(self, program: str, arguments: list[str], environment: dict[str, str]) -> None:
        """Let it become the program.

        Raises:
            OSError: when the system refuses to execute it.
        """
        with self._orders as orders:
            orders.sendall(json.dumps([program, arguments, environment]).encode())
            orders.shutdown(socket.SHUT_WR)
            number = orders.recv(32)  # at the end once the program is executed
        if number:
            raise OSError(int(number), os.strerror(int(number)))

    def close(self) -> None:
        """End it, if it has not become the program."""
        self._orders.close()

    def poll(self) -> int | None:
        """Return the code if it has ended; it is waited for then."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def stopped_by(self) -> int:
        """Return the signal that has stopped it, if it is stopped; else 0."""
        if sys.platform != "linux" or self.returncode is not None or state_of(self.pid) != STOPPED:
            return 0
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
            return found.si_status if found else signal.SIGSTOP
        return 0

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for its end; return the code, as ``subprocess`` defines it."""
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        else:
            wait = partial(os.waitpid, self.pid, 0)
            _, status = await trio.to_thread.run_sync(wait, abandon_on_cancel=True)
            self.returncode = os.waitstatus_to_exitcode(status)
        code = self.poll()
        assert code is not None
        return code


def fork() -> int:
    """Fork a process that uses no lock of other threads; Python warns where there may be any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def state_of(pid: int) -> str:
    """Return the letter by which Linux names the state of a process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""


def _become(
    orders: socket.socket, mask: Collection[int], death_signal: int, parent: int
) -> NoReturn:
    """Wait for the program's name, and become it; no other thread is here to hold a lock."""
    try:
        if death_signal and sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        text = b"".join(iter(lambda: orders.recv(PIECE_SIZE), b""))
        if not text or os.getppid() != parent:
            os._exit(0)
        program, arguments, environment = json.loads(text)
        for name in NUMBERED:
            if environment.get(name) == str(parent):
                environment[name] = str(os.getpid())
        # What Python has changed; what comes from here on is pending for the program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(program, arguments, environment)  # noqa: S606 - it is no shell's line
    except OSError as error:
        orders.send(str(error.errno).encode())
    finally:
        os._exit(127)


REAL_TIME = signal.SIGRTMIN if sys.platform == "linux" else signal.NSIG
"""The first signal of which each one that is sent counts."""

GRACE_S = 0.05
"""From the first signal of a sender that goes through a list of processes to the last one."""

LOOK_S = 0.2
"""How often the bystander looks whether one of us and the program is stopped without the other."""

ANSWER_S = 1.0
ROUND_COUNT_MAX = 100
ANSWER_SIZE = 1 << 18
RECORD = struct.Struct("=IiiIIiIIIIiiQ72x")
"""``signalfd_siginfo``: number, error, code, process and user of the sender first; value last."""

READ_SIZE = 64 * RECORD.size
SI_QUEUE = -1
STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
HARMLESS = (signal.SIGCONT, signal.SIGWINCH, signal.SIGURG, signal.SIGCHLD)
"""Signals with no effect by default."""

SEEN, STOPS_TOO, GOES_ON = b"seen", b"stops", b"goes on"


class Fate(Enum):
    """State of knowledge about a signal."""

    ARRIVED = "has arrived"
    SHARED = "was sent to the process group, and so to the program"
    ALONE = "was sent to us alone"


@dataclass(frozen=True, slots=True)
class Arrived:
    """One signal; ``sender`` is 0 for the kernel and for processes that cannot be seen."""

    number: int
    code: int = 0
    sender: int = 0
    value: int = 0

    @property
    def name(self) -> str:
        """Return its name, for people."""
        try:
            return signal.Signals(self.number).name
        except ValueError:
            return f"SIGRTMIN+{self.number - REAL_TIME}"

    def send_to(self, pid: int) -> None:
        """Send the same to a process that exists, or to the group of a negative number."""
        if self.code == SI_QUEUE and pid > 0:
            ctypes.CDLL(None).sigqueue(pid, self.number, ctypes.c_void_p(self.value))
        else:
            os.kill(pid, self.number)


class Bystander:
    """The third process; it also lets us and the program stop and go on together."""

    def __init__(self) -> None:
        """Fork; no other thread may run yet."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(ANSWER_S)
        ours = os.getpid()
        self.pid = fork()
        if not self.pid:
            _stand_by(theirs, ours)
        theirs.close()

    def seen(self) -> Counter[int]:
        """Return how many signals of each number it has got since it was last asked."""
        if state_of(self.pid) == STOPPED:
            os.kill(self.pid, signal.SIGCONT)
        self.tell(SEEN)
        try:
            return Counter(self._ours.recv(ANSWER_SIZE)[1:])
        except OSError:
            return Counter()  # someone has killed it: from now on all is passed on

    def tell(self, what: bytes) -> None:
        """Tell it the program's number, or that we stop or go on."""
        try:
            self._ours.send(what)
        except OSError:
            return

    def close(self) -> None:
        """Let it end."""
        self._ours.close()
        os.waitpid(self.pid, 0)


def _stand_by(orders: socket.socket, first: int) -> NoReturn:
    """Keep signals until the relay asks for them; keep nothing open but the socket."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for each in map(int, os.listdir("/proc/self/fd")):
            if each != orders.fileno():
                with suppress(OSError):  # that of the list itself
                    os.close(each)
        program, follows = 0, False
        while True:
            if select.select([orders], [], [], LOOK_S if program else None)[0]:
                order = orders.recv(64)
                if not order:
                    os._exit(0)
                if order == SEEN:
                    orders.send(bytes([0, *_pending(first)]))
                elif order in (STOPS_TOO, GOES_ON):
                    follows = order == STOPS_TOO
                else:
                    program = int(order)
            elif state_of(first) == STOPPED != state_of(program):
                # One was stopped alone, or goes on alone; they are one process to everybody.
                os.kill(*(first, signal.SIGCONT) if follows else (program, signal.SIGSTOP))
                follows = True
    finally:
        os._exit(0)


def _pending(first: int) -> list[int]:
    assert sys.platform == "linux"
    found: list[int] = []
    while signal.sigpending():
        info = signal.sigwaitinfo(signal.valid_signals())
        if info.si_pid != first:
            found.append(info.si_signo)
    return found


class LinuxSignals:
    """Our signals from a descriptor, each with its fate."""

    def __init__(self) -> None:
        """Block all signals; no other thread may run yet."""
        wanted = signal.valid_signals()
        self.mask: set[signal.Signals] = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # pyright: ignore[reportAttributeAccessIssue]
        bits = sum(1 << (number - 1) for number in wanted)
        every = ctypes.create_string_buffer(bits.to_bytes(8, sys.byteorder), 128)
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # SFD_NONBLOCK and SFD_CLOEXEC are the same
        self._descriptor = ctypes.CDLL(None).signalfd(-1, every, flags)
        self.bystander = Bystander()
        self._waiting: list[tuple[float, Arrived]] = []  # for the bystander's
        self._ahead: list[tuple[float, int]] = []  # of ours

    def close(self) -> None:
        """Restore the signals of before."""
        self.bystander.close()
        os.close(self._descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    async def fates(self) -> list[tuple[Fate, Arrived]]:
        """Wait until something is known of signals, and return it; our children's have no fate."""
        with trio.move_on_at(min((due for due, _ in self._waiting), default=inf)):
            await trio.lowlevel.wait_readable(self._descriptor)
        arrived, shared = self._look()
        now = trio.current_time()
        alone = [each for due, each in self._waiting if due <= now]
        self._waiting = [each for each in self._waiting if each[0] > now]
        by_fate = {Fate.ARRIVED: arrived, Fate.SHARED: shared, Fate.ALONE: alone}
        return [(fate, each) for fate, found in by_fate.items() for each in found]

    def follow(self, program: int) -> None:
        """Stop and go on with this process from now on."""
        self.bystander.tell(str(program).encode())

    def stop_as(self, number: int) -> None:
        """Stop as the program has stopped; 0 for not at all."""
        # A SIGCONT of which it is not known yet whom it was for may let the program go on.
        if number and not any(each.number == signal.SIGCONT for _, each in self._waiting):
            self.bystander.tell(STOPS_TOO)
            stop_as(number)

    def _look(self) -> tuple[list[Arrived], list[Arrived]]:
        """Return new signals, and those of them and of the waiting ones sent to the group."""
        ours, theirs = self._read(), Counter[int]()
        for _ in range(ROUND_COUNT_MAX):
            theirs += self.bystander.seen()
            later = self._read()
            ours += later
            if not later:
                break
        now = trio.current_time()
        self._ahead = [each for each in self._ahead if each[0] > now]
        alone = [each for each in ours if each.code <= 0 or each.number != signal.SIGCHLD]
        shared: list[Arrived] = []
        for number, count in theirs.items():
            same = [each for each in alone if each.number == number]
            taken = same if number < REAL_TIME else same[:count]
            late = [each for _, each in self._waiting if each.number == number]
            late = late[: count - len(taken)] if number >= REAL_TIME or not taken else []
            shared += taken + late
            alone = [each for each in alone if not any(each is one for one in taken)]
            self._waiting = [w for w in self._waiting if not any(w[1] is one for one in late)]
            missing = count if number >= REAL_TIME else 1
            self._ahead += [(now + GRACE_S, number)] * (missing - len(taken) - len(late))
        for each in alone:
            due = next((one for one in self._ahead if one[1] == each.number), None)
            if due is not None:
                self._ahead.remove(due)
                shared.append(each)
            else:
                self._waiting.append((now + GRACE_S, each))
        return ours, shared

    def _read(self) -> list[Arrived]:
        found: list[Arrived] = []
        while True:
            try:
                data = os.read(self._descriptor, READ_SIZE)
            except BlockingIOError:
                return found
            for number, _, code, sender, *_, value in RECORD.iter_unpack(data):
                if number == signal.SIGCONT:
                    self.bystander.tell(GOES_ON)
                # The bystander lets us go on; the kernel tells of our broken pipes, in our name,
                # and of our limit of processor time, which is not the program's.
                own = code <= 0 and sender in (os.getpid(), self.bystander.pid)
                if not own and (code <= 0 or number != signal.SIGXCPU):
                    found.append(Arrived(number, code, sender, value))


def stop_as(number: int) -> None:
    """Stop this process as ``number`` does, until it is continued."""
    if signal.getsignal(number) is signal.SIG_IGN:
        number = signal.SIGSTOP
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])


FORWARDED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals that are heard while GPUs are waited for; all that are passed on outside of Linux."""

FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended: its own exit code, or the signal that ended it."""

    code: int
    signal: int = 0

    @property
    def failed(self) -> bool:
        """Return whether the program ended with an error or a signal."""
        return bool(self.code or self.signal)


def terminal_sent(number: int) -> bool:
    """Return whether ``number`` most likely came from our terminal, and so reached the child too.

    A terminal sends to its foreground process group, and the child is in ours.
    """
    if number not in FROM_TERMINAL:
        return False
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # no controlling terminal
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def caught_signals() -> Generator[AsyncIterator[int]]:
    """Receive the signals of ``FORWARDED``; those that we were started to ignore stay ignored.

    ``nohup`` and a shell's background jobs rely on ignored signals being inherited.
    """
    wanted = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    with trio.open_signal_receiver(*wanted) as received:
        yield received


class PlainSignals:
    """The same as ``LinuxSignals`` where the system tells less of a signal, as macOS does."""

    def __init__(self) -> None:
        """Receive signals."""
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self._stack = ExitStack()
        self._received = self._stack.enter_context(caught_signals())

    def close(self) -> None:
        """Receive them no more."""
        self._stack.close()

    async def fates(self) -> list[tuple[Fate, Arrived]]:
        """Wait for a signal; return its recipients, as far as they can be seen."""
        number = await anext(self._received)
        fate = Fate.SHARED if terminal_sent(number) else Fate.ALONE
        return [(Fate.ARRIVED, Arrived(number)), (fate, Arrived(number))]

    def follow(self, program: int) -> None:
        """Do nothing: signals that stop processes are not caught."""

    def stop_as(self, number: int) -> None:
        """Do nothing, likewise."""


def inherited_environment() -> dict[str, str]:
    """Return our environment, without Python's additions in the locale "C"."""
    variables = dict(os.environ)
    with suppress(OSError), open("/proc/self/environ", "rb") as file:
        if not any(each.startswith(b"LC_CTYPE=") for each in file.read().split(b"\0")):
            variables.pop("LC_CTYPE", None)
    return variables


def inherited_descriptors() -> list[int]:
    """Return the descriptors that we were started with; ours are closed when a program starts."""
    found = [int(name) for name in os.listdir("/dev/fd")] if os.path.isdir("/dev/fd") else []
    inherited: list[int] = []
    for each in found:
        with suppress(OSError):  # that of the folder itself
            inherited += [each] if each > 2 and os.get_inheritable(each) else []
    return inherited


def let_go(inherited: Sequence[int]) -> None:
    """Close the descriptors for the program alone, so that its end of a pipe is the last one.

    Standard error stays, for what is to be said when the program has ended.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1):
        os.dup2(null, each)
    os.close(null)
    for each in inherited:
        with suppress(OSError):
            os.close(each)


class Supervisor:
    """Receives our signals before, while and after the program runs."""

    def __init__(
        self,
        *,
        on_early: Callable[[int], None] = lambda _: None,
        on_interrupt: Callable[[], None] = lambda: None,
        decided: Callable[[str], None] = lambda _: None,
        death_signal: int = signal.SIGTERM,
    ) -> None:
        """Make a supervisor of a program that has not started.

        Args:
            on_early: called with a signal that comes before the program runs.
            on_interrupt: called for each SIGINT while it runs.
            decided: called with a text for each signal, for the verbose log.
            death_signal: the signal for the program when this process is killed; 0 for none.
        """
        self._death_signal = death_signal
        self._on_early = on_early
        self._on_interrupt = on_interrupt
        self._decided = decided
        self._runs = False
        self.early = 0
        """The first signal that came before the program ran, or 0."""

    def __enter__(self) -> Self:
        """Fork before our later threads and files exist, and take over the signals."""
        self._inherited = inherited_descriptors()
        self._signals = LinuxSignals() if sys.platform == "linux" else PlainSignals()
        self._process = ProgramProcess(self._signals.mask, self._death_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the signals of before."""
        self._process.close()
        self._signals.close()

    async def watch(self) -> None:
        """Handle every signal until cancelled."""
        while True:
            for fate, each in await self._signals.fates():
                if not self._runs:
                    self._hear_early(fate, each)
                elif fate is not Fate.ARRIVED:
                    self._pass_on(fate, each)
                elif each.number == signal.SIGINT:
                    self._on_interrupt()
            if self._runs:
                self._signals.stop_as(self._process.stopped_by())

    def _hear_early(self, fate: Fate, each: Arrived) -> None:
        ignored = signal.getsignal(each.number) is signal.SIG_IGN
        if fate is not Fate.ARRIVED or ignored or each.number in HARMLESS:
            return
        if each.number in STOPS:
            stop_as(each.number)
            return
        self.early = self.early or each.number
        self._decided(f"signal {each.name}: the program does not run yet")
        self._on_early(each.number)

    def _pass_on(self, fate: Fate, each: Arrived) -> None:
        """Send the program a signal that it has not got, also to its group if that is another."""
        pid = self._process.pid
        if self._process.poll() is not None:
            return
        group = os.getpgid(pid)
        if fate is Fate.ALONE and each.sender == pid:
            self._decided(f"signal {each.name}: the program sent it to its parent, which is ours")
            each.send_to(os.getppid())
        elif fate is Fate.ALONE:
            self._decided(f"signal {each.name}: passed on")
            each.send_to(pid)
        elif group != os.getpgrp() and group == pid and os.getpid() == os.getpgrp():
            self._decided(f"signal {each.name}: passed on to the program's process group")
            each.send_to(-pid)
        else:
            self._decided(f"signal {each.name} {fate.value}")

    async def run(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Ending:
        """Run the program to its end.

        Raises:
            NotExecutableError: when the system refuses to execute it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        _start(self._process, program, arguments, environment)
        self._runs = True
        self._signals.follow(self._process.pid)
        let_go(self._inherited)
        try:
            code = await self._process.wait()
        finally:
            if self._process.poll() is None:
                # We are cancelled, and no other process will end it.
                self._process.send_signal(signal.SIGTERM)
        return ending_of(code)


def _start(
    process: ProgramProcess, program: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Let the process become the program; takes milliseconds.

    Raises:
        NotExecutableError: when the system refuses to execute it.
    """
    try:
        process.start(program, list(arguments), dict(environment))
    except FileNotFoundError as error:
        # The file exists, but the interpreter in its first line does not.
        why = "the interpreter that its first line names does not exist"
        raise NotExecutableError(f"cannot run {arguments[0]!r}", why=why) from error
    except OSError as error:
        hint = ""
        if error.errno == errno.ENOEXEC:
            hint = "is it a script without a first line such as #!/bin/sh?"
        why = (error.strerror or str(error)).lower()
        raise NotExecutableError(f"cannot run {arguments[0]!r}", why=why, hint=hint) from error


def ending_of(returncode: int) -> Ending:
    """Return the ending for Python's ``returncode``."""
    return Ending(0, -returncode) if returncode < 0 else Ending(returncode)
