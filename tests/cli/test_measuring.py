"""What a server measures every ten seconds, without a server."""

import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gpupool.cli.server.measuring import (
    EVERY_S,
    advertised_interface,
    journal_state,
    link_figures,
    measure,
)
from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import ServerId
from gpupool.pool.table_clock import ClockSample

NEAR, FAR = ServerId("near"), ServerId("far")


class FixedClock:
    """A wall clock that showed 1000 s when the monotonic one showed 0."""

    def monotonic(self) -> float:
        return 50.0

    def wall_ms(self) -> int:
        return 1_050_000


def test_round_trip_and_offset_of_each_linked_peer() -> None:
    samples = {FAR: ClockSample(zero_ms=1_002_500, at=49.0, error_s=0.004)}
    found = link_figures((NEAR, FAR), samples.get, FixedClock())
    assert found == ({FAR: 0.008}, {FAR: 2.5})


def test_journal_and_the_age_of_the_newest_snapshot(tmp_path: Path) -> None:
    assert journal_state(tmp_path) == (0, None)
    folder = tmp_path / "consensus"
    folder.mkdir()
    (folder / "journal").write_bytes(bytes(700))
    assert journal_state(tmp_path) == (700, None)
    for number, age_s in enumerate((500, 100, 300)):
        path = folder / f"snapshot-{number:020d}"
        path.touch()
        then = path.stat().st_mtime - age_s
        os.utime(path, (then, then))
    size, found_s = journal_state(tmp_path)
    assert size == 700
    assert found_s == pytest.approx(100, abs=20)


def test_the_interface_of_an_address() -> None:
    assert advertised_interface("127.0.0.1:7470") == "lo"
    assert advertised_interface("192.0.2.1:7470") == ""  # for documentation only


async def test_the_figures_are_filled_again_and_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    measures, asked = Measures(), list[int]()

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
                sample=lambda _peer: ClockSample(1_000_000, 1.0, 0.5),
                clock=FixedClock(),
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
