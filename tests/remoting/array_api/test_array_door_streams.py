"""Streams and devices of the array door: the current ones, and CUDA's stream protocol."""

import threading
from typing import Any

from door_cases import refused


def test_a_device_is_current_in_its_thread_and_its_block(cp: Any) -> None:
    first, second = cp.cuda.Device(0), cp.cuda.Device(1)
    found: list[int] = []

    def other() -> None:
        found.append(cp.cuda.Device().id)
        with second:
            with first:
                found.append(cp.zeros(1).device.id)
            found.append(cp.zeros(1).device.id)

    with second:
        with first, second:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(30)
            found.append(cp.cuda.Device().id)
        found.append(cp.zeros(1).device.id)
    assert found == [0, 0, 1, 1, 1]
    assert first <= second
    assert second >= first
    assert first.use() is first
    refused((TypeError, "", lambda: first < 1))


def test_the_stream_of_a_block_comes_back_and_that_of_use_is_forgotten(cp: Any) -> None:
    one, two, three = (cp.cuda.Stream() for _ in range(3))
    now, null = cp.cuda.get_current_stream, cp.cuda.Stream.null
    one.use()
    with two:
        three.use()
        with one:
            pass
        assert now() == two
    assert now() == null
    assert (null != cp.cuda.Stream.ptds, cp.cuda.Stream.ptds.ptr) == (True, 2)
    with cp.cuda.Stream.ptds:
        assert float(cp.arange(4).sum()) == 6


def test_each_device_has_its_own_current_stream(cp: Any) -> None:
    first, now, null = cp.cuda.Stream(), cp.cuda.get_current_stream, cp.cuda.Stream.null
    with cp.cuda.Device(1):
        second, marked = cp.cuda.Stream(), cp.cuda.Event()
        second.use()
        marked.record()
    assert first != second
    assert first.ptr != second.ptr
    with first:
        assert now() is first
        assert now(1) is second
        with cp.cuda.Device(1):
            assert now() is second
            x = cp.ones(3) * 2
        assert now() is first
        first.wait_event(marked)
        y = cp.asarray(x) + 1
    assert now() == null
    said = "does not match with the current device .0."
    refused(*((RuntimeError, said, wrong) for wrong in (second.use, second.__enter__)))
    assert (y.tolist(), x.get(stream=second).tolist()) == ([3] * 3, [2] * 3)
    with cp.cuda.Device(1):
        null.use()
