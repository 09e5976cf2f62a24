"""The worker's side of the CUDA door: frames in, calls executed in their order, replies out."""

import struct
import sys
import threading
from collections.abc import Callable, Sequence

from gpupool.pool.errors import ProtocolError
from gpupool.remoting.devices.base import Budget, DeviceSpec
from gpupool.remoting.driver_api.executor.api import ASSERT, Api
from gpupool.remoting.driver_api.executor.executor import Executor
from gpupool.remoting.driver_api.executor.host_turns import Turn
from gpupool.remoting.driver_api.executor.lanes import LaneSet
from gpupool.remoting.driver_api.executor.line_tls import accept as accept_tls
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.executor.reader import ClosedError, Reader, Stream
from gpupool.remoting.worker.peer_links import Links

__all__ = ["Session", "accept_tls", "serve"]  # the worker looks here for its door's own TLS

ANSWER = struct.Struct("<IiQIiQ")
REPLY, DATA, NOTICE, MIRROR, PRINTED, HOST, PART = 1, 2, 3, 4, 5, 6, 7
STRIPE = 0x100
"""Flag added to the kind of an answer with its bulk bytes on the lanes."""
SWITCH_INTERVAL_S = 50e-6
"""A thread that has waited for the GPU gets Python back this soon, however busy the others are."""


class Session:
    """One client process: its connection, and the replies to its calls."""

    HELD_SIZE_MAX = 4096
    """Of the bytes of a download that leave with the reply behind them."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.reader = Reader(stream)
        self.sending = threading.RLock()
        self._held: list[bytes | memoryview] = []  # goes out with the next message, which is near
        self.began: dict[int, int] = {}
        """When each request began that is not answered yet, in nanoseconds."""
        self.lanes: LaneSet | None = None
        """Those on which large downloads go."""
        self.before_assert: Callable[[], None] | None = None
        """Called before the program hears that an assertion of a kernel has failed."""

    def reply(
        self,
        request: int,
        status: int,
        body: bytes = b"",
        *,
        failed: int = 0,
        bulk: Sequence[memoryview] = (),
    ) -> None:
        """Answer a request."""
        if status == ASSERT and self.before_assert is not None:
            self.before_assert()
        head = ANSWER.pack(REPLY, status, request, len(body), failed, sum(map(len, bulk)))
        began = self.began.pop(request, 0)
        with self.sending:
            if began:
                self.stream.tally.answered(began)
            held, self._held = self._held, []
            self.stream.send_buffers([*held, head, body, *bulk])

    def waited(self, request: int, status: int, body: bytes, waited_ns: int) -> None:
        """Answer a request that took ``waited_ns``."""
        if status == ASSERT and self.before_assert is not None:
            self.before_assert()
        head = ANSWER.pack(REPLY, status, request, len(body), 0, 0)
        tally = self.stream.tally
        with self.sending:
            tally.waits += 1
            tally.wait_ns += waited_ns
            held, self._held = self._held, []
            self.stream.send_buffers([b"".join((*held, head, body))])

    def part(self, request: int, bulk: memoryview) -> None:
        """Send some of the bytes that a request wants, in their order; its reply follows."""
        self._send_bulk(PART, request, bulk)

    def end(self) -> None:
        """End the session: one of its calls will never be answered."""
        self.stream.close()

    def data(self, download: int, bulk: memoryview, *, replies: bool = False) -> None:
        """Deliver the bytes of a download; ``replies``: this thread replies to a request next."""
        head = ANSWER.pack(DATA, 0, download, 0, 0, len(bulk))
        if replies and len(bulk) <= self.HELD_SIZE_MAX:
            # One message instead of two; its buffer is used again before that.
            with self.sending:
                self._held += (head, bytes(bulk))
        else:
            self._send_bulk(DATA, download, bulk)

    def answers(self, answers: bytes, *, replies: bool = False) -> None:
        """Deliver downloads that are answers already; ``replies`` as above."""
        if replies and len(answers) <= self.HELD_SIZE_MAX:
            with self.sending:
                self._held.append(answers)
        else:
            self._send([answers])

    def mirror(self, number: int, offset: int, bulk: memoryview, mask: bytes) -> None:
        """Send bytes that kernels wrote to mapped memory: those set in ``mask``, or all."""
        head = ANSWER.pack(MIRROR, 0, number, 8 + len(mask), 0, len(bulk))
        self._send([head, offset.to_bytes(8, "little"), mask, bulk])

    def printed(self, descriptor: int, text: bytes) -> None:
        """Write the output of kernels to the program's standard output, or error."""
        self._send([ANSWER.pack(PRINTED, 0, descriptor, len(text), 0, 0), text])

    def host(self, turns: Sequence[Turn]) -> None:
        """Say that host functions' turns have come, in their order."""
        said = [
            ANSWER.pack(HOST, status, number, 8, 0, 0) + ticket.to_bytes(8, "little")
            for number, status, ticket in turns
        ]
        self._send([b"".join(said)])

    def _send(self, buffers: list[bytes | memoryview]) -> None:
        with self.sending:
            held, self._held = self._held, []
            self.stream.send_buffers([*held, *buffers])

    def _send_bulk(self, kind: int, number: int, bulk: memoryview) -> None:
        lanes = self.lanes
        if lanes is None or not lanes.takes(len(bulk)):
            self._send([ANSWER.pack(kind, 0, number, 0, 0, len(bulk)), bulk])
            return
        with self.sending:
            self._send([ANSWER.pack(kind | STRIPE, 0, number, 0, 0, len(bulk))])
            lanes.send(bulk)
            self.stream.tally.lane_bytes_out += len(bulk)

    def notice(self, text: str) -> None:
        """Say something to the user of the program."""
        body = text.encode()[:1000]
        self._send([ANSWER.pack(NOTICE, 0, 0, len(body), 0, 0), body])

    def run(self, executor: Executor) -> None:
        """Execute frames until the client leaves.

        Raises:
            ClosedError: when it has.
            ProtocolError: when it sends what no shim of ours sends.
        """
        reader = self.reader
        while True:
            start, end, bulk = reader.next_frame()
            executor.execute(reader.buffer, reader.view, start, end, bulk)


def serve(
    stream: Stream,
    devices: Sequence[DeviceSpec],
    budget: Budget,
    log: Callable[[str], None],
    links: Links | None = None,
) -> None:
    """Serve one client process of the CUDA door until it leaves; blocks.

    Args:
        stream: connected and authenticated; closed on return.
        devices: the partitions of this session, in the client's order; all real GPUs.
        budget: where their memory is reserved.
        log: takes one line about something that an operator may want to know.
        links: to the workers of the other servers of the lease.
    """
    session, images = Session(stream), Images.of_worker()
    try:
        if any(spec.ordinal is None for spec in devices):
            session.notice("emulated GPUs have the array door only: use gpupool run --door arrays")
            return
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        executor = Executor(Api(), session, devices, budget, log, images, links)
        session.run(executor)
    except ClosedError:
        images.finish()  # the client's process is gone; nothing is left to answer
    except (ConnectionError, TimeoutError) as error:
        log(f"CUDA session: the connection broke ({error})")
    except (ProtocolError, struct.error) as error:
        log(f"CUDA session: ended because of the client: {error}")
    finally:
        for lanes in (session.reader.lanes, session.lanes):
            if lanes is not None:
                lanes.end()
        if links is not None:
            links.close()
        stream.close()
