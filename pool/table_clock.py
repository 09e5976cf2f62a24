"""The pool's time as one server knows it: it stamps commands, and judges every expiry.

One wall clock can be wrong by years, so none is believed alone. A server measures the wall clocks
of the voters against its own monotonic clock, and takes the latest instant that a majority of all
voters' clocks have reached (``majority_time``): with all voters heard that is their median, and
clocks that are ahead, or voters that are silent, move it nowhere unless they are a majority.

The three sources of the time, and what each may do to the table::

    source    when                                        the table's time
    VOTERS    a majority of the voters' clocks is known   follows majority_time; when it is ahead
                                                          of that, it runs at half speed
    HELD      too few clocks are known, or the only       runs on from the last stamp by the
              voter's clock is more than                  monotonic clock, at no other rate
              SOLE_AHEAD_MAX_S ahead of it
    OWN       the table is empty: the pool is being made  is the wall clock of this server

The leader refuses a command whose stamp is ahead of these bounds (``refusal``); the table itself
only promises that its time never goes back but by an operator's ``SetClock``.

What is never true: that ``now_ms`` is before the table's time; that a minority of wrong clocks
moves the table's time ahead by more than ``BOUND_S``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gpupool.pool.model.commands import NAMES, SetClock
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import Clock

BOUND_S = 5.0
"""A clock that is further off is called wrong, and no stamp may be further ahead."""

FRESH_S = 16.0
"""A measured clock counts for so long: three rounds of asking."""

ERROR_MAX_S = 1.0
"""A measurement that took more than twice this says too little."""

SOLE_AHEAD_MAX_S = 27 * 86400.0
"""The only voter's clock may be so far ahead of the last stamp. A pool that was off for more than
three weeks starts by itself; a date with the wrong month or year, 28 days off at least, does not
count."""

SLEW = 0.5
"""The speed of the table's time while it is ahead: all durations go on, and it comes right."""


class Source(Enum):
    """The basis of the pool's time; see the module."""

    VOTERS = "voters"
    HELD = "held"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The wall clock of a peer, measured against this server's monotonic clock."""

    zero_ms: int  # what the wall clock showed when our monotonic clock showed 0
    at: float  # monotonic
    error_s: float  # half the time that the question and the answer took


@dataclass(frozen=True, slots=True)
class KnownClock:
    """A wall clock at the moment of a reading."""

    ahead_s: float  # of ``ClockReading.pool_ms``
    error_s: float


@dataclass(frozen=True, slots=True)
class ClockReading:
    """All that a server knows of the time at one moment; differences are in seconds."""

    source: Source
    pool_ms: int
    """The time that the source gives."""
    wall_ms: int
    """This server's own wall clock."""
    table_ahead_s: float
    """The table's time less ``pool_ms``; not negative."""
    held_s: float
    """For how long the source has been ``HELD``."""
    clocks: dict[ServerId, KnownClock]
    """A server that is not among them was not heard lately."""


@dataclass(slots=True)
class _Run:
    """A time that runs with the monotonic clock."""

    ms: int
    at: float

    def now(self, monotonic: float, speed: float = 1.0) -> int:
        return self.ms + int(max(0.0, monotonic - self.at) * speed * 1000)


def majority_time(walls: Sequence[int], voter_count: int) -> int | None:
    """Return the latest instant that a majority of ``voter_count`` clocks have reached.

    ``walls`` are the clocks that are known. None means that they are no majority.
    """
    majority = voter_count // 2 + 1
    return sorted(walls, reverse=True)[majority - 1] if len(walls) >= majority else None


