"""Sums of the records of ended leases: GPU-hours, GB-hours and waiting, exactly.

Everything here is arithmetic on integers: shares of GPUs in ``policy.UNIT``, bytes, milliseconds of
the table's time. A range cuts a lease at its ends, so that the sums of two ranges that meet are the
sum of both together. Nothing is rounded before it is shown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpupool.pool.model.ids import LeaseId, Milliseconds, lease_name
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.model.units import DAY_MS, HOUR_MS

FAR = 2**62
LATEST_MS = 250_000_000_000_000
"""In the year 9892; Python's calendar ends soon after."""


@dataclass(frozen=True, slots=True)
class Range:
    """From ``since`` to before ``until``, in the table's time."""

    since: int = 0
    until: int = FAR

    def covers(self, record: LeaseRecord) -> bool:
        """Return whether a part was granted for a moment of the range."""
        return record.granted_at < self.until and record.freed_at > self.since

    def ms_of(self, record: LeaseRecord) -> int:
        """Return for how long a part was granted and not suspended within the range."""
        since, until = max(record.granted_at, self.since), min(record.freed_at, self.until)
        away = (min(until, end) - max(since, begin) for begin, end in record.away)
        return max(0, until - since) - sum(each for each in away if each > 0)

    def cut(self, since: int, until: int) -> "Range":
        """Return the intersection with another range."""
        return Range(max(self.since, since), min(self.until, until))


@dataclass(frozen=True, slots=True)
class Sum:
    """Sums over parts of leases."""

    leases: int = 0
    unit_ms: int = 0  # shares of GPUs times milliseconds
    byte_ms: int = 0
    wait_ms: int = 0  # of all these leases together
    wait_max_ms: int = 0

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that others could not have."""
        return self.unit_ms / UNIT / HOUR_MS

    @property
    def gib_hours(self) -> float:
        """Return hours times GiB of GPU memory."""
        return self.byte_ms / 2**30 / HOUR_MS

    def __add__(self, other: "Sum") -> "Sum":
        """Return the sum of two, which have no lease in common."""
        return Sum(
            self.leases + other.leases,
            self.unit_ms + other.unit_ms,
            self.byte_ms + other.byte_ms,
            self.wait_ms + other.wait_ms,
            max(self.wait_max_ms, other.wait_max_ms),
        )


Key = Callable[[LeaseRecord], str]
KEYS: dict[str, Key] = {
    "user": lambda record: record.user,
    "class": lambda record: record.user_class,
    "department": lambda record: record.department,
    "client": lambda record: record.client,
    "lease": lambda record: lease_name(record.lease),
    "server": lambda record: record.server_name or record.server,
    "model": lambda record: ", ".join(sorted({gpu.model for gpu in record.gpus})),
    "program": lambda record: record.program,
    "day": lambda record: day_of(record.granted_at),
}
"""Grouping keys of sums. Parts with GPUs of several models, and of several days, are cut first."""


def day_of(at: int) -> str:
    """Return the day of an instant, in UTC; "?" for one that no calendar has."""
    if not 0 <= at < LATEST_MS:
        return "?"
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d")


def sums(
    records: Iterable[LeaseRecord],
    by: str,
    within: Range,
    before: Iterable[LeaseRecord] = (),
) -> tuple[dict[str, Sum], Sum]:
    """Return the sums of the records by one of ``KEYS``, and of all together.

    The records ``before`` are summed elsewhere. A lease that has a part among them, by the same
    key, counts as a lease there.
    """
    key, cuts = KEYS[by], by in ("model", "day")
    leases: dict[str, set[LeaseId]] = {}
    every: set[LeaseId] = set()
    found: dict[str, list[int]] = {}
    whole = [0] * 5
    for record in before:
        if within.covers(record):
            every.add(record.lease)
            for part in cut(record, by, within) if cuts else (record,):
                leases.setdefault(key(part), set()).add(record.lease)
    for record in records:
        if not within.covers(record):
            continue
        for part in cut(record, by, within) if cuts else (record,):
            name = key(part)
            row = found.get(name)
            if row is None:
                row = found[name] = [0] * 5
                leases.setdefault(name, set())
            _add(row, part, within, first=part.lease not in leases[name])
            leases[name].add(part.lease)
        _add(whole, record, within, first=record.lease not in every)
        every.add(record.lease)
    return {name: Sum(*row) for name, row in found.items()}, Sum(*whole)


def total(records: Iterable[LeaseRecord], within: Range) -> Sum:
    """Return the sum of all records."""
    return sums(records, "user", within)[1]


def largest_first(rows: Mapping[str, Sum]) -> dict[str, Sum]:
    """Return the rows with the most GPU-hours first."""
    return dict(sorted(rows.items(), key=lambda item: (-item[1].unit_ms, item[0])))


def _add(row: list[int], record: LeaseRecord, within: Range, *, first: bool) -> None:
    ms = within.ms_of(record)
    for gpu in record.gpus:
        row[1] += ms * gpu.units
        row[2] += ms * gpu.memory
    if first:
        waited = max(0, record.granted_at - record.requested_at)
        row[0] += 1
        row[3] += waited
        row[4] = max(row[4], waited)


def cut(record: LeaseRecord, by: str, within: Range) -> Iterator[LeaseRecord]:
    """Return a part as pieces, each of which has one key."""
    if by == "model":
        for model in dict.fromkeys(gpu.model for gpu in record.gpus):
            yield replace(record, gpus=tuple(gpu for gpu in record.gpus if gpu.model == model))
    elif by == "day":
        start, end = max(record.granted_at, within.since), min(record.freed_at, within.until)
        while start < end:
            midnight = min(end, (start // DAY_MS + 1) * DAY_MS)
            waited = max(0, record.granted_at - record.requested_at)
            yield replace(
                record,
                requested_at=Milliseconds(start - (waited if start == record.granted_at else 0)),
                granted_at=Milliseconds(start),
                freed_at=Milliseconds(midnight),
            )
            start = midnight
    else:
        yield record


def gaps_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs of numbers from 1 on that are missing below the largest of ``numbers``."""
    found: list[tuple[int, int]] = []
    expected = 1
    for number in sorted(numbers):
        if number > expected:
            found.append((expected, number - 1))
        expected = max(expected, number + 1)
    return tuple(found)
