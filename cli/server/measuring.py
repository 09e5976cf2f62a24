"""What a server measures every ten seconds: the machine, its processes, the journal and the links.

The files are read on a thread, since a disk that hangs must hold up nothing; the figures are
written on the event loop.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import trio

from gpupool.consensus.storage.journal import JOURNAL
from gpupool.consensus.storage.store import DIRECTORY
from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Clock
from gpupool.pool.table_clock import ClockSample
from gpupool.pool.telemetry import ConsensusTelemetry
from gpupool.remoting.host.measuring.host_readings import HostReader
from gpupool.remoting.host.network_speed import interface_of
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.privileges.remote_keeper import RemoteKeeper
from gpupool.remoting.protocol.addresses import parse_address

EVERY_S = 10.0

Processes = Callable[[], Mapping[str, Iterable[int]]]
"""Returns the ids of the server's processes by name."""


def advertised_interface(address: str) -> str:
    """Return the interface that has an advertised address; empty when that is not known."""
    try:
        found = socket.getaddrinfo(parse_address(address).host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return interface_of(str(found[0][4][0]))


def journal_state(folder: Path) -> tuple[int, float | None]:
    """Return the journal's bytes, and the seconds since the newest snapshot was written."""
    consensus = folder / DIRECTORY
    try:
        size = (consensus / JOURNAL).stat().st_size
        written = [each.stat().st_mtime for each in consensus.glob("snapshot-*")]
    except OSError:
        return 0, None
    return size, max(0.0, time.time() - max(written)) if written else None


def link_figures(
    peers: Iterable[ServerId], sample: Callable[[ServerId], ClockSample | None], clock: Clock
) -> tuple[dict[ServerId, float], dict[ServerId, float]]:
    """Return the round trips to linked peers, and their clocks' time less ours; seconds."""
    zero_s = clock.wall_ms() / 1000 - clock.monotonic()
    round_trips: dict[ServerId, float] = {}
    offsets: dict[ServerId, float] = {}
    for peer in peers:
        found = sample(peer)
        if found is not None:
            round_trips[peer] = round(2 * found.error_s, 6)
            offsets[peer] = round(found.zero_ms / 1000 - zero_s, 4)
    return round_trips, offsets


def processes_of(
    host: HostSupervisor, keeper: RemoteKeeper | None, observer: trio.Process | None
) -> dict[str, list[int]]:
    """Return the ids of a server's processes by name; called by the server's own."""
    return {
        "server": [os.getpid()],
        "observer": [observer.pid] if observer is not None else [],
        "keeper": [keeper.pid] if keeper is not None and keeper.pid > 0 else [],
        "workers": [each.process.pid for each in host.worker_pool.workers.values()],
    }


async def measure(
    measures: Measures,
    *,
    folder: Path,
    address: str,
    processes: Processes,
    peers: Callable[[], Iterable[ServerId]],
    sample: Callable[[ServerId], ClockSample | None],
    clock: Clock,
) -> None:
    """Fill ``measures.host`` and ``measures.consensus`` until cancelled.

    Args:
        measures: to fill.
        folder: of the server's state.
        address: that the server advertises.
        processes: tells which processes are the server's.
        peers: tells the servers of the pool.
        sample: tells what was measured over the link with one.
        clock: of this machine.
    """
    interface = await trio.to_thread.run_sync(advertised_interface, address)
    reader = HostReader(folder, interface)
    while True:
        pids = {name: list(each) for name, each in processes().items()}
        measures.host = await trio.to_thread.run_sync(reader.read, pids, abandon_on_cancel=True)
        size, age_s = await trio.to_thread.run_sync(journal_state, folder, abandon_on_cancel=True)
        round_trips, offsets = link_figures(peers(), sample, clock)
        measures.consensus = ConsensusTelemetry(
            journal_bytes=size,
            snapshot_age_s=None if age_s is None else round(age_s, 1),
            link_rtt_s=round_trips,
            clock_offset_s=offsets,
        )
        await trio.sleep(EVERY_S)
