"""The checker of the CA's exchange: no server is shut out, and the key that signs is not lost."""

from collections.abc import Iterable
from typing import NamedTuple

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.simulations.kernel.ca_files import trust_each_other
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine

KNOWN_S = 1.0
"""The giver of a key may not know yet of a voter that has come less than this before."""


class _Given(NamedTuple):
    """A key as it was first seen: the voters that were to have it, and its holders."""

    voters: frozenset[ServerId]
    holders: frozenset[ServerId]


class CaHolds:
    """Every two servers of the pool can have a link; most voters have the key of a new CA.

    They are those to whom it was given. A voter that comes later asks for it, as it does after the
    exchange (seed 710737); one that leaves takes its key along.
    """

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._authorities: tuple[bytes, ...] = ()
        self._since: dict[ServerId, float] = {}  # of each voter
        self._given: dict[bytes, _Given] = {}

    def applied(self, state: PoolState, machines: Iterable[Machine], now: float) -> None:
        """Look after a command was applied for the first time anywhere."""
        keys = self.look(machines, now)
        voters = state.voters()
        self._since = {voter: self._since.get(voter, now) for voter in voters}
        before, self._authorities = self._authorities, state.authorities
        if len(state.authorities) > len(before):
            self._judge(state.authorities[-1], keys, frozenset(voters))

    def look(self, machines: Iterable[Machine], now: float) -> dict[ServerId, set[bytes]]:
        """Return the keys of each server, and take note of new ones.

        Called before machines are wiped, too, which lose theirs (seed 10211491).
        """
        keys = {each.server: each.authorities.keys for each in machines}
        for key in set[bytes]().union(*keys.values()) - self._given.keys():
            self._given[key] = self._see(_holders(keys, key), now)
        return keys

    def _see(self, holders: frozenset[ServerId], now: float) -> _Given:
        """Look at a new key, by the voters of the table before the command of this moment."""
        voters = {
            voter
            for voter, since in self._since.items()
            if voter in holders or since + KNOWN_S <= now
        }
        return _Given(frozenset(voters), holders)

    def _judge(
        self, key: bytes, keys: dict[ServerId, set[bytes]], voters: frozenset[ServerId]
    ) -> None:
        given = self._given.get(key, _Given(voters, frozenset()))
        # Of a machine that was wiped the table may not know yet that its server is gone.
        gone = given.holders - (voters & keys.keys())
        have = (_holders(keys, key) | gone) & given.voters
        if 2 * len(have) <= len(given.voters):
            text = f"{len(have)} of {len(given.voters)} voters have the key of {key!r}"
            self._failures.fail("ca-holds", text)

    def changed(self, state: PoolState, machines: Iterable[Machine]) -> None:
        """Look after a server has begun to run, to trust other CAs, or to show another one."""
        if not state.authorities:
            return
        there = [
            each
            for each in machines
            if each.server in state.servers and each.process is not None and each.process.alive
        ]
        for at, one in enumerate(there):
            for other in there[:at]:
                if not trust_each_other(one.authorities, other.authorities):
                    text = f"{one.name} has {one.authorities}, {other.name} {other.authorities}"
                    self._failures.fail("ca-holds", text)


def _holders(keys: dict[ServerId, set[bytes]], key: bytes) -> frozenset[ServerId]:
    return frozenset(server for server, held in keys.items() if key in held)
