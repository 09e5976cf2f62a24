"""Frames read by another thread while the executing thread stands still."""

import queue
import struct
import threading
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.remoting.driver_api.executor.memory.mirrors import Write
from gpupool.remoting.driver_api.executor.out_of_band import OutOfBandReplies
from gpupool.remoting.driver_api.executor.reader import ClosedError, Reader
from gpupool.remoting.driver_api.executor.sync_waiter import Waiter
from gpupool.remoting.driver_api.schema.records import NUMBERS
from gpupool.remoting.transport.tally import Tally

PATIENCE_S = 10.0

Frame = tuple[list[int], bytes]
"""The first word of each of its records, and the bytes behind it."""

OP = 77


def encoded(frame: Frame, op: int = OP) -> bytes:
    words, bulk = frame
    body = b"".join(struct.pack("<HHIQ", op, 0, 16, word) for word in words)
    return struct.pack("<IIQ", 0x47504331, len(body), len(bulk)) + body + bulk


class FedStream:
    """Gives fed pieces one by one, and waits for more; an empty piece is the end."""

    calls = 0
    tally = Tally()

    def __init__(self) -> None:
        self.pieces: queue.Queue[bytes] = queue.Queue()
        self.left = b""

    def recv_into(self, buffer: memoryview, /) -> int:
        self.left = self.left or self.pieces.get(timeout=PATIENCE_S)
        count = min(len(buffer), len(self.left))
        buffer[:count] = self.left[:count]
        self.left = self.left[count:]
        return count

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Seen:
    """Keeps the frames that it is shown."""

    def __init__(self) -> None:
        self.found: queue.Queue[tuple[int, int, bytes]] = queue.Queue()

    def begin(self) -> None:
        pass

    def record(
        self, op: int, body: memoryview, frame: int, bulk: Callable[[], bytes] | None
    ) -> bool:
        assert op == OP
        self.found.put((frame, struct.unpack("<Q", body)[0], bulk() if bulk else b""))
        return True


frames = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.binary(max_size=40)),
    min_size=2,
    max_size=5,
)


