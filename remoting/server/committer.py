"""Drives a ``Proposer`` on trio for one command at a time, where no controller runs.

A server that creates its pool, or that is about to stop, commits a few commands in order. It needs
the same rule for another attempt as the controller, and no other part of it.
"""

from collections import deque

import trio

from gpupool.pool.model.commands import Command
from gpupool.pool.ports import Randomness, ReplicatedLog
from gpupool.pool.table_clock import TableClock
from gpupool.remoting.server.proposer import Decision, Propose, Proposer


class Committer:
    """Commits commands on behalf of this server itself."""

    def __init__(
        self,
        replicated_log: ReplicatedLog,
        table_clock: TableClock,
        rng: Randomness,
    ) -> None:
        """Make a committer to the table that ``replicated_log`` replicates."""
        self._replicated_log = replicated_log
        self._table_clock = table_clock
        self._rng = rng

    async def commit(self, command: Command, *, timeout_s: float) -> Decision:
        """Get ``command`` committed within ``timeout_s``; the command itself does not expire."""
        attempts, clock = deque[Propose](), self._table_clock.clock
        decisions: list[Decision] = []
        proposer = Proposer(self._table_clock, self._rng, emit=attempts.append)
        proposer.propose(command, decisions.append, timeout_s=timeout_s, bounded=False)
        while not decisions:
            if attempts:
                attempt = attempts.popleft()
                outcome = await self._replicated_log.propose(
                    attempt.command, timeout_s=attempt.timeout_s
                )
                proposer.outcome(attempt.number, outcome)
            else:
                await trio.sleep(max(0.0, proposer.wake_at() - clock.monotonic()))
                proposer.poll()
        return decisions[0]
