"""Copies of arrays from worker to worker, and of all that a session has, over their links."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.policy import DataEncryption
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.moved_state import Channel, UnmovableError
from gpupool.remoting.array_api.server.session_arrival import Arrival
from gpupool.remoting.array_api.server.session_calls import Calls
from gpupool.remoting.array_api.server.session_departure import Departure, plan_departure
from gpupool.remoting.protocol import handshake
from gpupool.remoting.worker.peer_links import (
    COUNT_MAX,
    KEY_SIZE,
    Links,
    Peer,
    PeerFailedError,
    PeerLostError,
)

TEXT_LENGTH_MAX = 100


def introduction(value: Any) -> tuple[bytes, int, tuple[Peer | None, ...]]:
    """Return this worker's key, its index and the other workers, from the client's HELLO.

    Raises:
        RemoteProtocolError: it is not of the form
            ``{"key": bytes, "others": [null or [server, name, session, certificate, encryption,
            key]]}`` with exactly one null, which stands for this worker.
    """
    malformed = RemoteProtocolError("malformed introduction of workers")
    if type(value) not in (dict,):
        raise malformed
    fields: dict[str, Any] = value
    key: Any = fields.get("key")
    others: Any = fields.get("others")
    if not _is_bytes(key, KEY_SIZE) or not array_wire.is_list(others) or len(others) > COUNT_MAX:
        raise malformed
    if sum(other is None for other in others) != 1:
        raise malformed
    return key, others.index(None), tuple(_peer(other, malformed) for other in others)


def _peer(value: Any, malformed: RemoteProtocolError) -> Peer | None:
    if value is None:
        return None
    if not array_wire.is_list(value) or len(value) != 6:
        raise malformed
    server, name, session, certificate, encryption, key = value
    texts = all(type(text) is str and len(text) <= TEXT_LENGTH_MAX for text in (server, name))
    if not texts or encryption not in tuple(DataEncryption):
        raise malformed
    sizes = ((session, handshake.SESSION_SIZE), (certificate, 32), (key, KEY_SIZE))
    if not all(_is_bytes(data, size) for data, size in sizes):
        raise malformed
    return Peer(server, name, session, certificate, encryption, key)


def _is_bytes(value: Any, size: int) -> bool:
    return type(value) is bytes and len(value) == size


class Exchange:
    """Sends and receives arrays, each at its place in one client's stream of calls."""

    def __init__(self, executor: Calls, links: Links) -> None:
        self._executor = executor
        self._links = links

    def operations(self) -> dict[str, Callable[..., Any]]:
        """Return the operations that a client may call."""
        return {
            "peer.arrive": self.arrive,
            "peer.connect": self._links.connect,
            "peer.depart": self.depart,
            "peer.prepare": self.prepare,
        }

    # --- a session that goes to another worker ----------------------------------------------------

    def prepare(self, value: Any, index: int) -> str:
        """Connect to the worker to which the session is to go; return why it cannot."""
        try:
            plan_departure(self._executor)
        except UnmovableError as error:
            return str(error)
        self._links.forget()
        self._links.introduce(*introduction(value))
        return self._links.connect(index)

    def depart(self, index: int) -> int:
        """Send all that the session has, and keep it; return the bytes of its memory."""
        return self._once(Departure(self._executor, Channel(self._links, index)).run)

    def arrive(self, index: int) -> int:
        """Rebuild a session from another worker; return the number of its latest call."""
        try:
            arrival = Arrival(self._executor, Channel(self._links, index))
            self._executor.sequence = self._once(arrival.run)
        finally:
            self._links.forget()
        return self._executor.sequence

    def _once(self, run: Callable[[], int]) -> int:
        """Run a step once; unlike other operations, it is not repeated when memory runs out."""
        try:
            return run()
        except Exception as error:
            if not self._executor.backend.is_out_of_memory(error):
                raise
            raise UnmovableError(str(error)) from error

    # --- one array --------------------------------------------------------------------------------

    def send(self, index: int, number: int, handle: int) -> None:
        """Send an array, or in its place the reason why there is none."""
        executor = self._executor
        try:
            array = executor.find(handle)
            if not executor.backend.is_array(array):
                raise RemoteProtocolError("malformed transfer", why=f"handle {handle} is no array")
            # The first piece is made before a byte leaves, so that a failing copy can be reported.
            pieces = self._pieces(array)
            first = list(itertools.islice(pieces, 1))
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - the receiver must not wait for ever
            executor.fail("a copy to another server", (), error)
            with contextlib.suppress(PeerLostError):  # the receiver has noticed that by itself
                self._links.send_failure(index, number, _reason(error))
            return
        try:
            self._links.send(index, number, array.nbytes, itertools.chain(first, pieces))
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - also a copy that failed half-way
            self._links.cut(index)
            executor.fail("a copy to another server", (), error)

    def _pieces(self, array: Any) -> Iterator[memoryview]:
        backend = self._executor.backend
        pieces = backend.download(array, "C")
        try:
            first = next(pieces, None)
        except Exception as error:
            if not backend.is_out_of_memory(error):
                raise
            backend.reclaim()
            pieces = backend.download(array, "C")
            first = next(pieces, None)
        if first is not None:
            yield first
            yield from pieces

    def receive(
        self, index: int, number: int, handle: int, meta: int, nbytes: int, *, existing: bool
    ) -> None:
        """Make or fill an array with the bytes that another worker sends; wait for all of them."""
        executor = self._executor
        made = () if existing else (handle,)
        try:
            self._links.begin(index, number, nbytes)
        except PeerFailedError as error:
            if existing:
                executor.fail("a copy from another server", (), error)
            else:
                # Calls that use it fail, and the other worker has reported the reason.
                executor.fail_silently(handle, error)
            return
        except PeerLostError as error:
            executor.fail("a copy from another server", made, error)
            return

        def fill(target: memoryview) -> None:
            self._links.read(index, target)

        put = executor.put_into if existing else executor.put
        try:
            if not put(handle, meta, nbytes, fill):
                self._links.skip(index, nbytes)
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - after any failure the rest cannot be read
            self._links.cut(index)
            executor.fail("a copy from another server", made, error)


def _reason(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}"
