"""Our signals, and those of them that the program has not got: they are passed on to it.

The program is in our process group. So it gets by itself what a terminal, a shell or ``timeout``
sends to the group, and would get it twice if we passed it on. A signal does not tell whether it was
sent to a group. So a third process, the bystander, stands in the group. It blocks all signals,
which stay pending for it. What it has got as well was sent to the group, all else to us alone.

The kernel signals a group in one go, its newest member first: the bystander has its signal when we
have ours. Both are asked in turn until neither has anything new, and signals of one kind that have
merged in between count once. Some senders go through a list of processes instead. So a signal of
ours waits a moment for that of the bystander, and the other way round. Real-time signals never
merge, and are counted.

We block all signals, too, before there are threads, and read them from a descriptor.
"""

import ctypes
import os
import select
import signal
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NoReturn

import trio

from gpupool.remoting.program.process.program_process import STOPPED, fork, state_of

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
"""Signals whose default action does nothing."""

SEEN, STOPS_TOO, GOES_ON = b"seen", b"stops", b"goes on"


class Fate(Enum):
    """What is known of a signal."""

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
        """Return what has arrived, and what of it and of those that wait was sent to the group."""
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
