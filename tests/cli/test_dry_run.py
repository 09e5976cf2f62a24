"""``run --dry-run``: what a request would get, and when GPUs are free at the latest."""

import sys
from dataclasses import replace
from typing import Any

import trio
import trio.testing

from gpupool.cli.lib.rows import PoolSnapshot
from gpupool.cli.run.dry_run import NEVER, follow_start, start_by_s, start_text
from gpupool.cli.run.python_lease import wanted_of
from gpupool.pool.errors import ExitCode, UnreachableError
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.view import PoolView


def test_when_gpus_are_free_by_the_limits_of_leases(snapshot: PoolSnapshot) -> None:
    view = snapshot.view  # half of both GPUs of server-a are held; server-b is drained

    def after(n: int, **wanted: Any) -> float:
        return start_by_s(limited, wanted_of(n, **wanted).request("x"))

    limited = view
    assert after(1, fraction=0.5) == after(2, fraction=0.5) == 0
    assert after(1) == NEVER  # the lease has no limit
    lease = replace(view.leases[0], ends_at=Milliseconds(view.now + 5_400_000))
    limited = replace(view, leases=(lease,))
    assert after(1) == after(2) == 5400
    assert after(3) == after(3, across=True) == NEVER
    assert after(1, servers=["server-b"]) == NEVER
    assert after(1, filters=["gpu.memory >= 900GiB"]) == NEVER
    assert start_text(5400) == "enough GPUs are free in 1h30m at the latest, by the leases' limits"
    assert "nobody knows" in start_text(NEVER)


async def test_a_wait_follows_the_limits_of_leases(
    autojump_clock: trio.testing.MockClock, snapshot: PoolSnapshot
) -> None:
    view, told = snapshot.view, list[float]()
    ends = [Milliseconds(view.now + ms) for ms in (600_000, 60_000)]

    async def look() -> PoolView:
        await trio.lowlevel.checkpoint()
        if len(told) == 2:
            raise UnreachableError("lost server a")
        lease = replace(view.leases[0], ends_at=ends.pop() if ends else Milliseconds(0))
        return replace(view, leases=(lease,))

    with trio.move_on_after(150):
        await follow_start(look, wanted_of().request("x"), told.append)
    assert told == [60, 600]


def test_what_a_suspended_lease_has_is_not_counted_twice(snapshot: PoolSnapshot) -> None:
    view = snapshot.view
    lease = replace(view.leases[0], is_away=True, ends_at=Milliseconds(view.now + 1000))
    assert start_by_s(replace(view, leases=(lease,)), wanted_of().request("x")) == NEVER


def test_a_dry_run_takes_nothing(live_pool: Any) -> None:
    python = [sys.executable, "-c", "print('it has run')"]
    done = live_pool.run("run", "-n", "2", "-p", "0.5", "--dry-run", "--", *python)
    assert done.returncode == 0, done.stderr
    assert "door: arrays, because the program's Python has no CuPy" in done.stdout
    assert "it has run" not in done.stdout
    assert live_pool.view()["leases"] == []
    done = live_pool.run("run", "-n", "99", "--dry-run", "--", *python)
    assert done.returncode == ExitCode.FAILED
