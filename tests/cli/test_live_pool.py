"""The pool that tests share is looked at after each of them."""

import signal
import sys
from typing import Any

from tests.cli.conftest import LivePool


def no_lease(pool: dict[str, Any]) -> bool:
    return pool["leases"] == []


def test_what_a_test_may_leave_behind_is_noticed_or_ended(live_pool: LivePool) -> None:
    assert live_pool.wrong() == ""
    assert live_pool.run("drain", "b", "--reason", "it is left so").returncode == 0
    assert "'b': 'drain'" in live_pool.wrong()
    assert live_pool.run("undrain", "b").returncode == 0
    # A program that its test did not end.
    hold = "import cupy, time; cupy.ones(1); print('holding', flush=True); time.sleep(600)"
    program = live_pool.spawn("run", "-p", "0.5", "--", sys.executable, "-c", hold)
    assert program.stdout is not None
    assert program.stdout.readline() == "holding\n"
    live_pool.wrong()
    assert program.returncode == -signal.SIGKILL
    live_pool.wait_until(no_lease)
    # A server that nobody started again.
    live_pool.servers["c"].end(signal.SIGKILL)
    assert live_pool.wrong() == "server c has ended"
    live_pool.servers["c"].start()
    live_pool.wait_until(live_pool.is_whole)
    assert live_pool.wrong() == ""
