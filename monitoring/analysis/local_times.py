"""Times as clocks on the wall showed them, as seconds since 1970.

A clock that is set back shows an hour twice, and one that is set forward skips an hour. Of two
moments that a text may mean, that is taken which is not before what it must come after.
"""

from datetime import UTC, datetime, timezone
from zoneinfo import ZoneInfo

from gpupool.monitoring.analysis.trace_form import Builder, TraceError


def zone_named(name: str) -> ZoneInfo | timezone:
    """Return a time zone by its name, such as Europe/Berlin.

    Raises:
        TraceError: when this machine does not know it.
    """
    if name in ("UTC", "Etc/UTC", ""):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise TraceError(
            f"the time zone {name[:40]!r} is not known here",
            hint="write it as Europe/Berlin; without the system's tzdata, only UTC is known",
        ) from error


class LocalTimes:
    """Reads times of one zone, and notes the odd ones in a trace's notes."""

    def __init__(self, zone: str, builder: Builder) -> None:
        self._zone = zone_named(zone)
        self._builder = builder

    def read(self, text: str, not_before: float | None = None) -> float:
        """Return the moment that a text such as ``2026-11-22 14:30:00`` means.

        Raises:
            ValueError: when it is no time.
        """
        text = text.strip()
        if text.isascii() and text.isdigit() and len(text) <= 11:
            return float(text)  # of a Slurm that was told to write %s
        moment = _parsed(text)
        if moment.tzinfo is not None:
            return moment.timestamp()
        return self._local(moment, not_before)

    def _local(self, moment: datetime, not_before: float | None) -> float:
        early = moment.replace(tzinfo=self._zone, fold=0)
        late = moment.replace(tzinfo=self._zone, fold=1)
        first, second = early.timestamp(), late.timestamp()
        if first == second:
            return first
        if first > second:  # a time that no clock showed
            self._builder.note("skipped")
            return first
        self._builder.note("twice")
        return second if not_before is not None and first < not_before else first


def _parsed(text: str) -> datetime:
    if not 10 <= len(text) <= 40:
        raise ValueError(f"{text[:40]!r} is no time")
    try:
        return datetime.fromisoformat(text.replace("/", "-"))
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no time as 2026-11-22 14:30:00") from None
