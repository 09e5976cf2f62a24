"""Gives turns to the workers of several leases on one GPU, on a separate thread.

The thread sleeps while nobody waits for a turn. It is no part of the event loop, whose work would
make turns longer, and which turns would keep from its own.
"""

import contextlib
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.sharing.turns import Got, Order, Turns, least_wake
from gpupool.remoting.protocol import worker_messages
from gpupool.remoting.protocol.worker_messages import TURN_MESSAGE

WORDS_PER_S = 5000
"""More than a worker of ours says in a second, of all its GPUs."""

READ_MAX = 64
"""Of one worker's words at a time, so that none keeps the others waiting."""

ORDERS = {
    Order.CLOSE: worker_messages.CLOSE,
    Order.OPEN: worker_messages.OPEN,
    Order.WATCH: worker_messages.WATCH,
}


class Worker(Protocol):
    """A worker, as ``WorkerHandle`` is one."""

    def send(self, message: worker_messages.TakeTurns, descriptor: int | None = None) -> None:
        """Send a message with a descriptor."""
        ...

    def kill(self, reason: str) -> None:
        """End it."""
        ...


@dataclass(slots=True)
class _Seated:
    """A worker that takes turns."""

    lease: LeaseId
    gpus: list[GpuId]  # in the worker's order
    shares: Sequence[float]  # of each, before the weight of its class
    line: socket.socket | None = None  # until another lease uses one of its GPUs
    counted_from: float = -math.inf
    words: int = 0
    broken: str = ""

    def count(self, now: float) -> None:
        """Count one word; too many are no worker's of ours."""
        if now - self.counted_from > 1.0:
            self.counted_from, self.words = now, 0
        self.words += 1
        if self.words > WORDS_PER_S * max(1, len(self.gpus)):
            self.broken = "it said more of its turns than there is to say"


