"""A server's samples for its exporter, once a second."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing
from tests.monitoring.samples import (
    GIB,
    H200,
    ME,
    START_MS,
    gpu_id,
    health,
    measured,
    sample,
    table,
)
from tests.monitoring.test_exporter import LOG

from gpupool.monitoring import exporter_link
from gpupool.monitoring.exporter_link import ExporterLink
from gpupool.monitoring.frames import EXPORTER
from gpupool.monitoring.history.time_slots import SlotMaker
from gpupool.monitoring.metric_totals import Totals
from gpupool.monitoring.sample import Sample, Sampler
from gpupool.pool.model.ids import Milliseconds, RequestId
from gpupool.pool.model.state import PartStatus, PoolState, Request, ServerStatus, Waiting
from gpupool.pool.model.suspension import Suspension, SuspensionState
from gpupool.pool.model.tables import WaitingTable


def test_it_has_the_books_of_this_servers_gpus_and_leases() -> None:
    found = sample(table(gpus=2, leases=3), START_MS)
    assert [
        (gpu.index, gpu.granted, gpu.capacity, gpu.leases, gpu.state) for gpu in found.gpus
    ] == [
        (0, 10 * GIB, H200, 1, "mix"),
        (1, 20 * GIB, H200, 2, "mix"),
    ]
    assert [(each.lease, each.user, each.granted) for each in found.leases] == [
        (2, "bob", {gpu_id(1): 10 * GIB}),
        (4, "ada", {gpu_id(0): 10 * GIB}),
        (6, "bob", {gpu_id(1): 10 * GIB}),
    ]
    assert (found.name, found.state, found.raft.leader) == ("gpu-a", "mix", "gpu-a")


def test_a_part_that_is_freed_is_no_lease_any_more() -> None:
    state = table(gpus=1, leases=2)
    first = state.leases[2]  # type: ignore[index]
    leases = state.leases.set(first.id, replace(first, parts={ME: PartStatus.FREED}))
    found = sample(replace(state, leases=leases), START_MS)
    assert [each.lease for each in found.leases] == [4]
    assert found.gpus[0].leases == 1


def test_a_suspended_lease_holds_nothing() -> None:
    state = table(gpus=1, leases=2)
    first = state.leases[2]  # type: ignore[index]
    why = Suspension(SuspensionState.SUSPENDED, 1, "ada", "", Milliseconds(START_MS))
    state = replace(state, leases=state.leases.set(first.id, replace(first, suspension=why)))
    slots, totals = SlotMaker(), Totals()
    samples = [sample(state, START_MS + 1000 * second) for second in range(12)]
    assert [(each.granted, each.suspended) for each in samples[0].leases] == [
        ({}, True),
        ({gpu_id(0): 10 * GIB}, False),
    ]
    made = [slot for each in samples if (slot := slots.add(each)) is not None]
    for each in samples:
        totals.add(each)
    assert [lease for lease, _ in made[0].leases] == [4], "what is known of the other one"
    states = {labels[-1]: n for labels, n in totals.read(samples[-1])["leases"].items()}
    assert states == {"suspended": 1, "held": 1}
    assert list(totals.read(samples[-1])["granted_gpus"].values()) == [10 * GIB / H200]


def test_the_pool_is_summed_while_in_touch_with_a_majority() -> None:
    request = Request(RequestId(b"r" * 16), 1, fraction=0.5)
    waiting = Waiting(request, "ada", 0, Milliseconds(START_MS - 5000), Milliseconds(START_MS), "")
    state = replace(table(gpus=2, leases=1), waiting=WaitingTable([(request.id, waiting)]))
    found = sample(state, START_MS).pool
    assert found is not None
    assert (found.servers, found.gpus) == ({"mix": 1}, {"idle": 1, "mix": 1})
    assert (found.capacity, found.granted, found.oldest_wait_ms) == (2 * H200, 10 * GIB, 5000)
    assert sum(found.waiting.values()) == 1
    alone = Sampler().sample(state, measured(state, START_MS), health(1e9), START_MS)
    assert (alone.pool, alone.raft.quorum) == (None, False)


def test_a_large_pool_is_summed_less_often() -> None:
    state = table(gpus=1, leases=0)
    (one,) = state.servers.values()
    many = {f"{n:012x}": replace(one, id=f"{n:012x}") for n in range(300)}
    large = replace(state, servers=state.servers.__class__(many))  # type: ignore[arg-type]
    sampler, ages = Sampler(), list[int]()
    for second in range(6):
        now = START_MS + 1000 * second
        found = sampler.sample(large, measured(state, now), health(), now)
        assert found.pool is not None
        ages.append(now - found.pool.at)
    assert ages == [0, 1000, 2000, 0, 1000, 2000]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"status": ServerStatus.UNREACHABLE}, "down"),
        ({"status": ServerStatus.JOINED}, "new"),
        ({"drain_reason": "repairs"}, "drain"),
    ],
)
def test_a_gpu_has_the_state_of_its_server(change: dict[str, object], word: str) -> None:
    state = table(gpus=1, leases=1)
    server = replace(state.servers[ME], **change)  # type: ignore[arg-type]
    found = sample(replace(state, servers=state.servers.set(ME, server)), START_MS)
    assert [gpu.state for gpu in found.gpus] == [word]


def test_it_goes_through_a_frame_unchanged() -> None:
    reader, sent = EXPORTER.reader(), sample(table(gpus=8, leases=50), START_MS + 1000)
    reader.feed(EXPORTER.encode(sent))
    assert [EXPORTER.decode(Sample, frame) for frame in reader.frames()] == [sent]


def test_two_minutes_of_samples_wait_for_an_exporter_that_is_away(tmp_path: Path) -> None:
    link = ExporterLink(tmp_path, PoolState, LOG)
    got: list[Sample] = []

    async def observe(stream: trio.SocketStream) -> None:
        reader = EXPORTER.reader()
        while len(got) < 121:
            reader.feed(await stream.receive_some())
            got.extend(EXPORTER.decode(Sample, frame) for frame in reader.frames())

    async def main() -> None:
        ours, theirs = trio.socket.socketpair()
        for second in range(150):
            link.add_sample(sample(table(), START_MS + 1000 * second))
        with ours, theirs:
            await talk(trio.SocketStream(ours), trio.SocketStream(theirs))

    async def talk(ours: trio.SocketStream, theirs: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.pump_samples, ours, trio.Lock())
            nursery.start_soon(observe, theirs)
            await trio.testing.wait_all_tasks_blocked()
            link.add_sample(sample(table(), START_MS + 150_000))
            while len(got) < 121:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert [(each.at - START_MS) // 1000 for each in got] == list(range(30, 151))
    assert (link.dropped, got[-1].dropped, got[0].dropped) == (30, 30, 0)
    assert exporter_link.SAMPLES_MAX == 120


def test_a_sample_that_cannot_be_taken_ends_nothing(tmp_path: Path) -> None:
    link, tries = ExporterLink(tmp_path, lambda: table(), LOG), list[int]()

    def broken() -> int:
        tries.append(1)
        raise ValueError("a mistake")

    async def main() -> None:
        with trio.move_on_after(2.5):
            await link.send_samples(lambda: measured(table(), START_MS), health, broken)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(tries) == 3
