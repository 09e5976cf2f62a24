"""The table's time, set by an operator after an accident with the voters' clocks.

Instants in the table after the new time are of the accident: the table had them from a clock that
was ahead. A duration that began in the accident keeps its length, and so its end is moved with its
beginning; what began before the accident keeps its end.

- A token made in the accident is good for as long as it was made for; an older one is good again.
- A lease granted in the accident keeps its longest time; an end of which notice was given in the
  accident keeps its period of grace.
- A silence made in the accident ends after as long a time.
- Waiting requests keep their age and their order, uploads their age. Events move too.
- Administrative acts and records of ended leases stay as they were recorded: each server has them
  in files of its own.
"""

from dataclasses import replace

from gpupool.pool.model.commands import SetClock
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.silences import Silence
from gpupool.pool.model.state import Lease, PoolState, Server, Token, with_changes
from gpupool.pool.model.suspension import SuspensionHistory
from gpupool.pool.model.tables import WaitingTable
from gpupool.pool.transitions.audit import emit_event, record


def set_clock(state: PoolState, command: SetClock) -> Step:
    """Set the table's time, and begin an era: no stamp made before counts any more."""
    if command.era < state.era:
        return state, Result(ok=True, why="the pool's time was set already")
    if command.era > state.era or command.to <= 0:
        return state, refuse(RefusalKind.INVALID, "no table has had this era yet")
    before, to = state.now, command.to
    if before > to:
        state = _moved_back(state, _Move(to, before))
    state = with_changes(state, now=to, era=state.era + 1)
    by_s = abs(before - to) / 1000
    text = f"by {by_s:.1f} s {'back' if before > to else 'ahead'}, from {before} to {to} ms"
    state = record(state, "clock-set", by=command.by, subject=state.name, text=text)
    return emit_event(state, "clock-set", state.name, f"time set {text}"), Result(ok=True)


class _Move:
    """A move of the table's time back, as it changes instants."""

    def __init__(self, to: int, before: int) -> None:
        self._to = to
        self._before = before

    def made_since(self, at: int) -> bool:
        """Return whether an instant that lay in the past is of the accident."""
        return self._to < at <= self._before

    def moved(self, at: int) -> Milliseconds:
        """Return an instant as far from the new time as it was from the old one; 0 is none."""
        return Milliseconds(max(1, at - (self._before - self._to)) if at else 0)

    def cut(self, at: int) -> Milliseconds:
        """Return an instant in the past, or the new time for one of the accident."""
        return Milliseconds(min(at, self._to))

    def past(self, at: int) -> Milliseconds:
        """Return an instant in the past, moved if it is of the accident."""
        return self.moved(at) if self.made_since(at) else Milliseconds(at)


def _moved_back(state: PoolState, move: _Move) -> PoolState:
    # None overtakes one that waited before the accident.
    earlier = [w.since for w in state.waiting.values() if not move.made_since(w.since)]
    first = max(earlier, default=Milliseconds(0))
    waiting = {
        each: replace(
            w,
            since=max(move.past(w.since), first) if move.made_since(w.since) else w.since,
            renewed=move.past(w.renewed),
        )
        for each, w in state.waiting.items()
    }
    staged = {
        upload: replace(each, renewed=move.past(each.renewed))
        for upload, each in state.staged.items()
    }
    # Most rows are of before the accident, and a table of 10,000 takes long to make anew.
    leases, servers = state.leases, state.servers
    for lease in state.leases.values():
        if (changed := _lease(lease, move)) is not lease:
            leases = leases.set(lease.id, changed)
    for server in state.servers.values():
        if (moved := _server(server, move)) is not server:
            servers = servers.set(server.id, moved)
    return with_changes(
        state,
        tokens={each: _token(token, move) for each, token in state.tokens.items()},
        leases=leases,
        servers=servers,
        removed={each: move.past(at) for each, at in state.removed.items()},
        events=tuple(replace(event, at=move.past(event.at)) for event in state.events),
        waiting=WaitingTable(waiting),
        staged=staged,
        backup_at=move.past(state.backup_at),
        silences=tuple(_silence(each, move) for each in state.silences),
        forgotten=tuple(replace(each, at=move.past(each.at)) for each in state.forgotten),
    )


def _token(token: Token, move: _Move) -> Token:
    if not (move.made_since(token.revoked_at) or move.made_since(token.created_at)):
        return token
    token = replace(token, revoked_at=move.past(token.revoked_at))
    if not move.made_since(token.created_at):
        return token
    created_at, expires_at = move.moved(token.created_at), move.moved(token.expires_at)
    return replace(token, created_at=created_at, expires_at=expires_at)


def _lease(lease: Lease, move: _Move) -> Lease:
    instants = lease.granted_at, lease.ended_at, lease.requested_at, lease.notice_at
    parts = lease.suspension, lease.history
    if parts == (None, None) and not any(move.made_since(at) for at in instants):
        return lease
    ended_at, requested_at = move.past(lease.ended_at), move.past(lease.requested_at)
    lease = with_changes(lease, ended_at=ended_at, requested_at=requested_at)
    # Of a lease that is held, an earlier notice than the table's time was given lately.
    if move.made_since(lease.granted_at) or (lease.held and move.made_since(lease.notice_at)):
        ends_at, notice_at = move.moved(lease.ends_at), move.moved(lease.notice_at)
        lease = with_changes(lease, ends_at=ends_at, notice_at=notice_at)
    suspension, history = lease.suspension, lease.history
    if suspension is not None:
        since, resume_since = move.past(suspension.since), move.past(suspension.resume_since)
        suspension = replace(suspension, since=since, resume_since=resume_since)
    if history is not None:
        refusal = history.refusal
        refusal = replace(refusal, at=move.past(refusal.at)) if refusal is not None else None
        history = replace(history, resumed_at=move.past(history.resumed_at), refusal=refusal)
        history = _away(history, move, whole=move.made_since(lease.granted_at))
    granted_at = move.past(lease.granted_at)
    return with_changes(lease, granted_at=granted_at, suspension=suspension, history=history)


def _away(history: SuspensionHistory, move: _Move, *, whole: bool) -> SuspensionHistory:
    """Return when a lease was away: moved with a lease of the accident, else cut at its begin."""
    put = move.past if whole else move.cut
    since = put(history.away_since)
    spans = tuple((put(begin), put(end)) for begin, end in history.away)
    away = tuple((begin, end) for begin, end in spans if begin < end)
    lasted = sum(end - begin for begin, end in away)
    return replace(history, away=away, away_ms=lasted, away_since=since)


def _silence(silence: Silence, move: _Move) -> Silence:
    if not move.made_since(silence.at):
        return silence
    return replace(silence, at=move.moved(silence.at), until=move.moved(silence.until))


def _server(server: Server, move: _Move) -> Server:
    joined_at, changed_at = move.past(server.joined_at), move.past(server.changed_at)
    if (joined_at, changed_at) == (server.joined_at, server.changed_at):
        return server
    return with_changes(server, joined_at=joined_at, changed_at=changed_at)
