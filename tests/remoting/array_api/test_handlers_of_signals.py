"""Handlers of signals that use arrays: they run, also where a signal comes amid calls."""

import door_kit
import pytest

OFTEN = """
import random, signal, time
import cupy as cp, numpy as np
a, host = cp.arange(100.), np.random.rand(1 << 16)
ran, over = [], False
def handler(*_):
    ran.append(float((a + 1).sum()))
    if not over:  # it may come after the last turn
        signal.setitimer(signal.ITIMER_REAL, random.random() * 0.002)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
turns, end = 0, time.monotonic() + 2
while time.monotonic() < end or len(ran) < 100:
    x = cp.asarray(host)
    y = x
    for _ in range(20):
        y = y + 1
    assert abs(float(y[3]) - host[3] - 20) < 1e-9
    assert np.array_equal(x.get(), host)
    turns += 1
over = True
signal.setitimer(signal.ITIMER_REAL, 0)
assert set(ran) == {5050.0}, set(ran)
assert turns
print("done")
"""

CHECKPOINT = """
import os, signal, sys, threading, time
import cupy as cp, numpy as np
def save(number, frame):
    print(signal.Signals(number).name, cp.asnumpy(weights).tolist(), flush=True)
    sys.exit(3)
weights = cp.arange(3.)
{before}
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
while True:
    {loop}
"""

LOOPS = {
    "it waits for answers": "float((cp.ones(5) * 2).sum())",
    "it waits for nothing": "cp.ones(5) * 2",
    "it waits for something long": "float(cp.ones((300, 300)).dot(cp.ones((300, 300))).sum())",
    "it sleeps": "time.sleep(0.01)",
    "it copies": "cp.asarray(np.ones(1 << 20)).get()",
}


def run(source: str, transport: str = "unix", expect: int = 0) -> str:
    with door_kit.pool(1, transport=transport) as agent:
        done = door_kit.run_program(agent, source, timeout_s=60)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
def test_a_handler_asks_in_the_midst_of_copies_and_questions(transport: str) -> None:
    assert run(OFTEN, transport) == "done\n"


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("before", [True, False], ids=["set before", "set after"])
def test_a_program_that_is_asked_to_end_saves_what_it_has(loop: str, before: bool) -> None:
    line = "signal.signal(signal.SIGTERM, save)"
    source = CHECKPOINT.format(before="" if before else line, loop=loop)
    if before:
        source = source.replace("weights = ", f"{line}\nweights = ", 1)
    assert run(source, expect=3) == "SIGTERM [0.0, 1.0, 2.0]\n"


def test_a_handler_that_raises_ends_a_call_and_the_session_goes_on() -> None:
    source = """
import signal, time
import cupy as cp
class Late(Exception): pass
def handler(*_): raise Late
signal.signal(signal.SIGALRM, handler)
a, late = cp.arange(1000.), 0
def work():  # a function: Python 3.14 leaves the jump of a loop in `try` outside of it
    while True:
        b = a + turn
        assert float(b[1]) == turn + 1
for turn in range(200):
    signal.setitimer(signal.ITIMER_REAL, 0.001 + turn % 7 * 0.0005)
    try:
        work()
    except Late:
        late += 1
print(late, a.sum())
"""
    assert run(source) == "200 499500.0\n"


@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
def test_a_program_that_is_interrupted_keeps_its_arrays(transport: str) -> None:
    source = """
import random, signal
import cupy as cp, numpy as np
a, host = cp.arange(1000.), np.random.rand(40_000)
def calls():
    while True:
        a + 1
def questions():
    while True:
        assert float(a.sum()) == 499500
def copies():
    while True:
        assert np.array_equal(cp.asarray(host).get(), host)
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGALRM, interrupt)
count = 0
for turn in range(60):
    signal.setitimer(signal.ITIMER_REAL, 0.0005 + random.random() * 0.005)
    try:
        (calls, questions, copies)[turn % 3]()
    except KeyboardInterrupt:
        count += 1
print(count, float(a[3]))
"""
    assert run(source, transport) == "60 3.0\n"


