"""A program that is told by ``gpupool run`` to go on with another server's worker."""

import threading
import time
from typing import Any

import door_kit
import pytest
from test_moved_sessions import servers

LOOP = """
import cupy as cp, time
from cupy._door import pool
a = cp.zeros(1000, 'i8')
turns, until = 0, time.monotonic() + 20
while pool.current().name == 'server0' and time.monotonic() < until:
    a += 1
    turns += 1
print(int(a.sum()) == 1000 * turns, turns > 0, pool.current().name)
"""


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def told(agent: door_kit.Agent, offers: list[dict[str, Any]], source: str) -> list[str]:
    """Run a program that is told to go to the first offer; return its output."""

    def order() -> None:
        until(lambda: agent.followers)
        agent.order(offers[0])

    thread = threading.Thread(target=order)
    thread.start()
    done = door_kit.run_program(agent, source)
    thread.join()
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_it_goes_on_there_in_the_middle_of_its_calls(transport: str) -> None:
    with servers(transport=transport) as (agent, offers):
        assert told(agent, offers, LOOP) == ["True True server1"]
        until(lambda: len(agent.said) == 3)
        follow, asks, moved = agent.said
        assert len(bytes.fromhex(follow["session"])) == 16
        assert (asks, moved) == ({"op": "go-on"}, {"op": "moved", "stays": ""})


STAYS = """
import cupy as cp, time
from cupy._door import pool
a = cp.ones(1000, 'i8')
{before}
print(int(a.sum()), flush=True)
input()
a += 1
print(int(a.sum()), pool.current().name)
"""


def stays(agent: door_kit.Agent, offers: list[dict[str, Any]], before: str) -> str:
    """Run a program that is told to go and stays; return its reason."""
    with door_kit.program(agent, STAYS.format(before=before), "1000") as process:
        until(lambda: agent.followers)
        agent.order(offers[0])
        until(lambda: agent.said[-1]["op"] == "moved")
        assert process.communicate("\n")[0] == "2000 server0\n"
    return agent.said[-1]["stays"]


def test_it_stays_where_the_pool_says_so() -> None:
    with servers() as (agent, offers):
        agent.stays = "the pool says no"
        assert stays(agent, offers, "") == "the pool says no"


def test_a_forked_process_does_not_keep_its_parents_connection() -> None:
    source = """
import os, sys, cupy as cp
print(int(cp.ones(3).sum()), flush=True)
if os.fork():
    os._exit(0)
sys.stdin.read()
"""
    with servers() as (agent, _offers), door_kit.program(agent, source, "3") as process:
        until(lambda: len(agent.gone) == 2)
        assert process.stdin is not None
        process.stdin.close()  # only now its child ends


def test_an_older_run_is_not_followed() -> None:
    with servers() as (agent, _offers):
        agent.known_moves = False
        with door_kit.program(agent, STAYS.format(before=""), "1000") as process:
            assert process.communicate("\n")[0] == "2000 server0\n"
        assert [each["op"] for each in agent.said] == ["follow"]