def agreed_time(walls: Sequence[int], voter_count: int) -> int | None:
    """Return the middle of a majority of ``voter_count`` clocks that agree within ``BOUND_S``.

    None when no majority agrees. The time is set back by this alone: a clock that is behind, and
    another one that is silent, make a ``majority_time`` that nobody else shares.
    """
    majority = voter_count // 2 + 1
    ordered = sorted(walls)
    windows = [ordered[at : at + majority] for at in range(len(ordered) - majority + 1)]
    close = [window for window in windows if window[-1] - window[0] <= BOUND_S * 1000]
    if not close:
        return None
    return min(close, key=lambda window: window[-1] - window[0])[(majority - 1) // 2]


class TableClock:
    """The pool's time at one server; see the module."""

    def __init__(
        self,
        table: Callable[[], PoolState],
        *,
        self_id: ServerId,
        clock: Clock,
        sample: Callable[[ServerId], ClockSample | None] = lambda _peer: None,
    ) -> None:
        """Make a clock over ``table``, the table as applied here.

        ``sample`` returns the latest measurement of a peer's wall clock.
        """
        self._table = table
        self._self = self_id
        self.clock = clock
        self.sample = sample
        """Measures the wall clocks of peers."""
        self._held: _Run | None = None
        self._held_since = clock.monotonic()
        self._slewed: _Run | None = None
        self._era: int = 0
        self._voters: tuple[ServerId, ...] = ()
        self._voters_of: object = None

    # --- the time --------------------------------------------------------------------------------

    @property
    def era(self) -> int:
        """Return the era in which a command of now is stamped."""
        return self._table().era

    def known_ms(self) -> int:
        """Return the table's own time: a stamp that every leader takes."""
        return self._table().now

    def now_ms(self) -> int:
        """Return the pool's time; never before the table's."""
        state = self._table()
        _, pool_ms = self._follow(state)
        known = state.now
        if pool_ms >= known:
            self._slewed = None
            return pool_ms
        now = self.clock.monotonic()
        run = self._slewed
        if run is None or known > run.now(now, SLEW):
            run = self._slewed = _Run(known, now)
        return run.now(now, SLEW)

    def reading(self) -> ClockReading:
        """Return the reading of the time, of this server's clock and of all other clocks."""
        state, wall_ms, now = self._table(), self.clock.wall_ms(), self.clock.monotonic()
        source, pool_ms = self._follow(state)
        clocks = {self._self: KnownClock((wall_ms - pool_ms) / 1000, 0.0)}
        for server in state.servers:
            sample = self._fresh(server, now) if server != self._self else None
            if sample is not None:
                peer_ms = sample.zero_ms + int(now * 1000)
                clocks[server] = KnownClock((peer_ms - pool_ms) / 1000, sample.error_s)
        ahead_s = max(0.0, (state.now - pool_ms) / 1000)
        held_s = now - self._held_since if source is Source.HELD else 0.0
        return ClockReading(source, pool_ms, wall_ms, ahead_s, held_s, clocks)

    def target_ms(self) -> int | None:
        """Return the time to which an operator sets the table: that of a majority of the voters.

        None when the clocks that are known are no majority that agrees.
        """
        return agreed_time(self._walls(voters := self._voter_ids(self._table())), len(voters))

    def clocks_missing(self) -> int:
        """Return how many of the voters' clocks are not known and needed for a majority."""
        voters = self._voter_ids(self._table())
        return max(0, len(voters) // 2 + 1 - len(self._walls(voters)))

    # --- at the leader ---------------------------------------------------------------------------

    def refusal(self, command: Plain) -> str | None:
        """Return why the leader must not append ``command`` for its time, or None."""
        if not isinstance(command, dict):
            return None  # no envelope; the table refuses it
        at, content = command.get("t"), command.get("c")
        if type(at) is int and (ahead_ms := at - self._limit_ms(at)) > 0:
            return f"its time is {ahead_ms / 1000:.1f} s ahead of what the voters' clocks allow"
        if command.get("k") == NAMES[SetClock] and isinstance(content, dict):
            to, target_ms = content.get("to"), self.target_ms()
            if type(era := content.get("era")) is int and era < self._table().era:
                return None  # it goes on with what was set, or does nothing
            if target_ms is None:
                return "no majority of the voters' clocks agrees here"
            if type(to) is int and abs(to - target_ms) > BOUND_S * 1000:
                return "it would set the pool's time to another one than the voters' clocks show"
        return None

    def _limit_ms(self, at: int) -> int:
        """Return the latest stamp that may be appended now; ``at`` itself if that is early."""
        state = self._table()
        if at <= state.now:
            return at
        source, pool_ms = self._follow(state)
        # Without a majority's word a stamp that is a little ahead would be the next one's base.
        slack_ms = 0 if source is Source.HELD else int(BOUND_S * 1000)
        return max(pool_ms + slack_ms, self.now_ms())

    # --- inside ----------------------------------------------------------------------------------

    def _follow(self, state: PoolState) -> tuple[Source, int]:
        """Return the source of the time and the time that it gives, and go on from there."""
        now = self.clock.monotonic()
        if not state.now:
            self._held = None
            return Source.OWN, self.clock.wall_ms()
        if state.era != self._era:
            self._era, self._held, self._slewed = state.era, None, None
        held_ms = self._held.now(now) if self._held is not None else 0
        if state.now > held_ms:
            held_ms, self._held = state.now, _Run(state.now, now)
        voters = self._voter_ids(state)
        if not voters:
            return Source.HELD, held_ms
        found = majority_time(self._walls(voters), len(voters))
        sole = len(voters) == 1
        if found is None or (sole and found > held_ms + SOLE_AHEAD_MAX_S * 1000):
            return Source.HELD, held_ms
        self._held, self._held_since = _Run(max(found, state.now), now), now
        return Source.VOTERS, found

    def _walls(self, voters: Iterable[ServerId]) -> list[int]:
        """Return the present readings of the voters' wall clocks, as far as they are known."""
        now, walls = self.clock.monotonic(), list[int]()
        for voter in voters:
            if voter == self._self:
                walls.append(self.clock.wall_ms())
            elif (sample := self._fresh(voter, now)) is not None:
                walls.append(sample.zero_ms + int(now * 1000))
        return walls

    def _fresh(self, peer: ServerId, now: float) -> ClockSample | None:
        """Return the latest measurement of a peer's wall clock, when it says enough."""
        sample = self.sample(peer)
        if sample is None or now - sample.at > FRESH_S or sample.error_s > ERROR_MAX_S:
            return None
        return sample

    def _voter_ids(self, state: PoolState) -> tuple[ServerId, ...]:
        if state.servers is not self._voters_of:
            self._voters_of, self._voters = state.servers, state.voters()
        return self._voters
