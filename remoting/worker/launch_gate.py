"""The gate before a worker's launches: open while its lease has the turn on a GPU.

The host's orders come over a socket of their own. A launch looks at one number in this process's
memory, which costs a few nanoseconds. A closed gate keeps the launches of the program back and
nothing else, until the host opens it again.
"""

import contextlib
import ctypes
import socket
import threading
from collections.abc import Callable
from typing import Final

from gpupool.remoting.protocol.worker_messages import (
    CLOSE,
    DRAINED,
    IDLE,
    OPEN,
    TURN_MESSAGE,
    WANT,
    WATCH,
)

QUIET_S = 0.005
"""A lease that has launched nothing for so long in its turn gives the turn away."""

GATE_DEVICES_MAX = 256


class Gate(ctypes.Structure):
    """One device's gate, as in ``launcher.h``; each on a separate cache line."""

    _fields_ = [
        ("closed", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("passed", ctypes.c_uint64),
        ("padding", ctypes.c_uint64 * 6),
    ]
    closed: int
    passed: int


class LaunchGate:
    """The gates of a worker's devices. One thread launches; others follow the host's orders."""

    def __init__(self) -> None:
        self.gates: Final = (Gate * GATE_DEVICES_MAX)()
        self.executing = False
        """Set by a door that works on the launching thread."""
        self.is_awaited: Callable[[], bool] = lambda: False
        """Says whether the program waits for something that was launched."""
        self.drain: Callable[[int], None] = self.until_executed
        """Waits for all work of a device; called by threads of this gate."""
        self._changed = threading.Condition()
        self._socket: socket.socket | None = None
        self._numbers: dict[int, int] = {}  # of the last order to close
        self._closings: dict[int, _Closing] = {}
        self._watched: dict[int, int] = {}  # what had passed when it was looked at

    def attach(self, sock: socket.socket) -> None:
        """Obey the host from now on; every gate is open until it says otherwise."""
        self._socket = sock
        threading.Thread(target=self._obey, args=(sock,), daemon=True).start()

    def wait(self, device: int) -> None:
        """Return once launches on a device may go on; the caller has found it closed."""
        gate = self.gates[device]
        with self._changed:
            while gate.closed:
                # Said once for each closing: the host remembers it until it opens the gate.
                number = self._numbers.get(device)
                self._say(device, WANT)
                while gate.closed and self._numbers.get(device) == number:
                    self._changed.wait()

    def begin(self, device: int) -> None:
        """Begin to execute a call on a device, once it may; for a door that does its own work."""
        gate = self.gates[device]
        self.executing = True
        while gate.closed:
            self.executing = False
            self.wait(device)
            self.executing = True
        gate.passed += 1

    def _obey(self, sock: socket.socket) -> None:
        while True:
            sock.settimeout(QUIET_S if self._watched else None)
            try:
                order = sock.recv(TURN_MESSAGE.size)
            except TimeoutError:
                self._look()
                continue
            except OSError:
                order = b""
            if len(order) != TURN_MESSAGE.size:
                break
            self._carry_out(*TURN_MESSAGE.unpack(order))
        # The host gives no turns any more: nothing waits for it.
        sock.close()
        with self._changed:
            for gate in self.gates:
                gate.closed = 0
            self._changed.notify_all()

    def _carry_out(self, device: int, order: int, number: int) -> None:
        gate = self.gates[device]
        self._watched.pop(device, None)
        if order == CLOSE:
            with self._changed:
                gate.closed, self._numbers[device] = 1, number
                self._changed.notify_all()
            self._closing(device).begin(number)
        elif order in (OPEN, WATCH):
            if order == WATCH:
                self._watched[device] = gate.passed
            with self._changed:
                gate.closed = 0
                self._changed.notify_all()

    def _closing(self, device: int) -> "_Closing":
        if device not in self._closings:
            self._closings[device] = _Closing(self, device)
        return self._closings[device]

    def _look(self) -> None:
        """Give turns away in which nothing was launched of late."""
        for device, before in list(self._watched.items()):
            passed = self.gates[device].passed
            if passed != before or self.executing or self.is_awaited():
                self._watched[device] = passed
            else:
                del self._watched[device]
                self._say(device, IDLE)

    def drained(self, device: int, number: int) -> None:
        """Tell the host that the work of a device is over that was under way at its order."""
        self._say(device, DRAINED, number)

    def _say(self, device: int, word: int, number: int = 0) -> None:
        if self._socket is not None:
            try:
                self._socket.send(TURN_MESSAGE.pack(device, word, number))
            except OSError:
                return  # the host has gone, which the thread that obeys it finds

    def until_executed(self, _device: int) -> None:
        """Return once the thread that launches executes nothing."""
        pause = threading.Event()
        while self.executing:
            pause.wait(0.0005)


class _Closing:
    """A thread that waits for one device's work at the end of each turn."""

    def __init__(self, gate: LaunchGate, device: int) -> None:
        self._gate, self._device, self._number = gate, device, 0
        self._asked = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, number: int) -> None:
        """Wait for the work that is under way, and say so by this number."""
        self._number = number
        self._asked.set()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            number = self._number
            with contextlib.suppress(Exception):  # the program's, which hears of it itself
                self._gate.drain(self._device)
            self._gate.drained(self._device, number)


_of_worker = LaunchGate()


def of_worker() -> LaunchGate:
    """Return the gate of this process, which serves one session."""
    return _of_worker
