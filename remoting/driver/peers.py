"""Copies straight to another server of the lease: the CUDA door's side of links between workers."""

import struct
from collections.abc import Iterator

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver import table
from gpupool.remoting.driver.api import DEVICE_TO_HOST, HOST_TO_DEVICE, CudaError
from gpupool.remoting.driver.client import HEADER, REQUEST, Area, Client
from gpupool.remoting.driver.staging import Buffer
from gpupool.remoting.driver.transfers import PIECE_SIZE
from gpupool.remoting.host.peers import (
    COUNT_MAX,
    KEY_SIZE,
    Links,
    Peer,
    PeerFailedError,
    PeerLostError,
)

PEER = struct.Struct("<104s104s16s32s32sII")
"""``struct peer`` of shim/peers.c: server, name, session, certificate, key, encrypted, there."""

NOT_SUPPORTED = 801
FAILED_ELSEWHERE = 999
NON_BLOCKING = 1


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
        encryption = "tls" if encrypted else "off"
        peer = Peer(_text(server), _text(name), session, certificate, encryption, key)
        others.append(peer if there else None)
    return data[:KEY_SIZE], tuple(others)


def _text(data: bytes) -> str:
    return data.split(b"\0")[0].decode(errors="replace")


class PeerCopies(Area):
    """Sends device memory to other workers of the client's process, and receives it.

    The client waits for both ends of a copy, and asks for one at a time on each link.
    """

    def __init__(self, client: Client, links: Links | None) -> None:
        super().__init__(client)
        self._given = links
        self.asked = {
            table.PEER_INTRODUCE: (2, self._introduce),
            table.PEER_CONNECT: (1, self._connect),
            table.PEER_SEND: (5, self._send),
            table.PEER_RECEIVE: (5, self._receive),
        }

    @property
    def _links(self) -> Links:
        if self._given is None:
            raise CudaError(NOT_SUPPORTED, "cuMemcpyPeer")
        return self._given

    def _introduce(self, index: int, count: int) -> bytes:
        links = self._links
        size = KEY_SIZE + min(count, COUNT_MAX) * PEER.size
        data = bytes(self.client.rest(2, size, HEADER + REQUEST))
        key, others = introduction(data, count)
        links.introduce(key, index, others)
        return b""

    def _connect(self, index: int) -> bytes:
        """Answer with why a worker cannot be reached; with nothing if it is connected."""
        return self._links.connect(index).encode()[:200]

    def _event(self, stream: int) -> int:
        """Return an event that is over when a stream has come to this place."""
        event = self.waiter.event(self.client.device)
        self.api.record(event, self.streams[stream])
        return event

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, number: int, index: int, source: int, size: int, stream: int) -> None:
        request, device = self.client.request, self.client.device
        if self.client.take_failure(request):
            self._links.send_failure(index, number, "what was to be copied has failed")
            return
        event = self._event(stream)
        self.waiter.start(
            device, lambda: self._send_now(request, device, number, index, source, size, event)
        )

    def _send_now(
        self,
        request: int,
        device: int,
        number: int,
        index: int,
        source: int,
        size: int,
        event: int,
    ) -> None:
        api, links, status = self.api, self._links, 0
        buffers = [self.waiter.take(device, PIECE_SIZE) for _ in range(2)]
        on = api.runtime.streamCreateWithFlags(NON_BLOCKING)
        try:
            try:
                api.runtime.eventSynchronize(event)
                pieces = self._pieces(buffers, source, size, on)
                first = next(pieces)
            except api.errors as error:
                status = api.status_of(error)
                links.send_failure(index, number, f"CUDA error {status}")
            else:
                # Once the first piece is there, the rest fails only when the GPU is lost.
                links.send(index, number, size, _chained(first, pieces))
        except PeerLostError as error:
            status = error.status
        except api.errors as error:
            status = api.status_of(error)
            links.cut(index)
        self._finish(request, device, status, event, on, buffers)

    def _pieces(
        self, buffers: list[Buffer], source: int, size: int, on: int
    ) -> Iterator[memoryview]:
        """Give device memory piece by piece: one is sent while the next is copied."""
        starts = range(0, size, PIECE_SIZE)

        def begin(at: int) -> None:
            length = min(PIECE_SIZE, size - starts[at])
            target = buffers[at % 2].address
            self.api.copy(target, source + starts[at], length, DEVICE_TO_HOST, on)
            self.api.record(buffers[at % 2].event, on)

        begin(0)
        for at, start in enumerate(starts):
            if at + 1 < len(starts):
                begin(at + 1)
            self.api.runtime.eventSynchronize(buffers[at % 2].event)
            yield buffers[at % 2].view[: min(PIECE_SIZE, size - start)]

    # --- receiving --------------------------------------------------------------------------------

    def _receive(self, number: int, index: int, target: int, size: int, stream: int) -> None:
        request, device = self.client.request, self.client.device
        event = self._event(stream)
        self.waiter.start(
            device, lambda: self._receive_now(request, device, number, index, target, size, event)
        )

    def _receive_now(
        self,
        request: int,
        device: int,
        number: int,
        index: int,
        target: int,
        size: int,
        event: int,
    ) -> None:
        api, links, status = self.api, self._links, 0
        buffers = [self.waiter.take(device, PIECE_SIZE) for _ in range(2)]
        on = api.runtime.streamCreateWithFlags(NON_BLOCKING)
        done = 0
        try:
            links.begin(index, number, size)
            try:
                api.runtime.eventSynchronize(event)
                for at, start in enumerate(range(0, size, PIECE_SIZE)):
                    buffer = buffers[at % 2]
                    if at > 1:
                        api.runtime.eventSynchronize(buffer.event)
                    piece = buffer.view[: min(PIECE_SIZE, size - start)]
                    links.read(index, piece)
                    done += len(piece)
                    api.copy(target + start, buffer.address, len(piece), HOST_TO_DEVICE, on)
                    api.record(buffer.event, on)
                api.runtime.streamSynchronize(on)
            except api.errors as error:
                status = api.status_of(error)
                links.skip(index, size - done)
        except PeerFailedError:
            status = FAILED_ELSEWHERE  # the other end says what it was
        except PeerLostError as error:
            status = error.status
        self._finish(request, device, status, event, on, buffers)

    def _finish(
        self, request: int, device: int, status: int, event: int, on: int, buffers: list[Buffer]
    ) -> None:
        self.api.runtime.streamDestroy(on)
        for buffer in buffers:
            self.waiter.give(device, buffer)
        self.waiter.give_event(device, event)
        self.session.reply(request, status)


def _chained(first: memoryview, rest: Iterator[memoryview]) -> Iterator[memoryview]:
    yield first
    yield from rest
