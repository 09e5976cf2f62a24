"""Commands that end many leases: each ends some, and is proposed again until none is left.

To revoke a token, to remove a server, or to take a new start of one ends all of its leases. No step
of a server's loop may grow with their number, so each such command ends ``ENDED_AT_ONCE_MAX``
at most, and the table itself says what is left:

- A token whose leases are not all ended is in ``PoolState.revoking``. Nothing is served to those
  that are left (``why_over``), and nothing is granted to the token.
- A server that is removed is in ``PoolState.removed`` at once, without a vote. It stays in
  ``PoolState.servers`` until all of its parts are freed.
- A new start of a server is taken at once, but serves nothing before the parts of the former one
  are freed.
- Both have ``Server.freeing`` until then, and nothing is granted on such a server.

A time that is set back moves leases in batches likewise (``clock_setting``).

The leader proposes again what is left of all but starts (``reconcile.plan_leader``), and a server
its own start. Whose proposal goes on proposes it again at once (``goes_on``). Pure.
"""

from collections.abc import Iterator
from itertools import islice

from gpupool.pool.model.commands import Command, RemoveServer, RevokeToken, ServerUp, SetClock
from gpupool.pool.model.ids import LeaseId, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PartStatus, PoolState
from gpupool.pool.transitions import clock_setting, leases

ENDED_AT_ONCE_MAX = 32
"""Leases that one command ends. Each makes an event and a record, and the table keeps more of both,
``EVENT_COUNT_MAX`` and ``RECORD_COUNT_MAX``: so each server reads all of them."""


def end_leases_of(state: PoolState, token: TokenId, reason: str) -> tuple[PoolState, bool]:
    """End leases of a token; return whether some are left."""
    leases_now, is_left = _some(
        each.id for each in state.leases.values() if each.token == token and each.held
    )
    for lease in leases_now:
        state = leases.end(clock_setting.moved_ahead(state, lease), lease, reason)
    return state, is_left


def free_parts_at(state: PoolState, server: ServerId, reason: str) -> tuple[PoolState, bool]:
    """Free parts of a server, since no worker of theirs can live; return whether some are left."""
    parts = state.leases.at(server).values()
    leases_now, is_left = _some(
        each.id for each in parts if each.parts[server] is not PartStatus.FREED
    )
    for lease in leases_now:
        state = leases.lose_part(clock_setting.moved_ahead(state, lease), lease, server, reason)
    return state, is_left


def _some(found: Iterator[LeaseId]) -> tuple[list[LeaseId], bool]:
    """Return those that one command ends, and whether there are more."""
    return list(islice(found, ENDED_AT_ONCE_MAX)), any(True for _ in found)


def unfinished(state: PoolState) -> tuple[Command, ...]:
    """Return the unfinished commands, which the leader proposes again."""
    settings = [SetClock(state.moving.to, state.era - 1, "")] if state.moving else []
    removals = [RemoveServer(each, "") for each in state.removed if each in state.servers]
    return (*settings, *(RevokeToken(token, "") for token in state.revoking), *removals)


def goes_on(state: PoolState, command: Command, result: Result) -> bool:
    """Return whether a command that was applied has more to do, by the table after it."""
    match command:
        case RevokeToken(token=token):
            return result.ok and token in state.revoking
        case RemoveServer(server=server):
            return result.ok and server in state.servers
        case ServerUp(server=server):
            return result.ok and server in state.servers and state.servers[server].freeing
        case SetClock(era=era):
            return result.ok and state.moving is not None and era == state.era - 1
        case _:
            return False
