"""Collectives of NCCL: a client's communicators, held and used by the worker's own NCCL."""

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.out_of_band import OutOfBandReplies
from gpupool.remoting.driver_api.executor.rare.nccl import (
    ID_SIZE,
    INVALID_USAGE,
    KINDS,
    REMOTE_ERROR,
    SUCCESS,
    Nccl,
    NcclError,
    NcclMissingError,
)

VERSION, UNIQUE_ID, INIT, SPLIT, FINALIZE, DESTROY, ABORT, STATE, TEXT, SCALED, UNSCALED = range(11)
"""Request kinds of NCCL_ASK: see nccl/nccl.c."""

ANSWER = struct.Struct("<iiii")
"""Result of NCCL's, and up to three numbers; a text or an id may follow."""

INIT_DATA = struct.Struct(f"<{ID_SIZE}s4i")
SPLIT_DATA = struct.Struct("<i4i4x")
SCALED_DATA = struct.Struct("<8s")
OPERATION = struct.Struct("<9Q")

COMMUNICATORS_MAX = 1024
OPERATIONS_MAX = 4096
RANKS_MAX = 1 << 16
COUNT_MAX = 1 << 48
REDUCTIONS = 5
TYPES = 12
"""Data types of nccl.h, as of version 2.24."""

UNDEFINED = -(1 << 31)
NO_COLOR = -1
TEXT_MAX = 900

ABORT_S = 10.0
"""Longest time for NCCL to end its operation; it hears of a lost server within 5 s."""


