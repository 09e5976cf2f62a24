"""A server's measurements every ten seconds, without a server."""

import os
from pathlib import Path

import pytest
import trio
from tests.benchmarks.scale import big_state, server_id
from trio.testing import MockClock, memory_stream_pair

from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import with_changes
from gpupool.pool.table_clock import ClockSample, TableClock
from gpupool.remoting.daemon.measuring import (
    EVERY_S,
    PUSH_EVERY_S,
    PUSH_SIZE,
    STALLS_S,
    JournalState,
    advertised_interface,
    journal_state,
    link_figures,
    link_states,
    measure,
    push_now_and_then,
)
from gpupool.remoting.transport.link_clock import LinkClock
from gpupool.remoting.transport.peer_link import PeerLink

NEAR, FAR = ServerId("near"), ServerId("far")


class FixedClock:
    """A wall clock that showed 1000 s when the monotonic one showed 0."""

    def monotonic(self) -> float:
        return 50.0

    def wall_ms(self) -> int:
        return 1_050_000


class FixedLinks:
    """One peer is linked, and takes nothing that is pushed; another one is of another version."""

    def __init__(self) -> None:
        stream, _other = memory_stream_pair()
        self._link = PeerLink(NEAR, stream, LinkClock(FixedClock()), greeted=True)

    def clock_sample(self, peer: ServerId) -> ClockSample | None:
        return ClockSample(1_000_000, 1.0, 0.5)

    def link(self, peer: ServerId) -> PeerLink | None:
        return self._link if peer == NEAR else None

    def other_versions(self) -> dict[ServerId, int]:
        return {FAR: 4}


async def test_a_push_that_does_not_arrive_stalls(autojump_clock: MockClock) -> None:
    links = FixedLinks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(push_now_and_then, lambda: (NEAR, FAR), links)
        await trio.sleep(PUSH_EVERY_S + STALLS_S - 1)
        link = links.link(NEAR)
        assert link is not None
        assert link.queue_size > PUSH_SIZE
        assert link_states((NEAR, FAR), links, trio.current_time()) == ({}, {})
        await trio.sleep(2)
        assert link_states((NEAR, FAR), links, trio.current_time()) == ({}, {NEAR: 6.0})
        assert not link.push(PUSH_SIZE)  # one is under way
        assert link.answered()
        assert link_states((NEAR, FAR), links, trio.current_time()) == ({}, {})
        assert not link.answered()
        nursery.cancel_scope.cancel()


def test_round_trip_and_offset_of_each_linked_peer() -> None:
    samples = {FAR: ClockSample(zero_ms=1_002_500, at=49.0, error_s=0.004)}
    found = link_figures((NEAR, FAR), samples.get, FixedClock())
    assert found == ({FAR: 0.008}, {FAR: 2.5})


def test_journal_and_the_age_of_the_newest_snapshot(tmp_path: Path) -> None:
    assert journal_state(tmp_path) == JournalState(0)
    folder = tmp_path / "consensus"
    folder.mkdir()
    (folder / "journal").write_bytes(bytes(700))
    assert journal_state(tmp_path) == JournalState(700)
    for number, age_s in enumerate((500, 100, 300)):
        path = folder / f"snapshot-{number:020d}"
        path.write_bytes(bytes(number))
        then = path.stat().st_mtime - age_s
        os.utime(path, (then, then))
    found = journal_state(tmp_path)
    assert (found.size, found.snapshot_size) == (700, 1)
    assert found.snapshot_age_s == pytest.approx(100, abs=20)


def test_the_interface_of_an_address() -> None:
    assert advertised_interface("127.0.0.1:7470") == "lo"
    assert advertised_interface("192.0.2.1:7470") == ""  # for documentation only


async def test_the_figures_are_filled_again_and_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    measures, asked = Measures(), list[int]()
    table = with_changes(big_state(1), now=Milliseconds(1_056_500))

    def processes() -> dict[str, list[int]]:
        asked.append(1)
        return {"server": [os.getpid()]}

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await measure(
                measures,
                folder=tmp_path,
                address="127.0.0.1:7470",
                processes=processes,
                peers=lambda: (NEAR,),
                links=FixedLinks(),
                table_clock=TableClock(lambda: table, self_id=server_id(0), clock=FixedClock()),
                away={NEAR: 2},
            )

        nursery.start_soon(run)
        autojump_clock.autojump_threshold = 0.05  # threads take real time
        await trio.sleep(2.5 * EVERY_S)
        nursery.cancel_scope.cancel()
    assert len(asked) == 3
    assert measures.host is not None
    assert measures.host.cpu_s["server"] > 0
    assert measures.host.cpu_busy is None or 0 <= measures.host.cpu_busy <= 1
    assert measures.consensus is not None
    assert measures.consensus.link_rtt_s == {NEAR: 1.0}
    assert measures.consensus.clock_offset_s == {NEAR: 0.0}
    assert measures.consensus.link_versions == {FAR: 4}
    assert measures.consensus.link_away == {NEAR: 2}
    assert measures.consensus.table_ahead_s == 6.5
