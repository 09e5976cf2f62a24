"""Measurements of a server every ten seconds: the machine, its processes, the journal and links.

The files are read on a thread, since a disk that hangs must hold up nothing; the figures are
written on the event loop.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from gpupool.consensus.storage.journal import JOURNAL
from gpupool.consensus.storage.store import DIRECTORY
from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Clock
from gpupool.pool.table_clock import ClockSample, TableClock
from gpupool.pool.telemetry import ConsensusTelemetry, HostTelemetry
from gpupool.remoting.host.measuring.host_readings import HostReader
from gpupool.remoting.host.measuring.network_speed import interface_of
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.privileges.remote_helper import RemoteHelper
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.transport.peer_link import LinkPath, PeerLink

EVERY_S = 10.0
PUSH_EVERY_S, PUSH_SIZE = 600.0, 64 * 1024
STALLS_S = 5.0
"""A push that has not arrived for so long stalls."""

Processes = Callable[[], Mapping[str, Iterable[int]]]
"""Returns the ids of the server's processes by name."""


def advertised_interface(address: str) -> str:
    """Return the interface that has an advertised address; empty when that is not known."""
    try:
        found = socket.getaddrinfo(parse_address(address).host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return interface_of(str(found[0][4][0]))


@dataclass(frozen=True, slots=True)
class JournalState:
    """Sizes of the journal and snapshot of consensus; None: there is no snapshot."""

    size: int  # of the journal
    snapshot_age_s: float | None = None  # of the newest
    snapshot_size: int | None = None


def journal_state(folder: Path) -> JournalState:
    """Return the sizes of the journal and its newest snapshot, and that one's age."""
    consensus = folder / DIRECTORY
    try:
        size = (consensus / JOURNAL).stat().st_size
        snapshots = [each.stat() for each in consensus.glob("snapshot-*")]
    except OSError:
        return JournalState(0)
    if not snapshots:
        return JournalState(size)
    newest = max(snapshots, key=lambda each: each.st_mtime)
    return JournalState(size, max(0.0, time.time() - newest.st_mtime), newest.st_size)


class Links(Protocol):
    """The measured properties of the links to other servers."""

    def clock_sample(self, peer: ServerId) -> ClockSample | None:
        """Return the latest measurement of a peer's clock."""
        ...

    def link(self, peer: ServerId) -> PeerLink | None:
        """Return the link with a peer that is up."""
        ...

    def other_versions(self) -> Mapping[ServerId, int]:
        """Return the peers that speak another version of the links, with theirs."""
        ...


def link_states(
    peers: Iterable[ServerId], links: Links, now: float
) -> tuple[dict[ServerId, LinkPath], dict[ServerId, float]]:
    """Return the kernel's figures of each link, and the seconds of each overdue push."""
    paths: dict[ServerId, LinkPath] = {}
    stalls: dict[ServerId, float] = {}
    for peer in peers:
        if (link := links.link(peer)) is None:
            continue
        if (path := link.path()) is not None:
            paths[peer] = path
        if link.pushed_at is not None and now - link.pushed_at >= STALLS_S:
            stalls[peer] = round(now - link.pushed_at, 1)
    return paths, stalls


async def push_now_and_then(peers: Callable[[], Iterable[ServerId]], links: Links) -> None:
    """Send 64 KiB to each peer every ten minutes: a path may drop large packets."""
    while True:
        await trio.sleep(PUSH_EVERY_S)
        for peer in list(peers()):
            if (link := links.link(peer)) is not None:
                link.push(PUSH_SIZE)


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
    host: HostSupervisor, helper: RemoteHelper | None, exporter: trio.Process | None
) -> dict[str, list[int]]:
    """Return the ids of a server's processes by name; called by the server's own."""
    return {
        "server": [os.getpid()],
        "observer": [exporter.pid] if exporter is not None else [],
        "keeper": [helper.pid] if helper is not None and helper.pid > 0 else [],
        "workers": [each.process.pid for each in host.worker_pool.workers.values()],
    }


def _read(
    reader: HostReader, pids: Mapping[str, Iterable[int]], folder: Path
) -> tuple[HostTelemetry, JournalState]:
    return reader.read(pids), journal_state(folder)


async def measure(
    measures: Measures,
    *,
    folder: Path,
    address: str,
    processes: Processes,
    peers: Callable[[], Iterable[ServerId]],
    links: Links,
    table_clock: TableClock,
    away: Mapping[ServerId, int],
) -> None:
    """Fill ``measures.host`` and ``measures.consensus`` until cancelled.

    Args:
        measures: to fill.
        folder: of the server's state.
        address: that the server advertises.
        processes: tells which processes are the server's.
        peers: tells the servers of the pool.
        links: to them.
        table_clock: tells this machine's time, and how far the table's is ahead.
        away: the linked servers that are not where they say, as ``Finder`` has them.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(push_now_and_then, peers, links)
        interface = await trio.to_thread.run_sync(advertised_interface, address)
        reader = HostReader(folder, interface)
        while True:
            pids = {name: list(each) for name, each in processes().items()}
            read = partial(_read, reader, pids, folder)
            measures.host, journal = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
            age_s = journal.snapshot_age_s
            round_trips, offsets = link_figures(peers(), links.clock_sample, table_clock.clock)
            paths, stalls = link_states(peers(), links, trio.current_time())
            measures.consensus = ConsensusTelemetry(
                journal_bytes=journal.size,
                snapshot_age_s=None if age_s is None else round(age_s, 1),
                link_rtt_s=round_trips,
                clock_offset_s=offsets,
                table_ahead_s=round(table_clock.reading().table_ahead_s, 1),
                snapshot_bytes=journal.snapshot_size,
                link_mtu={peer: path.mtu for peer, path in paths.items()},
                link_sent={peer: path.sent for peer, path in paths.items()},
                link_resent={peer: path.resent for peer, path in paths.items()},
                link_stalls_s=stalls,
                link_versions=dict(links.other_versions()),
                link_away=dict(away),
            )
            await trio.sleep(EVERY_S)
