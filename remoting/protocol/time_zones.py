"""Time zones of this machine's database, as the tables that a policy carries."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from gpupool.pool.model.policy import Zone

YEARS = 12
"""How far ahead a policy knows the offsets of its zones; the last one holds ever after."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")
STEP = timedelta(hours=18)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def zone_of(name: str, now_ms: int) -> Zone | None:
    """Return the offsets of a zone from a year ago on, or None when there is no such zone."""
    return _zone(name, datetime.fromtimestamp(now_ms / 1000, UTC).year - 1)


@lru_cache(maxsize=64)
def _zone(name: str, first_year: int) -> Zone | None:
    if name.upper() == "UTC":
        return Zone(name, (), (0,))
    if len(name) > 64 or not NAME.fullmatch(name):
        return None
    try:
        info = ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None
    at = datetime(first_year, 1, 1, tzinfo=UTC)
    end = datetime(first_year + 1 + YEARS, 1, 1, tzinfo=UTC)
    offset = _offset_s(info, at)
    changes: list[int] = []
    offsets = [offset]
    while at < end:
        after = at + STEP
        if _offset_s(info, after) != offset:
            # Between two instants with different offsets, the change is found by halving.
            low, high = _seconds(at), _seconds(after)
            while high - low > 1:
                middle = (low + high) // 2
                moment = EPOCH + timedelta(seconds=middle)
                low, high = (middle, high) if _offset_s(info, moment) == offset else (low, middle)
            offset = _offset_s(info, after)
            changes.append(high * 1000)
            offsets.append(offset)
        at = after
    return Zone(name, tuple(changes), tuple(offsets))


def _offset_s(info: ZoneInfo, at: datetime) -> int:
    offset = at.astimezone(info).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _seconds(at: datetime) -> int:
    return int((at - EPOCH).total_seconds())
