"""Host functions: the client's, which a stream calls between two of its operations."""

import ctypes
import threading
from typing import Any

from gpupool.remoting.driver_api.executor.api import INVALID_HANDLE, OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.graphs.early_pieces import NAMED, EarlyPieces
from gpupool.remoting.driver_api.executor.host_turns import NativeTurns, Turn, turns_of
from gpupool.remoting.driver_api.executor.out_of_band import OutOfBandReplies

FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class HostFunctions(HandlerGroup):
    """Calls the client's functions in stream order: the driver waits there for the client.

    The driver calls us on a thread of its own, which may not call CUDA, so another one sends what
    the function may read and tells the client. A callback tells of errors, unlike a host function,
    which is then not called at all; only graphs cannot have callbacks. Their host nodes call
    ``function`` with the client's number, or with a name of theirs.
    """

    def __init__(
        self,
        client: Client,
        direct: Direct,
        out_of_band_replies: OutOfBandReplies,
        early: EarlyPieces,
    ) -> None:
        super().__init__(client)
        self._direct = direct
        self._early = early
        self._out_of_band_replies = out_of_band_replies
        # Kept: the driver calls them until the process ends.
        self._functions = (FUNCTION(self._node), CALLBACK(self._callback))
        self.function, self._callback_address = map(_address_of, self._functions)
        self._turns = turns_of(client.launcher)
        self._lock = threading.Lock()
        self._tickets = 0
        self._waiting: dict[int, threading.Lock] = {}
        self._expected: set[int] = set()  # numbers of functions to which no stream has come yet
        self._overtaken: set[int] = set()  # tickets of answers that were found before their turn
        self._teller: threading.Thread | None = None
        self._ready = threading.Event()
        self.methods = {
            "HOST_CALL": self._call,
            "HOST_NODE": self._capture,
            "HOST_DONE": self._done,
        }

    def begin(self) -> None:
        """Get ready to tell the client of turns: before anything is given ``function`` to call."""
        if self._teller is not None:
            return
        self._teller = threading.Thread(target=self._tell, daemon=True)
        self._teller.start()
        self.waiter.when_broken.append(self._broken)
        self._ready.wait()  # it calls CUDA only before the first stream can stand still
        self._out_of_band_replies.answer(self._waiting.__contains__, self._overtake)
        self._out_of_band_replies.start()
        self._turns.begin()

    def _call(self, stream: int, number: int, waits: int) -> None:
        """Call function ``number`` in a stream, which waits for its end if it ``waits``."""
        self.begin()
        try:
            handle = self.streams[stream]
            data = number << 1 | (waits & 1)
            self.waiter.freeing.wait_for_calls()
            if waits or not isinstance(self._turns, NativeTurns):
                with self._lock:
                    self._expected.add(number)
                self._direct.call("cuStreamAddCallback", handle, self._callback_address, data, 0)
            else:
                self._add_teller(handle, number, self._turns)
        except (*self.api.errors, KeyError) as error:
            with self._lock:
                self._expected.discard(number)
            known = not isinstance(error, KeyError)
            status = self.api.status_of(error) if known else INVALID_HANDLE
            self.session.host([(number, status, 0)])
            raise

    def _add_teller(self, handle: int, number: int, turns: NativeTurns) -> None:
        """Add a callback that only announces the function, without Python."""
        expected = turns.expect(number)
        if not expected:
            raise CudaError(OUT_OF_MEMORY, "cuStreamAddCallback")
        try:
            self._direct.call("cuStreamAddCallback", handle, turns.callback, expected, 0)
        except self.api.errors:
            turns.forget(expected)
            raise

    def _capture(self, stream: int, number: int) -> None:
        handle = self.streams[stream]
        self.begin()
        self._direct.call("cuLaunchHostFunc", handle, self.function, number)

    def _done(self, ticket: int) -> None:
        with self._lock:
            if ticket in self._overtaken:
                self._overtaken.remove(ticket)
            else:
                self._end_turn(ticket)

    def _overtake(self, ticket: int) -> None:
        """Let a stream go on before the executor has come to the answer."""
        with self._lock:
            self._end_turn(ticket)
            self._overtaken.add(ticket)

    def _end_turn(self, ticket: int) -> None:
        self._waiting.pop(ticket).release()
        if not self._waiting:
            self._out_of_band_replies.leave()

    def _callback(self, _stream: int | None, status: int, data: int | None) -> None:
        word = data or 0
        with self._lock:
            if word >> 1 not in self._expected:
                return  # the client has heard of the error already
            self._expected.remove(word >> 1)
        self._turn(word >> 1, status, waits=bool(word & 1))

    def _broken(self, status: int) -> None:
        """Tell of the functions to which no stream will come: a program may wait for their end."""
        with self._lock:
            lost, self._expected = self._expected, set()
        for number in sorted([*lost, *self._turns.lose()]):
            self._turns.put((number, status, 0))

    def _node(self, data: int | None) -> None:
        self._turn(data or 0, 0, waits=True)

    def _turn(self, number: int, status: int, *, waits: bool) -> None:
        """Hand a function's turn to the teller, on the driver's thread, and wait for its end."""
        if not waits or status:
            self._turns.put((number, status, 0))
            return
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            self._tickets += 1
            ticket = self._tickets
            if not self._waiting:
                self._out_of_band_replies.need()
            self._waiting[ticket] = turn
        self._turns.put((number, status, ticket))
        turn.acquire()

    def _tell(self) -> None:
        self.api.runtime.setDevice(self.client.ordinals[0])
        self._ready.set()
        while True:
            turns = self._turns.get()
            try:
                self.waiter.deliver()  # the bytes of copies that came before the function
            except self.api.errors as error:
                self.client.log(f"CUDA session: downloads before a host function: {error}")
            try:
                self.session.host([self._prepared(turn) for turn in turns])
            except ConnectionError:
                return  # the client has gone, and the main thread notices as well

    def _prepared(self, turn: Turn) -> Turn:
        """Deliver the copies that a graph's host function may read; return the client's turn."""
        number, status, ticket = turn
        if not number & NAMED:
            return turn
        number, downloads = self._early.turn(number)
        self.waiter.deliver_early(downloads)
        return number, status, ticket
