"""The final message of ``gpupool move``: the lease's place, or the reason of a failed move."""

from dataclasses import replace
from typing import Any, cast

import pytest
import trio.testing
from tests.cli.conftest import GIB, gpu, pool, server

from gpupool.cli.commands.moves import arrived, target_of
from gpupool.cli.commands.view import leases_body
from gpupool.pool.errors import GpupoolError, LeaseLostError, NotNowError, UsageError
from gpupool.pool.model.ids import GpuId, Milliseconds
from gpupool.pool.model.state import Event, Partition
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.telemetry import SessionTelemetry, Telemetry
from gpupool.pool.view import LeaseView, PoolView

Clock = trio.testing.MockClock
HERE = pool(server(0, (gpu(0, 0), gpu(0, 1))))
LEASE = replace(
    HERE.leases[0], partitions=(Partition(HERE.servers[0].id, GpuId("GPU-0-0"), 70 * GIB),)
)
MOVED = replace(LEASE, partitions=(replace(LEASE.partitions[0], gpu=GpuId("GPU-0-1")),))
LEAVING = replace(LEASE, state="suspending", reason="by ada: to move it")


class Looks:
    """A pool with views that show one lease in a sequence of states."""

    def __init__(self, *leases: LeaseView | None) -> None:
        self.leases = list(leases)

    async def view(self) -> PoolView:
        lease = self.leases.pop(0) if len(self.leases) > 1 else self.leases[0]
        return replace(HERE, leases=(lease,) if lease is not None else ())


async def follow(looks: Looks) -> str:
    return await arrived(cast(Any, looks), LEASE)


async def failure(error: type[GpupoolError], *leases: LeaseView | None) -> tuple[str, str, str]:
    with pytest.raises(error) as found:
        await follow(Looks(*leases))
    return found.value.what, found.value.why, found.value.hint


async def test_where_it_goes_on(autojump_clock: Clock) -> None:
    arriving = replace(MOVED, state="resuming")
    said = await follow(Looks(LEASE, LEAVING, arriving, MOVED))
    assert said == "lease 7f3a goes on with GPU 1 of server-a"
    away = replace(MOVED, state="suspended", reason="by the pool: for bob")
    said = await follow(Looks(LEAVING, away))
    assert said == (
        "lease 7f3a was moved to GPU 1 of server-a, and is suspended now by the pool: for bob"
    )


async def test_why_it_was_not_moved_where_it_is_and_what_to_do(autojump_clock: Clock) -> None:
    what = "lease 7f3a was not moved, and runs on with GPU 0 of server-a"
    hint = '"gpupool gpus" lists GPUs with room; then move it again'
    taken = replace(LEASE, not_suspended="GPU 1 of server-a is taken by now")
    said = await failure(NotNowError, LEAVING, taken)
    assert said == (what, "GPU 1 of server-a is taken by now", hint)
    said = await failure(NotNowError, LEAVING, LEASE)
    why = "it was resumed before its program had let go, which ends a move"
    assert said == (what, why, hint)
    assert (await failure(NotNowError, LEASE))[0] == what, "a view that lags is not waited for"
    away = replace(LEASE, state="suspended", reason="by bob: to make room")
    assert await failure(NotNowError, LEAVING, away) == (
        "lease 7f3a was not moved, and is suspended now by bob: to make room",
        "",
        '"gpupool resume 7f3a" first, then move it again',
    )


async def test_a_lease_that_ends_meanwhile(autojump_clock: Clock) -> None:
    ending = replace(LEASE, state="ending", reason="its client disconnected")
    said = await failure(LeaseLostError, LEAVING, ending)
    assert said[:2] == ("lease 7f3a has ended", "its client disconnected")
    assert (await failure(LeaseLostError, LEAVING, None))[0] == "lease 7f3a has ended"


def test_a_list_of_leases_says_what_failed() -> None:
    for lease, reason in (
        (replace(LEASE, not_suspended="no memory"), "not suspended: no memory"),
        (replace(LEASE, not_suspended="taken", not_moved="taken"), "not moved: taken"),
    ):
        rows = PoolSnapshot(replace(HERE, leases=(lease,), waiting=())).leases
        assert [row.reason for row in rows] == [reason]


def test_a_list_of_leases_says_what_cannot_be_suspended_before_any_attempt() -> None:
    """The table or a server's host has the reason; a recent failure is shown first."""
    here = HERE.servers[0].id
    session = SessionTelemetry(LEASE.id, 1, 0, 0, 0, 0, not_suspendable="it uses NCCL")
    says = {here: Telemetry(here, HERE.now, sessions=(session,))}
    old = replace(LEASE, not_suspendable="its driver is old")
    ending = replace(LEASE, state="ending", reason="it is over")
    for lease, telemetry, reason, told in (
        (LEASE, {}, "", ""),
        (old, {}, "cannot be suspended: its driver is old", "its driver is old"),
        (LEASE, says, "cannot be suspended: it uses NCCL", "it uses NCCL"),
        (old, says, "cannot be suspended: its driver is old", "its driver is old"),
        (replace(old, not_suspended="full"), {}, "not suspended: full", "its driver is old"),
        (ending, says, "it is over", "it uses NCCL"),
    ):
        snapshot = PoolSnapshot(replace(HERE, leases=(lease,), waiting=()), 0.0, telemetry)
        assert [row.reason for row in snapshot.leases] == [reason]
        (body,) = cast("list[dict[str, object]]", leases_body(snapshot)["leases"])
        assert body["not_suspendable"] == told


# --- to another server ----------------------------------------------------------------------------


def test_a_word_names_a_gpu_of_its_servers_or_any_server() -> None:
    servers = (server(0, (gpu(0, 0), gpu(0, 1))), server(1, (gpu(1, 0),)))
    view, (mine, other) = replace(pool(*servers), leases=(LEASE,)), servers
    assert target_of(view, LEASE, ["1"]) == (mine.id, (GpuId("GPU-0-1"),))
    assert target_of(view, LEASE, [mine.name]) == (mine.id, ())
    assert target_of(view, LEASE, [other.name]) == (other.id, ())
    both = replace(view, servers=(mine, replace(other, name="1")))
    with pytest.raises(UsageError) as found:
        target_of(both, LEASE, ["1"])
    assert found.value.what == "1 is a GPU of server-a, and a server of the pool"
    assert target_of(both, LEASE, [other.id]) == (other.id, ())
    assert target_of(both, LEASE, ["GPU-0-1"]) == (mine.id, (GpuId("GPU-0-1"),))


async def test_why_it_did_not_go_is_said_when_the_table_has_forgotten_it(
    autojump_clock: Clock,
) -> None:
    moving = replace(LEASE, state="moving", reason="to server-b, by ada")
    stays = replace(LEASE, not_moved="it has a sparse matrix")
    assert (await failure(NotNowError, moving, stays))[1] == "it has a sparse matrix"
    event = Event(Milliseconds(0), "not-moved", LEASE.name, "its old server did not answer")
    told = replace(HERE, events=(event,))

    class Later(Looks):
        async def view(self) -> PoolView:
            return replace(told, leases=(await super().view()).leases)

    with pytest.raises(NotNowError) as found:
        await follow(Later(moving, LEASE))
    assert found.value.why == "its old server did not answer"
