"""A question about the records of ended leases, and a page of the answer.

Servers ask their own exporter with them, and clients ask servers. Pages go by the numbers of the
records, so that a client can go on with another server in the middle.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model.bounds import (
    AskedLease,
    AskedTime,
    Digits,
    Int,
    Line,
    Number,
    ServerKey,
    Text,
)
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.telemetry import Finding

FAR = Milliseconds(2**62)
PAGE_COUNT_MAX = 1000
"""Records of one page; 0.3 MB of usual ones."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A query for records of parts granted for a moment from ``since`` to ``until``."""

    since: AskedTime = Milliseconds(0)
    until: AskedTime = FAR
    after: Number = 0  # records with larger numbers only
    through: Number = 0  # records up to this number only; 0: all
    count: Number = PAGE_COUNT_MAX  # 0: only what is known of all
    lease: AskedLease = LeaseId(0)  # 0: any
    by: Text = ""  # sums by this key instead of records; one of ``KEYS``
    user: Text = ""  # of others only sums are told; empty: everything is told


KEYS = ("user", "class", "department", "client", "lease", "server", "model", "program", "day")
"""Keys by which records can be summed."""


@dataclass(frozen=True, slots=True)
class GroupSum:
    """The sums of one key's leases within the asked range. Exact, so too large for an integer."""

    key: Text
    leases: Int = 0
    unit_ms: Digits = "0"  # shares of GPUs, of ``policy.UNIT``, times milliseconds; decimal digits
    byte_ms: Digits = "0"
    wait_ms: Int = 0
    wait_max_ms: Int = 0

    def plus(self, other: "GroupSum") -> "GroupSum":
        """Return the sum of two of the same key.

        Raises:
            ValueError: when a server sent what are no digits.
        """
        return GroupSum(
            self.key,
            self.leases + other.leases,
            str(int(self.unit_ms) + int(other.unit_ms)),
            str(int(self.byte_ms) + int(other.byte_ms)),
            self.wait_ms + other.wait_ms,
            max(self.wait_max_ms, other.wait_max_ms),
        )


@dataclass(frozen=True, slots=True)
class ClassSum:
    """The sums of other users' leases within the asked range, by class."""

    user_class: Text
    parts: Int
    milli_gpu_ms: Int  # thousandths of GPUs times milliseconds
    gib_ms: Int


@dataclass(frozen=True, slots=True)
class RecordPage:
    """One page of an answer, by number."""

    records: tuple[LeaseRecord, ...] = ()
    groups: tuple[GroupSum, ...] = ()
    whole: GroupSum = GroupSum("")  # of all groups: a lease may be in several
    others: tuple[ClassSum, ...] = ()
    upto: Int = 0  # the number up to which this page has everything
    more: bool = False
    newest: Int = 0  # number of the newest record that this server has
    missing: tuple[tuple[Int, ...], ...] = ()  # runs of numbers that it lacks: from and to
    problem: Line = ""  # why it may lack some


@dataclass(frozen=True, slots=True)
class CheckQuery:
    """Ask a server to test its links and GPUs now."""


@dataclass(frozen=True, slots=True)
class CheckPage:
    """The findings of the checks; a good result has a line as well."""

    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class BandwidthQuery:
    """Ask a server to measure its bandwidth to another server."""

    peer: ServerKey


@dataclass(frozen=True, slots=True)
class BandwidthPage:
    """The bandwidth of the path in both directions, in bits per second."""

    there: Int
    back: Int


ServerTest = CheckQuery | BandwidthQuery
"""Tests that the server itself runs for its answer; the exporter has no part in them."""

ExporterQuery = RecordQuery | HistoryQuery | ServerTest
ExporterPage = RecordPage | HistoryPage | CheckPage | BandwidthPage
AskRecords = Callable[[ExporterQuery], Awaitable[ExporterPage]]
"""Asks the exporter of a server; raises ``GpupoolError`` when that does not answer."""


async def records_of_nobody(query: ExporterQuery) -> ExporterPage:
    """Answer for a server that has no exporter."""
    if isinstance(query, HistoryQuery):
        return HistoryPage(problem="it keeps no history")
    return RecordPage(problem="it keeps no accounts")


Runs = tuple[tuple[int, ...], ...]


def common(one: Runs, other: Runs) -> Runs:
    """Return the numbers that are in runs of both, as runs. Runs are in order."""
    found: list[tuple[int, ...]] = []
    for first, last in one:
        for begin, end in other:
            low, high = max(first, begin), min(last, end)
            if low <= high:
                found.append((low, high))
    return tuple(found)


def samples_of(query: RecordQuery, now: Milliseconds) -> HistoryQuery:
    """Return the question about samples of the same leases and time, up to the pool's ``now``."""
    return HistoryQuery(
        "sums",
        query.by or "server",
        str(query.lease) if query.lease else "",
        since=query.since,
        until=min(query.until, Milliseconds(now + 1)),
    )
