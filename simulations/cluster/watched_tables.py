"""The table of a simulated server: the real state machine, with checkers that watch each command.

Steps that several servers compute are shared: see ``shared_tables``.
"""

from dataclasses import replace

from gpupool.pool.model.codec import TableHash
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.pieces import Field
from gpupool.pool.model.state import Act, PoolState, with_changes
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.simulations.cluster.run_context import Environment

_NEVER_MS = 1 << 60


class WatchedMachine(PoolMachine):
    """The real state machine, with the checkers watching."""

    def __init__(self, environment: Environment, server: str) -> None:
        hash_s, machine = environment.options.hash_s, environment.find(server)
        super().__init__(
            environment.empty,
            hash_every_ms=int(1000 * hash_s) if hash_s else _NEVER_MS,
            version=machine.formats if machine is not None else VERSION,
        )
        self._flipped: Act | None = None  # as it was
        self._environment = environment
        self._server = server
        environment.checkers.logs.began(server)

    def apply(self, index: int, command: Plain) -> Plain:
        """Apply a command, and let the checkers compare."""
        tables, before = self._environment.tables, self.state
        # Another program computes for itself: it may have to stop where others go on.
        known = tables.step(before, index, command) if self.version == VERSION else None
        if known is not None:
            self.state, result = known.after, known.result
        else:
            result = super().apply(index, command)
        checkers, after = self._environment.checkers, self._right(self.state)
        checkers.versions.read(self._server, self.version, before)
        if checkers.logs.applied(self._server, index, command, result, after):
            self._environment.applied(index, command, result, self._right(before), after)
        if known is None and self._flipped is None:
            self.state = tables.computed(before, index, command, result, self.state)
        return result

    @property
    def right(self) -> PoolState:
        """Return the table as it would be without a flip."""
        return self._right(self.state)

    @property
    def is_flipped(self) -> bool:
        """Return whether a bit of the table has flipped since this process began."""
        return self._right(self.state) is not self.state

    def flip(self, draw: float) -> None:
        """Let a bit flip in an act that is recorded in the table."""
        acts = self.state.acts
        at = int(draw * len(acts))
        self._flipped = acts[at]
        text = f"{acts[at].text}?{self._server}"  # No two flips are the same (seed 10192857).
        acts = (*acts[:at], replace(acts[at], text=text), *acts[at + 1 :])
        self.state = with_changes(self.state, acts=acts)

    def _right(self, state: PoolState) -> PoolState:
        """Return a table as it would be without the flip."""
        flipped = self._flipped
        if flipped is None:
            return state
        acts = tuple(flipped if each.number == flipped.number else each for each in state.acts)
        return state if acts == state.acts else with_changes(state, acts=acts)

    def snapshot_fields(self) -> list[Field]:
        """Return the table of this moment without a bit flip: data on a disk may rot there."""
        state, self.state = self.state, self._right(self.state)
        try:
            return super().snapshot_fields()
        finally:
            self.state = state

    def hashing(self) -> TableHash:
        """Return the hasher of the present table, shared by all servers with that table."""
        return self._environment.tables.hashing(self.state)

    def adopt(self, state: PoolState) -> None:
        """Take a snapshot's table, and let the checkers compare."""
        self._flipped = None
        super().adopt(state)
        self._environment.checkers.logs.restored(self._server, self.state)
        self.state = self._environment.tables.restored(self.state)
