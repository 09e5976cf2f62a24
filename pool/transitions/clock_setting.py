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

Leases are many, so one command moves some of them only. ``PoolState.moving`` says which are left,
and the leader proposes the same command again (``leases``). Until then those look as if they were
of the time to come: none ends too early. One that a command changes is moved just before.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpupool.pool.model.clock_move import ClockMove
from gpupool.pool.model.commands import SetClock
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.silences import Silence
from gpupool.pool.model.state import Lease, PoolState, Server, Token, with_changes
from gpupool.pool.model.suspension import SuspensionHistory
from gpupool.pool.model.tables import WaitingTable
from gpupool.pool.transitions.kept_records import emit_event, record

MOVED_AT_ONCE_MAX = 64
"""Leases that one command moves, in 2 to 4 ms."""

LOOKED_AT_ONCE_MAX = 2048
"""Leases of which one command finds out whether they are of the accident, in 3 ms at most."""


def set_clock(state: PoolState, command: SetClock) -> Step:
    """Set the table's time, and begin an era: no stamp made before counts any more."""
    if command.era < state.era:
        return _leases_moved(state), Result(ok=True, why="the pool's time was set already")
    if command.era > state.era or command.to <= 0:
        return state, refuse(RefusalKind.INVALID, "no table has had this era yet")
    if state.moving is not None:
        why = "leases are still being moved to the time that was set last; try again in a second"
        return state, refuse(RefusalKind.BUSY, why)
    before, to = state.now, command.to
    if before > to:
        move = ClockMove(to, before, LeaseId(state.index))
        state = _leases_moved(with_changes(_moved_back(state, move), moving=move))
    state = with_changes(state, now=to, era=state.era + 1)
    by_s = abs(before - to) / 1000
    text = f"by {by_s:.1f} s {'back' if before > to else 'ahead'}, from {before} to {to} ms"
    state = record(state, "clock-set", by=command.by, subject=state.name, text=text)
    return emit_event(state, "clock-set", state.name, f"time set {text}"), Result(ok=True)


def _moved_back(state: PoolState, move: ClockMove) -> PoolState:
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
    # Most rows are of before the accident, and keep their objects.
    moved = {
        server.id: changed
        for server in state.servers.values()
        if (changed := _server(server, move)) is not server
    }
    servers = state.servers.replacing(moved) if moved else state.servers
    return with_changes(
        state,
        tokens={each: _token(token, move) for each, token in state.tokens.items()},
        servers=servers,
        removed={each: move.past(at) for each, at in state.removed.items()},
        events=tuple(replace(event, at=move.past(event.at)) for event in state.events),
        waiting=WaitingTable(waiting),
        staged=staged,
        backup_at=move.past(state.backup_at),
        silences=tuple(_silence(each, move) for each in state.silences),
        forgotten=tuple(replace(each, at=move.past(each.at)) for each in state.forgotten),
    )


def _leases_moved(state: PoolState) -> PoolState:
    """Return the table with some more of the leases moved, in the order of their ids."""
    move = state.moving
    if move is None:
        return state
    leases, ahead, looked_at, moved_count = state.leases, frozenset(move.ahead), 0, 0
    after = move.after
    for lease in _left(state, move):
        if looked_at == LOOKED_AT_ONCE_MAX or moved_count == MOVED_AT_ONCE_MAX:
            later = tuple(each for each in move.ahead if each > after)
            move = replace(move, after=after, ahead=later)
            return with_changes(state, leases=leases, moving=move)
        looked_at, after = looked_at + 1, lease.id
        if lease.id not in ahead and (moved := _lease(lease, move)) is not lease:
            leases, moved_count = leases.set(lease.id, moved), moved_count + 1
    return with_changes(state, leases=leases, moving=None)


def _left(state: PoolState, move: ClockMove) -> Iterator[Lease]:
    """Return the leases behind the one that was moved last; the ids of a table's leases grow."""
    for chunk in state.leases.chunks():
        if chunk and next(reversed(chunk)) > move.after:
            for lease in chunk.values():
                if lease.id > move.last:
                    return
                if lease.id > move.after:
                    yield lease


