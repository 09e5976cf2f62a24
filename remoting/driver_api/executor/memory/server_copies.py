"""Copies straight to another server of the lease: the CUDA door's side of links between workers."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.policy import DataEncryption
from gpupool.remoting.driver_api.executor.api import HOST_TO_DEVICE, CudaError
from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.memory.staging_buffers import (
    PIECE_SIZE,
    Buffer,
    downloaded,
)
from gpupool.remoting.worker.peer_links import (
    COUNT_MAX,
    KEY_SIZE,
    Links,
    Peer,
    PeerFailedError,
    PeerLostError,
)

PEER = struct.Struct("<104s104s16s32s32sII")
"""``struct peer`` of shim/memory/peers.c: server, name, session, certificate, key, encrypted,
there."""

NOT_SUPPORTED = 801
FAILED_ELSEWHERE = 999
NON_BLOCKING = 1


@dataclass(frozen=True, slots=True)
class Copy:
    """One end of a copy between two workers, and the request that waits for it."""

    request: int
    device: int
    number: int  # by which both ends know the copy
    index: int  # of the other worker
    address: int
    size: int
    event: int  # over when the stream has come to the copy


def introduction(data: bytes, count: int) -> tuple[bytes, tuple[Peer | None, ...]]:
    """Return this worker's key and the other workers; None for those that are not to be met.

    Raises:
        RemoteProtocolError: when it is not of the form that the shim sends.
    """
    if count > COUNT_MAX or len(data) != KEY_SIZE + count * PEER.size:
        raise RemoteProtocolError("malformed introduction of workers")
    others: list[Peer | None] = []
    for server, name, session, certificate, key, encrypted, there in PEER.iter_unpack(
        data[KEY_SIZE:]
    ):
        encryption = DataEncryption.TLS if encrypted else DataEncryption.OFF
        peer = Peer(_text(server), _text(name), session, certificate, encryption, key)
        others.append(peer if there else None)
    return data[:KEY_SIZE], tuple(others)


def _text(data: bytes) -> str:
    return data.split(b"\0")[0].decode(errors="replace")


class PeerCopies(HandlerGroup):
    """Sends device memory to other workers of the client's process, and receives it.

    The client waits for both ends of a copy, and asks for one at a time on each link.
    """

    def __init__(self, client: Client, links: Links | None) -> None:
        super().__init__(client)
        self._given = links
        self.methods = {
            "PEER_CUT": self._cut,
            "PEER_INTRODUCE": self._introduce,
            "PEER_CONNECT": self._connect,
            "PEER_SEND": self._send,
            "PEER_RECEIVE": self._receive,
        }

    @property
    def _links(self) -> Links:
        if self._given is None:
            raise CudaError(NOT_SUPPORTED, "cuMemcpyPeer")
        return self._given

    def _introduce(self, index: int, count: int, workers: memoryview) -> bytes:
        links = self._links
        key, others = introduction(bytes(workers), count)
        links.introduce(key, index, others)
        return b""

    def _connect(self, index: int) -> bytes:
        """Answer with why a worker cannot be reached; with nothing if it is connected."""
        return self._links.connect(index).encode()[:200]

    def _cut(self, index: int) -> None:
        """End all copies with a worker that has lost this one, and may notice that much sooner."""
        self._links.cut(index)

    def _end(self, number: int, index: int, address: int, size: int, stream: int) -> Copy:
        """Return this end of a copy, which begins when a stream has come to this place."""
        if (
            self._given is None
        ):  # refused here, for the thread that copies could only end the session
            raise CudaError(NOT_SUPPORTED, "cuMemcpyPeer")
        request, device = self.client.record.request, self.client.device
        event = self.waiter.event(device)
        self.api.record(event, self.streams[stream])
        return Copy(request, device, number, index, address, size, event)

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, number: int, index: int, source: int, size: int, stream: int) -> None:
        if self.client.take_failure():
            self._links.send_failure(index, number, "what was to be copied has failed")
            return
        copy = self._end(number, index, source, size, stream)
        self.waiter.start(copy.device, lambda: self._send_now(copy))

    def _send_now(self, copy: Copy) -> None:
        api, links, status = self.api, self._links, 0
        buffers = [self.waiter.take(copy.device, PIECE_SIZE) for _ in range(2)]
        on = api.runtime.streamCreateWithFlags(NON_BLOCKING)
        try:
            try:
                api.runtime.eventSynchronize(copy.event)
                pieces = downloaded(api, buffers, copy.address, copy.size, on)
                first = next(pieces)
            except api.errors as error:
                status = api.status_of(error)
                links.send_failure(copy.index, copy.number, f"CUDA error {status}")
            else:
                # Once the first piece is there, the rest fails only when the GPU is lost.
                links.send(copy.index, copy.number, copy.size, _chained(first, pieces))
        except PeerLostError as error:
            status = error.status
        except api.errors as error:
            status = api.status_of(error)
            links.cut(copy.index)
        self._finish(copy, status, on, buffers)

    # --- receiving --------------------------------------------------------------------------------

    def _receive(self, number: int, index: int, target: int, size: int, stream: int) -> None:
        copy = self._end(number, index, target, size, stream)
        self.waiter.start(copy.device, lambda: self._receive_now(copy))

    def _receive_now(self, copy: Copy) -> None:
        api, links, status = self.api, self._links, 0
        buffers = [self.waiter.take(copy.device, PIECE_SIZE) for _ in range(2)]
        on = api.runtime.streamCreateWithFlags(NON_BLOCKING)
        done = 0
        try:
            links.begin(copy.index, copy.number, copy.size)
            try:
                api.runtime.eventSynchronize(copy.event)
                for at, start in enumerate(range(0, copy.size, PIECE_SIZE)):
                    buffer = buffers[at % 2]
                    if at > 1:
                        api.runtime.eventSynchronize(buffer.event)
                    piece = buffer.view[: min(PIECE_SIZE, copy.size - start)]
                    links.read(copy.index, piece)
                    done += len(piece)
                    api.copy(copy.address + start, buffer.address, len(piece), HOST_TO_DEVICE, on)
                    api.record(buffer.event, on)
                api.runtime.streamSynchronize(on)
            except api.errors as error:
                status = api.status_of(error)
                links.skip(copy.index, copy.size - done)
        except PeerFailedError:
            status = FAILED_ELSEWHERE  # the other end says what it was
        except PeerLostError as error:
            status = error.status
        self._finish(copy, status, on, buffers)

    def _finish(self, copy: Copy, status: int, on: int, buffers: list[Buffer]) -> None:
        self.api.runtime.streamDestroy(on)
        for buffer in buffers:
            self.waiter.give(copy.device, buffer)
        self.waiter.give_event(copy.device, copy.event)
        self.session.reply(copy.request, status)


def _chained(first: memoryview, rest: Iterator[memoryview]) -> Iterator[memoryview]:
    yield first
    yield from rest
