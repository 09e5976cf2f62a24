"""``run --dry-run``: a request's expected grant, and the latest time of free GPUs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import trio
import trio.testing

from gpupool.pool.errors import ExitCode, UnreachableError
from gpupool.pool.expected_start import NEVER, start_by_s, starts_by_s
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import Request
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.view import PoolView
from gpupool.remoting.program.dry_run import follow_start, silent_servers, start_text
from gpupool.remoting.program.python_lease import wanted_of
from gpupool.remoting.protocol import messages as m


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
    assert (
        start_text(5400)
        == "enough GPUs are free in 1h30m at the latest, by the leases' limits and the policy"
    )
    assert "nobody knows" in start_text(NEVER)


def test_those_first_in_line_have_a_start_where_limits_say_it(snapshot: PoolSnapshot) -> None:
    lease = replace(snapshot.view.leases[0], ends_at=Milliseconds(snapshot.view.now + 5_400_000))
    two = replace(snapshot.view.waiting[0], count=2)
    known = replace(two, filters=("gpu.memory >= 100GiB",))
    others = (
        replace(two, filters=("gpu.memory >= 900GiB",)),
        replace(two, filters=("colour = red",)),
        replace(two, count=1, fraction=0.5),
    )
    line = [replace(each, request=str(at)) for at, each in enumerate((known, *others, *9 * (two,)))]
    view = replace(snapshot.view, leases=(lease,), waiting=tuple(line))
    assert starts_by_s(view) == dict.fromkeys("04567", 5400.0)


def test_a_drained_gpu_is_not_free_for_who_waits(snapshot: PoolSnapshot) -> None:
    server = snapshot.view.servers[0]
    drained = tuple(replace(each, drain="new fan") for each in server.gpus)
    view = replace(snapshot.view, servers=(replace(server, gpus=drained),))
    assert start_by_s(view, wanted_of(fraction=0.5).request("x")) == NEVER


def test_the_servers_asked_for_that_do_not_answer_are_named(snapshot: PoolSnapshot) -> None:
    servers = [replace(each, state="down") for each in snapshot.view.servers[:1]]
    view = replace(snapshot.view, servers=(*servers, *snapshot.view.servers[1:]))
    request = wanted_of(1, servers=["server-a", "server-b"]).request("x")
    assert silent_servers(view, request) == ["server-a"]
    assert silent_servers(snapshot.view, request) == []


class Looks:
    """A pool with one lease; the lease's end and the policy's verdict change from look to look."""

    def __init__(self, view: PoolView, *, ends_ms: Sequence[int], suspendable_in: int = -1) -> None:
        self._view = view
        self._ends = list(ends_ms)
        self.verdict = m.PolicyVerdict("busy", (), suspendable_in)

    async def view(self) -> PoolView:
        await trio.lowlevel.checkpoint()
        if not self._ends:
            raise UnreachableError("lost server a")
        ends_ms = self._ends.pop(0)
        ends_at = Milliseconds(self._view.now + ends_ms if ends_ms else 0)
        return replace(self._view, leases=(replace(self._view.leases[0], ends_at=ends_at),))

    async def check_policy(self, user: str, request: Request) -> m.PolicyVerdict:
        await trio.lowlevel.checkpoint()
        assert user == "", "of the caller"
        return self.verdict


async def told_of(looks: Looks, fraction: float = 1.0) -> list[float]:
    told = list[float]()
    with trio.move_on_after(150):
        await follow_start(looks, wanted_of(fraction=fraction).request("x"), told.append)
    return told


async def test_a_wait_follows_the_limits_of_leases(
    autojump_clock: trio.testing.MockClock, snapshot: PoolSnapshot
) -> None:
    assert await told_of(Looks(snapshot.view, ends_ms=(60_000, 600_000))) == [60, 600]


async def test_a_wait_is_no_longer_than_until_others_give_way(
    autojump_clock: trio.testing.MockClock, snapshot: PoolSnapshot
) -> None:
    """Where leases have no limit, end later, or end sooner; and where there is room already."""
    view = snapshot.view
    soon = Looks(view, ends_ms=(0, 900_000, 120_000), suspendable_in=240_000)
    assert await told_of(soon) == [300, 300, 120]
    assert await told_of(Looks(view, ends_ms=(0,), suspendable_in=0)) == [60]
    assert await told_of(Looks(view, ends_ms=(0,), suspendable_in=0), fraction=0.5) == [0]
    assert await told_of(Looks(view, ends_ms=(0,))) == [NEVER]


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