def moved_ahead(state: PoolState, lease_id: LeaseId | None) -> PoolState:
    """Return the table with this lease moved, before a command changes it.

    Its instants of the accident could not be told from those that the command writes.
    """
    move = state.moving
    if move is None or lease_id is None or not move.is_due(lease_id):
        return state
    if (lease := state.leases.get(lease_id)) is None:
        return state
    leases, moved = state.leases, _lease(lease, move)
    if moved is not lease:
        leases = leases.set(lease_id, moved)
    return with_changes(state, leases=leases, moving=replace(move, ahead=(*move.ahead, lease_id)))


def _token(token: Token, move: ClockMove) -> Token:
    if not (move.made_since(token.revoked_at) or move.made_since(token.created_at)):
        return token
    revoked_at, created_at, expires_at = token.revoked_at, token.created_at, token.expires_at
    if move.made_since(created_at):
        created_at, expires_at = move.moved(created_at), move.moved(expires_at)
    return replace(
        token, revoked_at=move.past(revoked_at), created_at=created_at, expires_at=expires_at
    )


def _lease(lease: Lease, move: ClockMove) -> Lease:
    instants = (
        *(lease.granted_at, lease.ended_at, lease.requested_at, lease.notice_at),
        lease.here_since,
    )
    suspension, history, goes = lease.suspension, lease.history, lease.relocation
    is_apart = not (suspension is history is goes is None) or lease.moves_from > 0
    if not is_apart and not any(move.made_since(at) for at in instants):
        return lease
    granted_lately = move.made_since(lease.granted_at)
    changes: dict[str, Any] = {
        "granted_at": move.past(lease.granted_at),
        "ended_at": move.past(lease.ended_at),
        "requested_at": move.past(lease.requested_at),
        "here_since": move.past(lease.here_since),
        "moves_from": Milliseconds(0),
    }
    if goes is not None:
        since, source_since = move.past(goes.since), move.past(goes.source_since)
        changes["relocation"] = replace(goes, since=since, source_since=source_since)
    # Of a lease that is held, an earlier notice than the table's time was given lately.
    if granted_lately or (lease.held and move.made_since(lease.notice_at)):
        changes["ends_at"] = move.moved(lease.ends_at)
        changes["notice_at"] = move.moved(lease.notice_at)
    if suspension is not None:
        since, resume_since = move.past(suspension.since), move.past(suspension.resume_since)
        changes["suspension"] = replace(suspension, since=since, resume_since=resume_since)
    if history is not None:
        refusal = history.refusal
        refusal = replace(refusal, at=move.past(refusal.at)) if refusal is not None else None
        history = replace(history, resumed_at=move.past(history.resumed_at), refusal=refusal)
        changes["history"] = _away(history, move, whole=granted_lately)
    return with_changes(lease, **changes)


def _away(history: SuspensionHistory, move: ClockMove, *, whole: bool) -> SuspensionHistory:
    """Return when a lease was away: moved with a lease of the accident, else cut at its begin."""
    put = move.past if whole else move.cut
    since = put(history.away_since)
    spans = tuple((put(begin), put(end)) for begin, end in history.away)
    away = tuple((begin, end) for begin, end in spans if begin < end)
    lasted = sum(end - begin for begin, end in away)
    return replace(history, away=away, away_ms=lasted, away_since=since)


def _silence(silence: Silence, move: ClockMove) -> Silence:
    if not move.made_since(silence.at):
        return silence
    return replace(silence, at=move.moved(silence.at), until=move.moved(silence.until))


def _server(server: Server, move: ClockMove) -> Server:
    joined_at, changed_at = move.past(server.joined_at), move.past(server.changed_at)
    if (joined_at, changed_at) == (server.joined_at, server.changed_at):
        return server
    return with_changes(server, joined_at=joined_at, changed_at=changed_at)
