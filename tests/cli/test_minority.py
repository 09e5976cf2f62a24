"""Real servers in a minority: one is stopped and goes on, or two of three are gone."""

import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

View = dict[str, Any]
COUNT = """
import cupy, time
for number in range(10**6):
    assert float(cupy.arange(100).sum().get()) == 4950.0
    print(number, flush=True)
    time.sleep(0.2)
"""


def shows(name: str, state: str) -> Callable[[View], bool]:
    """Return whether a view shows this server in this state."""
    return lambda pool: any(s["name"] == name and s["state"] == state for s in pool["servers"])


def no_lease(pool: View) -> bool:
    return pool["leases"] == []


def no_quorum(pool: View) -> bool:
    return not pool["raft"]["quorum"]


@pytest.mark.slow
def test_a_stopped_server_is_done_without_and_resumes_its_session(live_pool: Any) -> None:
    """SIGSTOP for longer than the 10 s after which a server counts as away."""
    leader = live_pool.view()["raft"]["leader"]
    stopped, other = (name for name in ("a", "b", "c") if name != leader)
    program = live_pool.spawn(
        "run", "--server", stopped, "-p", "0.5", "--", sys.executable, "-c", COUNT
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "0\n"
    lease = live_pool.view()["leases"][0]["name"]
    process = live_pool.servers[stopped].process
    process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        for server in (leader, other):
            granted = live_pool.run("run", "--no-wait", "--server", server, "--", "true")
            assert granted.returncode == 0, granted.stderr
        live_pool.wait_until(shows(stopped, "down"))
        assert time.monotonic() - began > 8.0
        # Its worker is another process: the program has not noticed.
        assert program.poll() is None
        assert [each["name"] for each in live_pool.view()["leases"]] == [lease]
    finally:
        process.send_signal(signal.SIGCONT)
    live_pool.wait_until(shows(stopped, "mix"))
    assert [each["name"] for each in live_pool.view()["leases"]] == [lease]
    for _ in range(5):
        assert program.stdout.readline(), "it goes on"
    program.terminate()
    program.communicate(timeout=10)
    live_pool.wait_until(no_lease)


@pytest.mark.slow
def test_a_minority_server_refuses_in_time_and_says_why(live_pool: Any) -> None:
    leader = live_pool.view()["raft"]["leader"]
    left, other = (name for name in ("a", "b", "c") if name != leader)
    gone = [live_pool.servers[name].process for name in (leader, other)]
    for process in gone:
        process.send_signal(signal.SIGSTOP)
    try:
        live_pool.wait_until(no_quorum)
        done = live_pool.run("status", "--json")
        assert done.returncode == 3
        assert "not in touch with a majority" in " ".join(json.loads(done.stdout)["problems"])
        began = time.monotonic()
        refused = live_pool.run("run", "--no-wait", "--server", left, "--", "true")
        took_s = time.monotonic() - began
        assert refused.returncode != 0
        assert "majority" in refused.stderr, refused.stderr
        assert took_s < 10.0, "2 s of the server's, and the start of a command"
    finally:
        for process in gone:
            process.send_signal(signal.SIGCONT)
    live_pool.wait_until(live_pool.is_whole)
