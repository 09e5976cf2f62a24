"""Streams and devices of the array door: the current ones, and CUDA's stream protocol."""

import door_kit
import pytest


@pytest.fixture(scope="module")
def output() -> str:
    """Return the output of the programs below; they share a session, as programs do."""
    with door_kit.pool(2) as agent:
        done = door_kit.run_program(agent, "\n".join(PROGRAMS.values()))
    assert done.returncode == 0, done.stderr
    return done.stdout


PROGRAMS = {
    "a device in two threads": """
import threading
import cupy as cp
first, second = cp.cuda.Device(0), cp.cuda.Device(1)
inside, may_end, found = threading.Event(), threading.Event(), []
def other():
    with second:
        with first:
            inside.set()
            may_end.wait(30)
        found.append(cp.cuda.Device().id)
thread = threading.Thread(target=other)
with first:
    with first:
        thread.start()
        inside.wait(30)
    found.append(cp.cuda.Device().id)
    may_end.set()
thread.join()
print("a device in two threads", found)
""",
    "devices in order": """
print("devices in order", first <= second, second >= first, first.use() is first)
try:
    first < 1
except TypeError:
    print("a device is no number")
""",
    "streams of with": """
one, two, three = cp.cuda.Stream(), cp.cuda.Stream(), cp.cuda.Stream()
now = cp.cuda.get_current_stream
one.use()
with two:
    three.use()
    with one:
        pass
    print("streams of with", now() == two)
print("the one of use is forgotten", now() == cp.cuda.Stream.null)
print(cp.cuda.Stream.null != cp.cuda.Stream.ptds, cp.cuda.Stream.ptds.ptr)
with cp.cuda.Stream.ptds:
    print(float(cp.arange(4).sum()))
""",
}


@pytest.mark.parametrize(
    "line",
    [
        "a device in two threads [0, 1]",
        "devices in order True True True",
        "a device is no number",
        "streams of with True",
        "the one of use is forgotten True",
        "True 2\n6.0",
    ],
)
def test_what_is_current(line: str, output: str) -> None:
    assert line in output