def test_a_handler_copies_large_arrays_amid_such_copies() -> None:
    source = """
import signal, time
import cupy as cp, numpy as np
host, ran = np.random.rand(1 << 20), []
a = cp.asarray(host)
def handler(*_):
    ran.append(np.array_equal(cp.asarray(a.get()).get(), host))
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.05)
end = time.monotonic() + 2
while time.monotonic() < end:
    assert np.array_equal(cp.asarray(host).get(), host)
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(ran) > 3 and all(ran), ran
"""
    run(source)


@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_destructors_of_garbage_may_ask(transport: str) -> None:
    source = """
import gc
import cupy as cp
dropped, asked = [], []
class Cycle:
    def __init__(self, number):
        self.me, self.array, self.number = self, cp.full(3, number), number
    def __del__(self):
        dropped.append(self.number)
        asked.append(float((self.array * 2).sum()))
        cp.ones(self.number % 50 + 1, dtype="efd"[self.number % 3]) + 1
gc.set_threshold(30)
for number in range(1500):
    Cycle(number)
    assert int(cp.unique(cp.arange(5)).size) == 5
    assert float(cp.ones(number % 70 + 1).sum()) == number % 70 + 1
gc.collect()
assert asked == [6.0 * number for number in dropped]
assert sorted(dropped) == list(range(1500))
try:
    cp.linalg.cholesky(cp.eye(3)) + cp.asarray([1]).reshape(7)
except ValueError:
    pass
"""
    run(source, transport)


def test_programs_see_their_own_handlers() -> None:
    source = """
import signal, threading
import cupy as cp
def one(*_): pass
def two(*_): pass
signal.signal(signal.SIGUSR1, one)
cp.zeros(1)
assert signal.getsignal(signal.SIGUSR1) is one
assert signal.signal(signal.SIGUSR1, two) is one
assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is two
assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is signal.SIG_IGN
assert signal.signal(signal.SIGUSR1, one) is signal.SIG_DFL
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
for number, handler, error in ((0, one, ValueError), (signal.SIGKILL, one, OSError),
                               (signal.SIGUSR1, "one", TypeError)):
    try:
        signal.signal(number, handler)
    except error:
        pass
    else:
        raise AssertionError(number)
assert signal.getsignal(signal.SIGUSR1) is one
errors = []
def other():
    try:
        signal.signal(signal.SIGUSR1, two)
    except ValueError as error:
        errors.append(error)
thread = threading.Thread(target=other)
thread.start()
thread.join()
assert errors and signal.getsignal(signal.SIGUSR1) is one
"""
    run(source)


def test_a_loop_of_asyncio_hears_each_signal_once() -> None:
    source = """
import asyncio, os, signal, threading, time
import cupy as cp
a, heard = cp.arange(4.), []
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: heard.append(float(a.sum())))
    for _ in range(20):
        threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        end = time.monotonic() + 0.01
        while time.monotonic() < end:
            float((a + 1).sum())
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
asyncio.run(main())
assert heard == [6.0] * 20, heard
"""
    run(source)


def test_a_signal_that_waits_when_the_program_ends_does_not_end_it() -> None:
    source = """
import signal
import cupy as cp
signal.signal(signal.SIGALRM, lambda *_: None)
a = cp.arange(4.)
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
for _ in range(300):
    float(a.sum())
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    for _ in range(5):
        run(source)


def test_a_child_has_handlers_of_its_own() -> None:
    source = """
import os, signal, time
import cupy as cp
signal.signal(signal.SIGUSR1, lambda *_: print("heard", os.getpid() == first, flush=True))
first = os.getpid()
a = cp.arange(4.)
os.kill(first, signal.SIGUSR1)
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.05)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert run(source) == "heard True\nheard False\n"