class Abort:
    """The end of a communicator by force, which may be asked for before its turn."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._over = threading.Event()
        self._failed: NcclError | None = None

    def run(self) -> None:
        """Abort the communicator in NCCL; block until that is done."""
        try:
            self._end()
        except NcclError as error:
            self._failed = error
        finally:
            self._over.set()

    def answer(self) -> bytes:
        """Wait for it, but not for ever.

        Raises:
            NcclError: when NCCL refuses, or does not come to an end.
        """
        if not self._over.wait(ABORT_S):
            raise NcclError(REMOTE_ERROR)
        if self._failed is not None:
            raise self._failed
        return ANSWER.pack(SUCCESS, 0, 0, 0)


@dataclass(slots=True)
class Communicator:
    """One communicator of the client, and the error of a call without a reply."""

    handle: int
    device: int
    failed: int = SUCCESS
    reductions: set[int] = field(default_factory=set[int])
    abort: Abort | None = None


class Collectives(HandlerGroup):
    """Executes the requests of the client's libnccl.so.2."""

    def __init__(self, client: Client, out_of_band: OutOfBandReplies) -> None:
        super().__init__(client)
        self._out_of_band = out_of_band
        self._loaded: Nccl | None = None
        self._known: dict[int, Communicator] = {}
        self._lock = threading.Lock()
        self._beginning = 0
        self.methods = {"NCCL_ASK": self._ask, "NCCL_POST": self._post}

    @property
    def _nccl(self) -> Nccl:
        if self._loaded is None:
            self._loaded = Nccl.load()
            # What uses it is not suspended: see Suspensions.objection, and the privileged helper.
            self.client.session.stream.tally.nccl = True
        return self._loaded

    # --- calls with an answer ---------------------------------------------------------------------

    def _ask(
        self, what: int, communicator: int, first: int, second: int, data: memoryview
    ) -> bytes | None:
        """Answer at once, or from a thread where NCCL may wait for other ranks."""
        given = bytes(data)
        try:
            nccl = self._nccl
        except NcclMissingError as error:
            return ANSWER.pack(2, 0, 0, 0) + str(error).encode()[:TEXT_MAX]
        if what == VERSION:
            return ANSWER.pack(SUCCESS, nccl.version, 0, 0)
        if what == UNIQUE_ID:
            return self._answered(lambda: ANSWER.pack(0, 0, 0, 0) + nccl.unique_id())
        if what == INIT:
            return self._begin(communicator, lambda: self._init(first, second, given))
        if what == SPLIT:
            parent = self._known[communicator]
            if parent.abort is not None:
                return ANSWER.pack(REMOTE_ERROR, 0, 0, 0)
            return self._begin(first, lambda: self._split(parent, second, given))
        if what == TEXT:
            known = self._known.get(communicator)
            text = nccl.last_error(known.handle if known else 0).encode()
            return ANSWER.pack(0, 0, 0, 0) + text[:TEXT_MAX]
        return self._of_known(what, communicator, first, second, given)

    def _of_known(
        self, what: int, number: int, first: int, second: int, given: bytes
    ) -> bytes | None:
        nccl, known = self._nccl, self._known[number]
        if known.abort is not None and what != ABORT:
            return ANSWER.pack(SUCCESS if what == STATE else REMOTE_ERROR, REMOTE_ERROR, 0, 0)
        if what == STATE:
            state = known.failed or nccl.state(known.handle)
            return ANSWER.pack(SUCCESS, state, 0, 0)
        if what == SCALED:
            (scalar,) = _unpacked(SCALED_DATA, given)
            _bounded(first, TYPES)
            return self._answered(lambda: self._scaled(known, first, second, scalar))
        if what == UNSCALED:
            known.reductions.remove(first)
            return self._answered(lambda: _done(nccl.end_scaled(first, known.handle)))
        if what == FINALIZE:
            return self._aside(known.device, lambda: _done(nccl.finalize(known.handle)))
        if what == DESTROY:
            del self._known[number]
            return self._aside(known.device, lambda: _done(nccl.destroy(known.handle)))
        if what == ABORT:
            abort = self._begin_abort(known)
            del self._known[number]
            return self._aside(known.device, abort.answer)
        raise RemoteProtocolError("unknown call of NCCL", why=str(what))

    def _begin_abort(self, known: Communicator) -> Abort:
        with self._lock:
            abort, begun = known.abort, known.abort is not None
            if abort is None:
                abort = known.abort = Abort(lambda: self._nccl.abort(known.handle))
        if not begun:
            self.waiter.start(known.device, abort.run)
        return abort

    def _ahead(self, what: int, number: int) -> None:
        """Abort before its turn, for NCCL may keep the executor until that; another thread calls.

        The answer follows in its turn. If that does not come, the session ends: nothing else can
        help any more.
        """
        known = self._known.get(number)
        if what != ABORT or known is None or known.abort is not None:
            return
        self._begin_abort(known)

        def give_up() -> None:
            if self._known.get(number) is known:
                self.client.log(f"NCCL: a communicator did not end within {ABORT_S:.0f} s")
                self.session.end()

        timer = threading.Timer(ABORT_S, give_up)
        timer.daemon = True
        timer.start()

    def _begin(self, number: int, make: Callable[[], tuple[Communicator | None, int, int]]) -> None:
        """Make a communicator in a thread: all its ranks have to come before it is there."""
        with self._lock:
            if number in self._known or len(self._known) + self._beginning >= COMMUNICATORS_MAX:
                raise RemoteProtocolError("a communicator that cannot be made", why=str(number))
            self._beginning += 1
        self._out_of_band.show_nccl(self._ahead)
        self._out_of_band.start()

        def job() -> bytes:
            made = None
            try:
                made, rank, count = make()
            finally:
                with self._lock:
                    self._beginning -= 1
                    if made is not None:
                        self._known[number] = made
            return ANSWER.pack(SUCCESS, rank, count, int(made is not None))

        self._aside(self.client.device, job)

    def _init(self, count: int, rank: int, data: bytes) -> tuple[Communicator, int, int]:
        name, *config = _unpacked(INIT_DATA, data)
        if not rank < count <= RANKS_MAX:
            raise NcclError(INVALID_USAGE)
        handle = self._nccl.begin(count, name, rank, _settings(config))
        return Communicator(handle, self.client.device), rank, count

    def _split(
        self, parent: Communicator, color: int, data: bytes
    ) -> tuple[Communicator | None, int, int]:
        key, *config = _unpacked(SPLIT_DATA, data)
        wanted = color - (1 << 64) if color >> 63 else color
        _bounded(wanted + 1, 1 << 31)
        handle = self._nccl.split(parent.handle, wanted, key, _settings(config))
        if not handle:
            return None, 0, 0
        rank, count = self._nccl.place(handle)
        return Communicator(handle, parent.device), rank, count

    def _scaled(self, known: Communicator, kind: int, residence: int, scalar: bytes) -> bytes:
        made = self._nccl.scaled(scalar, kind, known.handle, on_device=residence == 0)
        known.reductions.add(made)
        return ANSWER.pack(SUCCESS, made, 0, 0)

    def _answered(self, job: Callable[[], bytes]) -> bytes:
        try:
            return job()
        except NcclError as error:
            return ANSWER.pack(error.result, 0, 0, 0)

    def _aside(self, device: int, job: Callable[[], bytes]) -> None:
        request = self.client.record.request

        def run() -> None:
            self.session.reply(request, 0, self._answered(job))

        self.waiter.start(device, run)

    # --- operations in a stream -------------------------------------------------------------------

    def _post(self, count: int, operations: memoryview) -> None:
        """Execute one group, all of it or, if something in it is wrong, nothing."""
        if not 0 < count <= OPERATIONS_MAX or len(operations) != count * OPERATION.size:
            raise RemoteProtocolError("malformed group of NCCL")
        streams = self.streams
        calls: list[tuple[Communicator, Callable[[], None]]] = []
        for words in OPERATION.iter_unpack(operations):
            number, kind, source, target, elements, of, reduction, peer, stream = words
            known = self._known[number]
            good = elements <= COUNT_MAX and of < TYPES and peer < RANKS_MAX
            if not good or (reduction >= REDUCTIONS and reduction not in known.reductions):
                raise RemoteProtocolError("malformed operation of NCCL")
            if kind not in KINDS:
                raise RemoteProtocolError("unknown operation of NCCL", why=str(kind))
            call = self._nccl.operation(
                kind, source, target, elements, of, reduction, peer, known.handle, streams[stream]
            )
            calls.append((known, call))
        self._out_of_band.need()
        try:
            if any(known.abort is not None for known, _ in calls):
                raise NcclError(REMOTE_ERROR)
            if count == 1:
                calls[0][1]()
            else:
                with self._nccl.group():
                    for _, call in calls:
                        call()
        except NcclError as error:
            self.client.log(f"NCCL: a group of {count} operations failed with {error.result}")
            for known, _ in calls:
                known.failed = known.failed or error.result
        finally:
            self._out_of_band.leave()


def _unpacked(layout: struct.Struct, data: bytes) -> tuple[Any, ...]:
    if len(data) != layout.size:
        raise RemoteProtocolError("malformed call of NCCL")
    return layout.unpack(data)


def _bounded(value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise RemoteProtocolError("a number that NCCL does not have", why=str(value))


def _settings(config: list[int]) -> tuple[int, int, int, int]:
    """Return cluster size, least and most thread blocks, and whether resources are shared."""
    for value in config:
        if value != UNDEFINED:
            _bounded(value, 1 << 16)
    cluster, least, most, shares = config
    return cluster, least, most, shares


def _done(result: None) -> bytes:
    return ANSWER.pack(SUCCESS, 0, 0, 0)
