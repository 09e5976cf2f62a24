"""Shared tables: each step of the table is computed by two servers, compared, and then shared.

All servers apply the same commands to the same tables, and ``apply`` is a pure function. So what
the first two servers computed alike, result and whole table, is handed to the others that come from
the very same table with the same command. Two that differ go on with tables of their own, which the
checkers compare.
"""

from dataclasses import dataclass

from gpupool.pool.model.codec import TableHash
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.state import PoolState

STEP_COUNT_MAX = 512
"""Steps remembered; a server that is further behind than that computes its own."""


@dataclass(slots=True)
class _Step:
    before: PoolState
    command: Plain
    result: Plain
    after: PoolState
    confirmed: bool = False  # a second server computed the same


class SharedTables:
    """The latest steps that any server of a run has computed."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self._hash: tuple[PoolState, list[bytes | None]] | None = None

    def step(self, before: PoolState, index: int, command: Plain) -> _Step | None:
        """Return the step of ``command`` at ``index`` from ``before``, if that is to be shared."""
        known = self._steps.get(index)
        if known is None or not known.confirmed or known.before is not before:
            return None
        return known if known.command is command or known.command == command else None

    def computed(
        self, before: PoolState, index: int, command: Plain, result: Plain, after: PoolState
    ) -> PoolState:
        """Take a step that a server computed; return the same table, shared when there is one."""
        known = self._steps.get(index)
        if known is None:
            self._steps[index] = _Step(before, command, result, after)
            if len(self._steps) > STEP_COUNT_MAX:
                del self._steps[next(iter(self._steps))]
            return after
        if (known.result, known.after) != (result, after):
            return after
        known.confirmed = True
        return known.after

    def hashing(self, state: PoolState) -> TableHash:
        """Return the hasher of a table; the latest table is hashed once for all its holders."""
        made = TableHash(state)
        if self._hash is None or self._hash[0] is not state:
            self._hash = (state, pieces := [made.step()])
            while pieces[-1] is None:
                pieces.append(made.step())
        made.step = iter(self._hash[1]).__next__
        return made

    def restored(self, state: PoolState) -> PoolState:
        """Return the table that a server took from a snapshot, shared when there is one."""
        known = self._steps.get(state.index)
        return known.after if known is not None and known.after == state else state
