"""Handlers of signals and destructors that use arrays, in the midst of the program's own calls."""

import re
import threading
from pathlib import Path
from typing import Any

import door_kit
import pytest

CHECKPOINT = """
import os, signal, sys, threading
import cupy as cp, numpy as np
def save(number, frame):
    print(signal.Signals(number).name, cp.asnumpy(weights * 2).tolist(), flush=True)
    sys.exit(3)
weights, x = cp.arange(3.), cp.ones((1500, 1500))
signal.signal(signal.SIGTERM, save)
threading.Timer({after_s}, os.kill, (os.getpid(), signal.SIGTERM)).start()
for _ in range(8):
    x = x @ x
    x /= x.max()
{wait}
"""

WAITS = ["float(x.sum())", "cp.cuda.Device().synchronize()", "x.get()"]


def run(source: str, transport: str = "unix", expect: int = 0) -> str:
    with door_kit.pool(1, transport=transport) as agent:
        done = door_kit.run_program(agent, source, timeout_s=100)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_a_program_that_is_asked_to_end_while_it_waits_saves_what_it_has(
    wait: str, transport: str
) -> None:
    source = CHECKPOINT.format(wait=wait, after_s=0.1)
    assert run(source, transport, expect=3) == "SIGTERM [0.0, 2.0, 4.0]\n"


INTERRUPTED = """
import os, random, signal, threading, time
import cupy as cp, numpy as np
x, large, host = cp.arange(10.), cp.zeros(200_000), np.ones(200_000)
armed = threading.Event()
def interrupt():
    times = random.Random(1)
    while armed.wait():
        time.sleep(times.uniform(0.0005, 0.01))
        if armed.is_set():
            os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
until, hits, turns = time.monotonic() + 60, 0, 0
while hits < {hits} and time.monotonic() < until:
    try:
        armed.set()
        while True:
            {turn}
            turns += 1
    except KeyboardInterrupt:
        armed.clear()
        hits += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert float(x.sum()) == 45
assert float(large.sum()) in (0, 200_000)
print(hits)
"""


@pytest.mark.parametrize("transport", ["unix", "tls"])
@pytest.mark.parametrize("turn", ["float(x.sum())", "large.get()", "large.set(host)"])
def test_interrupts_at_any_moment_lose_no_session(turn: str, transport: str) -> None:
    source = INTERRUPTED.format(hits=40, turn=turn)
    assert run(source, transport) == "40\n"


EACH_POINT = """
import contextlib, sys, threading
import cupy as cp, numpy as np
from interrupts import Interrupts
a, large, host = cp.ones(3), cp.zeros(60_000), np.ones(60_000)
mask = cp.arange(10) % 2 == 0
def beside():
    b = cp.arange(4.)
    while not over:
        assert float(b.sum()) == 6
        turns.append(1)
over, turns = False, []
other = threading.Thread(target=beside)
if {beside}:
    other.start()
operations = [
    lambda: float(a.sum()),
    large.get,
    lambda: large.set(host),
    lambda: cp.asarray(host[:9]) + 1,
    lambda: cp.asarray(host),
    lambda: cp.nonzero(mask)[0] + 1,
    cp.cuda.Device().synchronize,
    lambda: [a * number for number in range(70)],
]
points = 0
for operation in operations:
    for number in range(0, 100_000, {step}):
        interrupts = Interrupts(number)
        with contextlib.suppress(KeyboardInterrupt), interrupts:
            operation()
        assert float(a.sum()) == 3, (operation, number)
        assert cp.nonzero(mask)[0].tolist() == [0, 2, 4, 6, 8], (operation, number)
        assert float(large.sum()) in (0, 60_000), (operation, number)
        if not interrupts.raised:
            break
        points += 1
over = True
if {beside}:
    other.join()
    assert turns
print(points)
"""


@pytest.mark.parametrize(
    ("transport", "beside"),
    [
        ("unix", False),
        ("unix", True),
        pytest.param("tls", False, marks=pytest.mark.long),
        ("tls", True),
    ],
)
def test_an_interrupt_at_any_point_of_a_call_loses_no_session(transport: str, beside: bool) -> None:
    helper = str(Path(__file__).parent)
    source = EACH_POINT.format(beside=beside, step=3 if beside else 1)
    assert int(run(f"import sys; sys.path.append({helper!r})\n{source}", transport)) > 100


def test_no_signal_leaves_a_lock_of_a_session_held(cp: Any) -> None:
    """`locks` says why: `with`, `if lock.acquire()`, Event and Condition can leave one held."""
    door = Path(cp._door.__file__).parent
    files = [*(door / "transport").glob("*.py"), door / "queue.py", door / "session.py"]
    taken = re.compile(
        r"with (self|sender)\.\S*(lock|ing)\b|^ *if .*\.acquire\(|= .*\.acquire\("
        r"|Event\(|Condition\("
    )
    found = [
        f"{file.name}: {line.strip()}"
        for file in sorted(files)
        for line in file.read_text().splitlines()
        if taken.search(line)
    ]
    # The thread that flushes handles no signals, and the agent is checked once, at the end.
    assert found == ["flusher.py: with sender.lock:", "link.py: with self._reading:"]


def test_what_asks_in_the_middle_of_an_answer_is_refused_and_does_not_wait_for_ever(
    cp: Any,
) -> None:
    receiver = cp._door.pool.current()._receiver
    a = cp.ones(3)
    assert receiver.reading.acquire(blocking=False)
    try:
        receiver._reader = threading.get_ident()
        with pytest.raises(cp._door.errors.DoorError, match="let the handler set a flag"):
            float(a.sum())
    finally:
        receiver._reader = 0
        receiver.reading.release()
    assert float(a.sum()) == 3


@pytest.mark.parametrize("transport", ["unix", pytest.param("tcp", marks=pytest.mark.long), "tls"])
def test_destructors_of_garbage_do_no_harm(transport: str) -> None:
    source = """
import gc, sys, time
import cupy as cp
sys.unraisablehook = lambda info: refused.append(info.exc_value)
asked, refused = [], []
class Cycle:
    def __init__(self, number):
        self.me, self.array, self.number = self, cp.full(3, number), number
    def __del__(self):
        asked.append((float((self.array * 2).sum()), self.number))
        cp.ones(self.number % 50 + 1, dtype="efd"[self.number % 3]) + 1
gc.set_threshold(30)
for number in range(750):
    Cycle(number)
    assert int(cp.unique(cp.arange(5)).size) == 5
    assert float(cp.ones(number % 70 + 1).sum()) == number % 70 + 1
while len(asked) + len(refused) < 750:  # another thread may be in the midst of a collection
    gc.collect()
    time.sleep(0.01)
assert all(found == 6 * number for found, number in asked), asked
assert all("interrupted a call of cupy" in str(error) for error in refused), refused
"""
    run(source, transport)


def test_destructors_of_one_collection_use_what_it_drops() -> None:
    """In any order: the arrays are older than their holders, and a question sends the frees."""
    source = """
import gc
import cupy as cp
gc.disable()
asked = []
class Cycle:
    def __init__(self, array):
        self.me, self.array = self, array
    def __del__(self):
        asked.append(float((self.array * 2).sum()))
for array in [cp.full(3, 7.0), cp.full(3, 8.0)]:
    Cycle(array)
del array
gc.collect()
assert asked == [42, 48], asked
assert float(cp.ones(3).sum()) == 3
"""
    run(source)