@settings(max_examples=examples(50))
@given(frames, st.integers(1, 70), st.data())
def test_what_is_read_ahead_is_executed_in_its_order(
    sent: list[Frame], size: int, data: st.DataObject
) -> None:
    """Wherever the executor stands still, another sees the rest, and then it reads all of it."""
    stream = FedStream()
    reader = Reader(stream)
    reader.share()
    wire = b"".join(map(encoded, sent))
    pieces = [wire[at : at + size] for at in range(0, len(wire), size)]
    stands_at = data.draw(st.integers(0, len(sent) - 1))
    in_bulk = data.draw(st.integers(0, len(sent[stands_at][1])))
    read = sum(len(encoded(one)) for one in sent[:stands_at])
    read += len(encoded(sent[stands_at])) - len(sent[stands_at][1]) + in_bulk
    before = -(-read // size)  # pieces that come while it still executes
    for piece in pieces[:before]:
        stream.pieces.put(piece)

    def execute(frame: Frame, left: int = 0) -> None:
        start, end, bulk = reader.next_frame()
        assert reader.buffer[start:end] == encoded(frame)[16 : 16 + end - start]
        rest = bytearray(bulk - left)
        reader.into(memoryview(rest))
        assert rest == frame[1][: bulk - left]

    for frame in sent[:stands_at]:
        execute(frame)
    execute(sent[stands_at], len(sent[stands_at][1]) - in_bulk)
    seen = Seen()
    going: list[bool] = []

    def read_ahead() -> None:
        going.append(reader.read_ahead(reader.steps(), seen))

    thread = threading.Thread(target=read_ahead)
    thread.start()
    for piece in pieces[before:]:
        stream.pieces.put(piece)
    expected = [
        (number + 1, word, bulk if at == len(words) - 1 and not (in_bulk and number == stands_at)
         else b"")
        for number, (words, bulk) in enumerate(sent[stands_at:], stands_at)
        for at, word in enumerate(words)
    ]  # fmt: skip
    assert [seen.found.get(timeout=PATIENCE_S) for _ in expected] == expected
    rest = bytearray(len(sent[stands_at][1]) - in_bulk)
    reader.into(memoryview(rest))
    assert rest == sent[stands_at][1][in_bulk:]
    for frame in sent[stands_at + 1 :]:
        execute(frame)
    stream.pieces.put(b"")
    thread.join(PATIENCE_S)
    assert len(going) == 1 and seen.found.empty()  # whichever of the two has heard of the end
    with pytest.raises(ClosedError):
        reader.next_frame()


def test_nobody_reads_ahead_of_an_executor_that_has_moved() -> None:
    stream = FedStream()
    reader = Reader(stream)
    reader.share()
    steps = reader.steps()
    stream.pieces.put(encoded(([1], b"")))
    reader.next_frame()
    assert reader.read_ahead(steps, Seen())  # and does not wait for anything


def test_a_connection_that_breaks_meanwhile_ends_the_frames() -> None:
    class BrokenStream(FedStream):
        def recv_into(self, buffer: memoryview, /) -> int:
            if self.pieces.empty():
                raise TimeoutError
            return super().recv_into(buffer)

    stream = BrokenStream()
    reader = Reader(stream)
    reader.share()
    stream.pieces.put(encoded(([1], b"")))
    reader.next_frame()
    assert not reader.read_ahead(reader.steps(), Seen())
    with pytest.raises(ClosedError):
        reader.next_frame()


def test_no_more_than_a_limit_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """And frames read ahead are executed, after which there is room again."""
    monkeypatch.setattr("gpupool.remoting.driver_api.executor.reader.AHEAD_SIZE_MAX", 100)
    stream, seen = FedStream(), Seen()
    reader = Reader(stream)
    reader.share()
    for at in range(3):
        stream.pieces.put(encoded(([at], bytes(60))))
    reader.next_frame()
    assert reader.read_ahead(reader.steps(), seen)
    assert reader.read_ahead(reader.steps(), seen)  # at once
    assert [seen.found.get_nowait()[1] for _ in range(2)] == [0, 1]
    assert not stream.pieces.empty() or stream.left
    for at in range(3):
        if at:
            reader.next_frame()
        rest = bytearray(60)
        reader.into(memoryview(rest))


class Mirrors:
    """Where writes to mapped memory go."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int, int, bytes]] = []

    def overtake_mirror(self, frame: int, number: int, write: Write) -> None:
        if number == 404:
            raise KeyError(number)
        self.written.append((frame, number, write.first, write.fresh.tobytes()))


def words(*values: int) -> memoryview:
    return memoryview(struct.pack(f"<{len(values)}Q", *values))


@pytest.fixture
def overtaking() -> tuple[OutOfBandReplies, Mirrors, set[int]]:
    """Three host functions wait."""
    waiting, mirrors = {1, 2, 3}, Mirrors()
    out_of_band_replies = OutOfBandReplies(Reader(FedStream()), cast("Waiter", mirrors))
    out_of_band_replies.answer(waiting.__contains__, waiting.remove)
    out_of_band_replies.begin()
    return out_of_band_replies, mirrors, waiting


def test_writes_come_at_once_and_answers_after_them(
    overtaking: tuple[OutOfBandReplies, Mirrors, set[int]],
) -> None:
    out_of_band_replies, mirrors, waiting = overtaking
    assert out_of_band_replies.record(NUMBERS["MAP_WRITE"], words(7, 0, 2, 0), 5, lambda: b"ab")
    assert out_of_band_replies.record(NUMBERS["LAUNCH"], words(1), 6, None)
    assert out_of_band_replies.record(
        NUMBERS["HOST_DONE"], words(9), 6, None
    )  # nobody waits for that any more
    assert (mirrors.written, waiting) == ([(5, 7, 0, b"ab")], {1, 2, 3})
    assert out_of_band_replies.record(NUMBERS["HOST_DONE"], words(2), 6, None)
    assert out_of_band_replies.record(NUMBERS["MAP_WRITE"], words(7, 1, 1, 1), 7, lambda: b"c\1")
    assert out_of_band_replies.record(NUMBERS["HOST_DONE"], words(1), 8, None)
    assert mirrors.written == [(5, 7, 0, b"ab"), (7, 7, 1, b"c")]
    assert waiting == {3}


@pytest.mark.parametrize(
    ("op", "values", "bulk"),
    [
        (NUMBERS["MANAGED_WRITE"], (0, 1), b"x"),  # needs the driver
        (NUMBERS["MAP_WRITE"], (7, 0, 1, 0), None),  # half executed already
        (NUMBERS["MAP_WRITE"], (7, 0, 1), b"x"),  # malformed
        (NUMBERS["MAP_WRITE"], (7, 0, 5, 0), b"x"),
        (NUMBERS["MAP_WRITE"], (7, 0, 1, 1), b"x"),
        (NUMBERS["MAP_WRITE"], (404, 0, 1, 0), b"x"),  # the executor has not mapped it yet
    ],
)
def test_nothing_is_answered_behind_what_cannot_be_executed_early(
    op: int,
    values: tuple[int, ...],
    bulk: bytes | None,
    overtaking: tuple[OutOfBandReplies, Mirrors, set[int]],
) -> None:
    out_of_band_replies, mirrors, waiting = overtaking
    went_on = out_of_band_replies.record(
        op, words(*values), 1, None if bulk is None else lambda: bulk
    )
    assert not (went_on and out_of_band_replies.record(NUMBERS["HOST_DONE"], words(1), 2, None))
    assert (mirrors.written, waiting) == ([], {1, 2, 3})
