"""The checker of the table's time: no stamp is ahead of a majority of the voters' clocks.

It reads the voters' wall clocks themselves, at the moment of each command, where servers must
measure them over the network. It allows for what a measurement may lack: clocks that were set
within ``WINDOW_S``, and monotonic clocks that run at another speed. It allows for voters that
changed while a command was on its way.
"""

from collections import deque
from collections.abc import Mapping

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.table_clock import BOUND_S, FRESH_S, majority_time
from gpupool.simulations.kernel.failure_reporter import FailureReporter

WINDOW_S = FRESH_S + 2.0
"""A measured clock counts for so long; a clock that was set is told within a second or two."""

SLACK_S = BOUND_S + FRESH_S / 2
"""The bound of a stamp, and the most that a monotonic clock at twice its speed adds to a sample."""

SPEED_MAX = 2.0
"""Of a monotonic clock, by which the time runs on where too few clocks are known."""

IN_FLIGHT_S = 3.0
"""From a stamp until its command is applied: in this time later stamps may be made and applied."""


class TableTime:
    """The table's time stays within bounds of the voters' clocks."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._seen: dict[ServerId, deque[tuple[float, int]]] = {}
        """When, and how far ahead, each clock was seen; only those after which none was as far."""
        self._voters: tuple[ServerId, ...] = ()
        self._former: deque[tuple[float, float]] = deque()
        """The times of voter changes, and the limits by the former voters then; only lately."""
        self._era: int = 0
        self._before_ms = 0
        self._run_on_ms = 0.0
        self._running_ms = 0.0
        """The time that is stamped by now; a command applied late has an earlier one."""
        self._before_at = 0.0

    def observe(self, clocks: Mapping[ServerId, int], at: float) -> None:
        """Look at the wall clocks of all servers at the virtual time ``at``."""
        for server, wall_ms in clocks.items():
            zero_ms, seen = wall_ms - int(at * 1000), self._seen.setdefault(server, deque())
            while seen and seen[-1][1] <= zero_ms:
                seen.pop()
            seen.append((at, zero_ms))

    def applied(self, state: PoolState, clocks: Mapping[ServerId, int], at: float) -> None:
        """Judge the table's time after a command was applied for the first time."""
        self.observe(clocks, at)
        voters = state.voters()
        if voters:
            by_clocks_ms = self._by_voters_ms(state, voters, at)
            passed_ms = (at - self._before_at) * 1000
            self._run_on_ms += passed_ms * SPEED_MAX
            self._running_ms = max(state.now, self._running_ms + passed_ms)
            if state.era != self._era:
                self._running_ms = state.now
            if state.now <= by_clocks_ms or state.era != self._era:
                self._running_ms = min(self._running_ms, by_clocks_ms)
                self._run_on_ms = self._running_ms + IN_FLIGHT_S * 1000
            if state.now > max(by_clocks_ms, self._run_on_ms):
                ahead_s = (state.now - max(by_clocks_ms, self._run_on_ms)) / 1000
                text = f"after {state.index} the table is {ahead_s:.1f} s ahead of its bounds"
                self._failures.fail("table-time", text)
            if state.now < self._before_ms and state.era == self._era:
                self._failures.fail("table-time", f"the time goes back at {state.index}")
        self._era, self._before_ms, self._before_at = state.era, state.now, at

    def _by_voters_ms(self, state: PoolState, voters: tuple[ServerId, ...], at: float) -> float:
        """Return the latest time that the voters of now, or those at the stamp, allow.

        A command is stamped before it is applied, and so is the one that changes the voters
        (seed 800019).
        """
        former = self._former
        if self._voters and voters != self._voters:
            former.append((at, self._by_clocks_ms(self._voters, at)))
        self._voters = voters
        if state.era != self._era:
            former.clear()
        while former and former[0][0] < at - IN_FLIGHT_S:
            former.popleft()
        return max([self._by_clocks_ms(voters, at), *(ms for _, ms in former)])

    def _by_clocks_ms(self, voters: tuple[ServerId, ...], at: float) -> float:
        """Return the latest time that the voters' clocks, as they were lately, allow."""
        latest: list[int] = []
        for seen in filter(None, map(self._seen.get, voters)):
            while seen and seen[0][0] < at - WINDOW_S:
                seen.popleft()
            latest += [zero_ms for _, zero_ms in list(seen)[:1]]
        zero_ms = majority_time(latest, len(voters))
        return at * 1000 + zero_ms + SLACK_S * 1000 if zero_ms is not None else 0.0
