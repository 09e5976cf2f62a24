"""A query for the measurements of servers, and a part of the answer.

Servers ask their own exporter with them, and clients ask servers; each has what it measured itself.
A point has a sum and a count, never a mean, so that the points of several servers can be added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpupool.pool.model.bounds import AskedTime, Int, Line, Name, Number, Text, Time
from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.telemetry import Health

POINTS_MAX = 2000
"""Of one series."""

EVERYBODY = "*"
"""The name in a query for sums by class over all leases, for any user that asks."""


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A query for figures of moments from ``since`` to before ``until``, the pool's time."""

    #: pool, server, gpu, lease, user, client, sums, health, capacity, storage; or of one GPU
    #: gpu-leases, the memory that they use, and gpu-marks, what happened to it.
    of: Text
    metric: Text = (
        ""  # of sums: by what, a key of ``record_query.KEYS``; of health: a check, or any
    )
    #: A GPU's id, a lease's number, the name of a user or client; of sums: a lease's number,
    #: ``EVERYBODY``, or empty; of health: a check's subject, or empty for any.
    name: Text = ""
    since: AskedTime = Milliseconds(0)
    until: AskedTime = Milliseconds(0)
    after: Number = 0  # points of earlier parts
    points_max: Number = POINTS_MAX
    user: Text = ""  # whose leases alone are told; empty: everybody's


@dataclass(frozen=True, slots=True)
class HistorySeries:
    """The points of one GPU, or of a whole query together, by time.

    A point is the Unix second at which it begins, a sum, a count, and a maximum, or -1 for none.
    """

    key: Text  # a GPU's id, or empty
    label: Text
    points: tuple[tuple[Int, ...], ...]


@dataclass(frozen=True, slots=True)
class SampleSum:
    """The sums of samples of all leases with one key on one server."""

    key: Text
    slots: Int  # of 10 s, of each GPU of a lease, of which it is known whether anything was done
    idle: Int  # of these, those in which nothing was
    held: Int  # millionths of GPUs times seconds: of the slots that are known
    wasted: Int  # of the idle ones
    busy_n: Int  # samples that say how busy the GPU was with it
    busy: Int  # thousandths of GPUs times seconds
    memory: Int  # MiB times seconds that were in use
    granted: Int  # MiB times seconds
    memory_max: Int  # MiB on one GPU

    def plus(self, other: "SampleSum") -> "SampleSum":
        """Return the sum of two of the same key."""
        return SampleSum(
            self.key,
            self.slots + other.slots,
            self.idle + other.idle,
            self.held + other.held,
            self.wasted + other.wasted,
            self.busy_n + other.busy_n,
            self.busy + other.busy,
            self.memory + other.memory,
            self.granted + other.granted,
            max(self.memory_max, other.memory_max),
        )


@dataclass(frozen=True, slots=True)
class Episode:
    """From when to when a check of a subject had one result, which was not good."""

    check: Line
    subject: Line
    status: Health
    began: Time
    ended: Time = Milliseconds(0)  # 0: it goes on
    text: Line = ""  # what was said when it began


@dataclass(frozen=True, slots=True)
class CapacitySum:
    """The use of all GPUs of a model in one day, as far as one server knows the table.

    Figures are millionths of GPUs times seconds. What is in no part was free.
    """

    day: Int  # the Unix second at which it begins, in UTC
    model: Text
    seconds: Int  # for which there were such GPUs, and it is known
    gpus: Int  # all
    granted: Int  # to leases, wherever their server was
    outside: Int  # in use by processes that are not of the pool; so not granted
    drained: Int  # of what is left: not granted because it was drained, ...
    down: Int  # ... because its server was unreachable or not admitted yet
    fault: Int  # ... because it was at fault

    def plus(self, other: "CapacitySum") -> "CapacitySum":
        """Return the sum of two, with the names of this one."""
        return CapacitySum(
            self.day,
            self.model,
            self.seconds + other.seconds,
            self.gpus + other.gpus,
            self.granted + other.granted,
            self.outside + other.outside,
            self.drained + other.drained,
            self.down + other.down,
            self.fault + other.fault,
        )


@dataclass(frozen=True, slots=True)
class KeptTier:
    """Rows of one step."""

    step_s: Int
    kept_s: Int  # for how long
    oldest: Time  # 0: there are none


@dataclass(frozen=True, slots=True)
class Storage:
    """The history that one server stores, and the end of its certificates."""

    files: dict[Name, Int] = field(default_factory=dict[str, int])  # bytes by name
    size_max: Int = 0  # bytes of the databases together
    tiers: tuple[KeptTier, ...] = ()
    ends: dict[Line, Time] = field(default_factory=dict[str, Milliseconds])


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """One part of an answer."""

    step_s: Int = 0  # of the points
    series: tuple[HistorySeries, ...] = ()
    sums: tuple[SampleSum, ...] = ()
    after: Int = 0  # points up to here, for the next part
    more: bool = False
    oldest: Time = Milliseconds(0)  # before which nothing is kept; 0: nothing is
    problem: Line = ""  # why something may lack
    lost: Int = field(default=0, metadata=OPTIONAL)  # slots of 10 s that could not be kept
    #: What checks found, the newest first; ``oldest`` is since when that is known, or 0.
    episodes: tuple[Episode, ...] = field(default=(), metadata=OPTIONAL)
    capacity: tuple[CapacitySum, ...] = field(default=(), metadata=OPTIONAL)
    storage: Storage | None = field(default=None, metadata=OPTIONAL)


def joined(pages: Sequence[HistoryPage]) -> HistoryPage:
    """Return the parts of an answer, in their order and at least one, as a whole."""
    points: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for page in pages:
        for series in page.series:
            points.setdefault((series.key, series.label), []).extend(series.points)
    return replace(
        pages[-1],
        series=tuple(HistorySeries(*names, tuple(found)) for names, found in points.items()),
        sums=tuple(each for page in pages for each in page.sums),
        episodes=tuple(each for page in pages for each in page.episodes),
        capacity=tuple(each for page in pages for each in page.capacity),
    )
