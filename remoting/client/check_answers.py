"""Asks a pool's servers to test themselves, or to measure their bandwidth, pair after pair.

A round has each server in one pair at most, so that no measurement takes another's share of an
interface; the rounds are those of a tournament, which has each pair once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.telemetry import Finding
from gpupool.remoting.client.all_servers import ask_all
from gpupool.remoting.client.server_connections import Connections, ServerConnection
from gpupool.remoting.protocol import messages as m

REACH_S = 3.0
CHECKS_TIMEOUT_S = 26.0


@dataclass(slots=True)
class CheckAnswer:
    """Findings of servers, and the reasons why others did not answer."""

    findings: dict[ServerId, tuple[Finding, ...]] = field(
        default_factory=dict[ServerId, tuple[Finding, ...]]
    )
    silent: dict[ServerId, str] = field(default_factory=dict[ServerId, str])


async def ask_checks(connections: Connections) -> CheckAnswer:
    """Ask all servers at once, and return their findings within half a minute."""

    async def ask(server: ServerId) -> tuple[Finding, ...]:
        connection = await connections.reach(server, REACH_S)
        return (await connection.call(m.RunChecks(), timeout_s=CHECKS_TIMEOUT_S)).findings

    return CheckAnswer(*await ask_all(connections, ask))


MEASURE_TIMEOUT_S = 30.0
ROUND_COUNT_MAX = 63
"""A round takes a second: all pairs of 64 servers, and a part of those of a larger pool."""


@dataclass(frozen=True, slots=True)
class WaySpeed:
    """The bandwidth from one server to another."""

    source: ServerId
    target: ServerId
    bits_s: int


@dataclass(slots=True)
class BandwidthAnswer:
    """The ways that were measured, both directions of each pair, and why others were not."""

    ways: list[WaySpeed] = field(default_factory=list[WaySpeed])
    failed: dict[tuple[ServerId, ServerId], str] = field(
        default_factory=dict[tuple[ServerId, ServerId], str]
    )
    silent: dict[ServerId, str] = field(default_factory=dict[ServerId, str])
    pairs_left: int = 0  # that were not tried, in a large pool


def rounds(servers: Sequence[ServerId]) -> list[list[tuple[ServerId, ServerId]]]:
    """Return rounds that have each pair once, and each server once a round at most.

    One server stands still and the others go round it by one place.
    """
    ring: list[ServerId | None] = list(servers)
    if len(ring) % 2:
        ring.append(None)  # who meets it has a rest
    found: list[list[tuple[ServerId, ServerId]]] = []
    for _ in range(len(ring) - 1):
        halves = zip(ring, reversed(ring), strict=True)
        found.append([(a, b) for a, b in list(halves)[: len(ring) // 2] if a and b])
        ring[1:] = [ring[-1], *ring[1:-1]]
    return found


async def ask_bandwidth(connections: Connections) -> BandwidthAnswer:
    """Measure the bandwidth of all pairs of servers that answer, a round of pairs at a time."""

    async def reach(server: ServerId) -> ServerConnection:
        return await connections.reach(server, REACH_S)

    reached, silent = await ask_all(connections, reach)
    answer = BandwidthAnswer(silent=silent)

    async def measure(pair: tuple[ServerId, ServerId]) -> None:
        source, target = pair
        call = m.MeasureBandwidth(target)
        try:
            said = await reached[source].call(call, timeout_s=MEASURE_TIMEOUT_S)
        except GpupoolError as error:
            answer.failed[pair] = str(error)
            return
        answer.ways.append(WaySpeed(source, target, said.there))
        answer.ways.append(WaySpeed(target, source, said.back))

    planned = rounds(sorted(reached))
    for pairs in planned[:ROUND_COUNT_MAX]:
        async with trio.open_nursery() as nursery:
            for pair in pairs:
                nursery.start_soon(measure, pair)
    answer.pairs_left = sum(map(len, planned[ROUND_COUNT_MAX:]))
    return answer
