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


def counting(live_pool: Any, server: str) -> Any:
    """Start a program that counts with a GPU of this server, and return it once it does."""
    words = ("run", "--server", server, "-p", "0.5", "--", sys.executable, "-c", COUNT)
    program = live_pool.spawn(*words)
    assert program.stdout.readline() == "0\n"
    return program


@pytest.mark.slow
def test_a_server_that_is_stopped_for_a_moment_keeps_its_session(live_pool: Any) -> None:
    """Longer than the 0.5 s after which it is asked for a word; it may stand still for 3 s."""
    leader = live_pool.view()["raft"]["leader"]
    stopped = next(name for name in ("a", "b", "c") if name != leader)
    program = counting(live_pool, stopped)
    lease = live_pool.view()["leases"][0]["name"]
    process = live_pool.servers[stopped].process
    began = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(1)
    finally:
        process.send_signal(signal.SIGCONT)
    while time.monotonic() - began < 5.0:  # by then a lease that is lost is known to be
        assert program.stdout.readline(), program.communicate()
    assert [each["name"] for each in live_pool.view()["leases"]] == [lease]
    program.terminate()
    _, said = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGTERM, said  # 125 if the lease was lost
    live_pool.wait_until(no_lease)


@pytest.mark.slow
def test_a_stopped_server_is_done_without_until_it_goes_on(live_pool: Any) -> None:
    """A program gives it up after 4 s, the pool after 10 s; its GPUs are not granted meanwhile."""
    leader = live_pool.view()["raft"]["leader"]
    stopped, other = (name for name in ("a", "b", "c") if name != leader)
    program = counting(live_pool, stopped)
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
        _, said = program.communicate(timeout=60)
        assert program.returncode == 125
        assert said.endswith(f"lost server {stopped}: no answer for 4 s; lease {lease} is void\n")
        # Nobody knows whether its worker still computes.
        assert [each["name"] for each in live_pool.view()["leases"]] == [lease]
    finally:
        process.send_signal(signal.SIGCONT)
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
