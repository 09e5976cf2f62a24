"""The judgement of measured ways between servers. Pure code.

A way is held against the slower of both interfaces. One thread encrypts at each end, and no
faster than several Gbit/s; so of a faster interface no more is expected than most ways of the
pool carry. Where no interface says how fast it is, most ways are all there is to compare with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gpupool.pool.model.ids import ServerId
from gpupool.pool.telemetry import Health
from gpupool.remoting.client.check_answers import WaySpeed

WARN_SHARE, FAIL_SHARE = 0.8, 0.2
ONE_THREAD_MBIT_S = 5_000
"""Encryption rate of a thread: 7 Gbit/s were measured where two ends shared two cores."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One way that carries less than it should."""

    way: WaySpeed
    status: Health  # WARN or FAIL
    expected_mbit_s: float
    of_interface: bool  # that is what it is held against, and not most ways


def judged(ways: Sequence[WaySpeed], interfaces: Mapping[ServerId, int]) -> list[Judged]:
    """Return the ways that are too slow, the slowest first.

    Args:
        ways: measured.
        interfaces: the speed of each server's interface in Mbit/s; 0 or absent: unknown.
    """
    if not ways:
        return []
    usual = median(way.bits_s for way in ways) / 1e6
    found: list[Judged] = []
    for way in sorted(ways, key=lambda each: each.bits_s):
        known = [speed for each in (way.source, way.target) if (speed := interfaces.get(each))]
        expected = min([*known, max(usual, ONE_THREAD_MBIT_S)]) if known else usual
        share = way.bits_s / 1e6 / expected
        if share < WARN_SHARE:
            status = Health.FAIL if share < FAIL_SHARE else Health.WARN
            found.append(Judged(way, status, expected, bool(known) and expected == min(known)))
    return found


def speed_text(mbit_s: float) -> str:
    """Return a speed as people say it."""
    return f"{mbit_s / 1000:.1f} Gbit/s" if mbit_s >= 1000 else f"{mbit_s:.0f} Mbit/s"
