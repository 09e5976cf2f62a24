"""The table of a simulated server: the real state machine, with checkers that watch each command.

Steps that several servers compute are shared: see ``shared_tables``.
"""

from gpupool.pool.model.ids import Plain
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.simulations.cluster.run_context import Environment


class WatchedMachine(PoolMachine):
    """The real state machine, with the checkers watching."""

    def __init__(self, environment: Environment, server: str) -> None:
        super().__init__(environment.empty)
        self._environment = environment
        self._server = server
        environment.checkers.logs.began(server)

    def apply(self, index: int, command: Plain) -> Plain:
        """Apply a command, and let the checkers compare."""
        tables, before = self._environment.tables, self.state
        known = tables.step(before, index, command)
        if known is not None:
            self.state, result = known.after, known.result
        else:
            result = super().apply(index, command)
        checkers = self._environment.checkers
        if checkers.logs.applied(self._server, index, command, result, self.state):
            self._environment.applied(index, command, result, before, self.state)
        if known is None:
            self.state = tables.computed(before, index, command, result, self.state)
        return result

    def snapshot(self) -> Plain:
        """Return the table as plain values: made once for all servers that have the same."""
        tables = self._environment.tables
        if tables.plain is None or tables.plain[0] is not self.state:
            tables.plain = (self.state, super().snapshot())
        return tables.plain[1]

    def adopt(self, state: PoolState) -> None:
        """Take a snapshot's table, and let the checkers compare."""
        super().adopt(state)
        self._environment.checkers.logs.restored(self._server, self.state)
        self.state = self._environment.tables.restored(self.state)
