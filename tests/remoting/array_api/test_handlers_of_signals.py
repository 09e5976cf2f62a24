"""Handlers of signals and destructors that use arrays, in the midst of the program's own calls."""

import threading
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
for _ in range(40):
    x = x @ x
    x /= x.max()
{wait}
"""

WAITS = {
    "an answer": "float(x.sum())",
    "all": "cp.cuda.Device().synchronize()",
    "a copy": "x.get()",
}


def run(source: str, transport: str = "unix", expect: int = 0) -> str:
    with door_kit.pool(1, transport=transport) as agent:
        done = door_kit.run_program(agent, source, timeout_s=100)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("wait", [pytest.param(WAITS[name], id=name) for name in WAITS])
@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_a_program_that_is_asked_to_end_while_it_waits_saves_what_it_has(
    wait: str, transport: str
) -> None:
    source = CHECKPOINT.format(wait=wait, after_s=0.5)
    assert run(source, transport, expect=3) == "SIGTERM [0.0, 2.0, 4.0]\n"


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


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_destructors_of_garbage_do_no_harm(transport: str) -> None:
    source = """
import gc, sys
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
for number in range(1500):
    Cycle(number)
    assert int(cp.unique(cp.arange(5)).size) == 5
    assert float(cp.ones(number % 70 + 1).sum()) == number % 70 + 1
gc.collect()
assert all(found == 6 * number for found, number in asked), asked
assert len(asked) + len(refused) >= 1500, (len(asked), len(refused))
assert all("interrupted a call of cupy" in str(error) for error in refused), refused
"""
    run(source, transport)
