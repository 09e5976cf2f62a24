"""When a policy's spans hold: the wall time of zones against table time, by its own tables."""

from bisect import bisect_right
from typing import NamedTuple

from gpupool.pool.model.policy import Span, Zone
from gpupool.pool.model.units import DAY_MS

FOREVER = 2**62
"""Later than anything."""


class Phase(NamedTuple):
    """Whether a span holds now, since when, and until when that stays so; ms since the epoch."""

    holds: bool
    since: int
    until: int


UTC = Zone("UTC", (), (0,))


def offset_ms(zone: Zone, utc_ms: int) -> int:
    """Return how far local time is ahead of UTC then."""
    return zone.offsets[bisect_right(zone.changes, utc_ms)] * 1000


def to_utc(zone: Zone, local_ms: int) -> int:
    """Return the instant of a local time: of two, the first; of none, when clocks skip it."""
    first = bisect_right(zone.changes, local_ms - 2 * DAY_MS)
    last = bisect_right(zone.changes, local_ms + 2 * DAY_MS)
    for number in range(first, last + 1):
        utc_ms = local_ms - zone.offsets[number] * 1000
        begins = zone.changes[number - 1] if number else -FOREVER
        ends = zone.changes[number] if number < len(zone.changes) else FOREVER
        if utc_ms < begins:
            return begins
        if utc_ms < ends:
            return utc_ms
    raise AssertionError("the last offset holds for ever")


def phase(span: Span, zone: Zone, now: int) -> Phase:
    """Return whether ``span`` holds at ``now``, and the interval in which that does not change."""
    if span.once:
        start, end = to_utc(zone, span.start), to_utc(zone, span.end)
        if now < start:
            return Phase(False, 0, start)
        return Phase(True, start, end) if now < end else Phase(False, end, FOREVER)
    length = span.end - span.start if span.end > span.start else span.end - span.start + DAY_MS
    today = (now + offset_ms(zone, now)) // DAY_MS
    # A span that began yesterday may last into today; one that begins once a week did so 7 days
    # ago at the latest, and will do so again within 7 days. Clocks may skip that time: then all
    # that is known is how far this has looked.
    since, until = to_utc(zone, (today - 7) * DAY_MS), to_utc(zone, (today + 9) * DAY_MS)
    merged: list[list[int]] = []
    for day in range(today - 8, today + 9):
        if span.days and (day + 3) % 7 not in span.days:  # 1970-01-01 was a Thursday
            continue
        start = to_utc(zone, day * DAY_MS + span.start)
        end = to_utc(zone, day * DAY_MS + span.start + length)
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif end > start:
            merged.append([start, end])
    for start, end in merged:
        if start <= now < end:
            return Phase(True, start, end)
        if end <= now:
            since = end
        else:
            until = start
            break
    return Phase(False, since, until)