class Arbiter:
    """The turns of all GPUs of a host. Any thread may call; trio's alone ``join``."""

    def __init__(self, worker_of: Callable[[int], Worker | None]) -> None:
        """Prepare; the thread starts with the first GPU that has several leases.

        Args:
            worker_of: returns a worker by its number; called on trio's thread.
        """
        self._worker_of = worker_of
        self._trio: trio.lowlevel.TrioToken | None = None
        self._lock = threading.Lock()
        self._turns: dict[GpuId, Turns] = {}
        self._seated: dict[int, _Seated] = {}
        self._weights: dict[LeaseId, float] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, -1)
        self._thread: threading.Thread | None = None
        self._closed = False

    def join(self, worker: int, lease: LeaseId, shares: Sequence[tuple[GpuId, float]]) -> None:
        """Add a worker, which takes turns once another lease uses one of its GPUs.

        Args:
            worker: its number.
            lease: whose it is.
            shares: its GPUs in its order, and the share of each one's time that the lease is due.
        """
        self._trio = trio.lowlevel.current_trio_token()
        with self._lock:
            gpus, parts = [gpu for gpu, _ in shares], [share for _, share in shares]
            self._seated[worker] = _Seated(lease, gpus, parts)
            weight = self._weights.get(lease, 1.0)
            for gpu, share in shares:
                turns = self._turns.setdefault(gpu, Turns())
                turns.join(worker, lease, share * weight, time.monotonic())
            for gpu in gpus:  # after all have joined: there may be no socket
                if self._turns[gpu].are_shared() and not self._closed:
                    self._seat(gpu)
                self._tell(gpu)
        self._poke()

    def leave(self, worker: int) -> None:
        """Remove a worker that has ended; harmless if it never joined."""
        with self._lock:
            seated = self._seated.pop(worker, None)
            if seated is None:
                return
            if seated.line is not None:
                self._unregister(seated.line)
                seated.line.close()
            for gpu in seated.gpus:
                self._unseat(worker, gpu, time.monotonic())
        self._poke()

    def rest(self, lease: LeaseId) -> None:
        """Pass a lease over that is being suspended."""
        with self._lock:
            for gpu, turns in self._turns.items():
                turns.rest(lease, time.monotonic())
                self._tell(gpu)
        self._poke()

    def come_back(self, lease: LeaseId) -> None:
        """Count a lease again that runs."""
        with self._lock:
            for gpu, turns in self._turns.items():
                turns.come_back(lease, time.monotonic())
                self._tell(gpu)
        self._poke()

    def weigh(self, weights: Mapping[LeaseId, float]) -> None:
        """Multiply the shares of leases, those that have workers now and those of later ones.

        Args:
            weights: of all leases that have another one than 1.
        """
        with self._lock:
            self._weights = dict(weights)
            for seated in self._seated.values():
                weight = self._weights.get(seated.lease, 1.0)
                for gpu, share in zip(seated.gpus, seated.shares, strict=True):
                    self._turns[gpu].set_share(seated.lease, share * weight, time.monotonic())

    def move(self, lease: LeaseId, moves: Mapping[GpuId, GpuId]) -> None:
        """Move the turns of a resting lease's workers to other GPUs."""
        with self._lock:
            now, weight = time.monotonic(), self._weights.get(lease, 1.0)
            mine = [(n, each) for n, each in self._seated.items() if each.lease == lease]
            for number, seated in mine:
                for gpu in seated.gpus:
                    if gpu in moves:
                        self._unseat(number, gpu, now)
            for number, seated in mine:
                for place, gpu in enumerate(seated.gpus):
                    if (new := moves.get(gpu)) is not None:
                        seated.gpus[place] = new
                        turns = self._turns.setdefault(new, Turns())
                        turns.join(number, lease, seated.shares[place] * weight, now)
            for new in {gpu for _, seated in mine for gpu in seated.gpus} & set(moves.values()):
                turns = self._turns[new]
                turns.rest(lease, now)
                if turns.are_shared() and not self._closed:
                    self._seat(new)
                self._tell(new)
        self._poke()

    def _unseat(self, worker: int, gpu: GpuId, now: float) -> None:
        """Take a worker out of the turns of one GPU; the caller has the lock."""
        self._turns[gpu].leave(worker, now)
        self._tell(gpu)
        if self._turns[gpu].is_empty():
            del self._turns[gpu]

    def got(self) -> dict[LeaseId, dict[GpuId, Got]]:
        """Return each lease's due share of each GPU's time, and the share that it got."""
        found: dict[LeaseId, dict[GpuId, Got]] = {}
        with self._lock:
            for gpu, turns in self._turns.items():
                for lease, got in turns.got(time.monotonic()).items():
                    found.setdefault(lease, {})[gpu] = got
        return found

    def close(self) -> None:
        """End the thread; the workers are gone."""
        with self._lock:
            self._closed = True
        self._poke()
        if self._thread is not None:
            self._thread.join()
        for seated in self._seated.values():
            if seated.line is not None:
                seated.line.close()
        self._selector.close()
        self._wake.close()
        self._woken.close()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_time()
        except BaseException:
            # A bug must cost shares, and not keep programs from their GPUs.
            with self._lock:
                self._closed = True
                for seated in self._seated.values():
                    self._release(seated)
            raise

    def _release(self, seated: _Seated) -> None:
        """Let a worker launch freely from now on: it finds its line of turns closed."""
        if seated.line is not None:
            seated.line.close()

    def _keep_time(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                wake_at = least_wake(self._turns.values())
            wait_s = None if wake_at == math.inf else max(0.0, wake_at - time.monotonic())
            events = self._selector.select(wait_s)
            with self._lock:
                for worker in (key.data for key, _ in events):
                    if worker < 0:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        self._hear(worker)
                now = time.monotonic()
                for gpu, turns in self._turns.items():
                    if turns.wake_at() <= now:
                        turns.tick(now)
                        self._tell(gpu)

    def _hear(self, worker: int) -> None:
        seated = self._seated.get(worker)
        if seated is None or seated.line is None:
            return  # It left while this thread waited.
        sock = seated.line
        for _ in range(READ_MAX):
            try:
                word = sock.recv(TURN_MESSAGE.size + 1)
            except BlockingIOError:
                return
            except OSError:
                word = b""
            if not word:
                self._unregister(sock)  # It ends, which others find.
                return
            now = time.monotonic()
            seated.count(now)
            if len(word) != TURN_MESSAGE.size:
                seated.broken = "it said something of its turns that is no word"
            else:
                self._take_word(worker, seated, now, *TURN_MESSAGE.unpack(word))
            if seated.broken:
                self._give_up(worker, seated)
                return

    def _take_word(
        self, worker: int, seated: _Seated, now: float, device: int, word: int, number: int
    ) -> None:
        if device >= len(seated.gpus):
            seated.broken = "it spoke of a GPU that it has not"
            return
        gpu = seated.gpus[device]
        if word == worker_messages.WANT:
            self._turns[gpu].want(worker, now)
        elif word == worker_messages.IDLE:
            self._turns[gpu].idle(worker, now)
        elif word == worker_messages.DRAINED:
            self._turns[gpu].drained(worker, number, now)
        else:
            seated.broken = "it said something of its turns that is no word"
            return
        self._tell(gpu)

    # --- parts; the caller has the lock -----------------------------------------------------------

    def _tell(self, gpu: GpuId) -> None:
        for told in self._turns[gpu].take():
            seated = self._seated.get(told.seat)
            if seated is None or seated.line is None:
                continue
            order = TURN_MESSAGE.pack(seated.gpus.index(gpu), ORDERS[told.order], told.number)
            try:
                seated.line.send(order)
            except BlockingIOError:
                seated.broken = "it takes no orders of its turns"
                self._give_up(told.seat, seated)
            except OSError:
                continue  # It ends, which others find.

    def _seat(self, gpu: GpuId) -> None:
        """Open a socket for turn orders to each worker of a GPU that takes turns from now on."""
        for number, seated in self._seated.items():
            if gpu not in seated.gpus or seated.line is not None:
                continue
            seated.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            seated.line.setblocking(False)
            with theirs:
                self._introduce(number, theirs.fileno())
            self._selector.register(seated.line, selectors.EVENT_READ, number)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
            self._thread.start()

    def _give_up(self, worker: int, seated: _Seated) -> None:
        if seated.line is not None:
            self._unregister(seated.line)
        reason = seated.broken

        def kill() -> None:
            if (found := self._worker_of(worker)) is not None:
                found.kill(reason)

        if self._trio is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(kill)

    def _introduce(self, number: int, descriptor: int) -> None:
        worker = self._worker_of(number)
        try:
            if worker is not None:
                worker.send(worker_messages.TakeTurns(), descriptor)
        except GpupoolError as error:
            self._seated[number].broken = str(error)
            self._give_up(number, self._seated[number])

    def _unregister(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"w")
