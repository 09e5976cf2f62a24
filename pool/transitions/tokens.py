"""Tokens in the table: an operator creates them, and revokes them with the leases they hold."""

from dataclasses import replace

from gpupool.pool.model.commands import (
    CreateToken,
    RenewToken,
    RevokeToken,
)
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import (
    NAME_LENGTH_MAX,
    TOKEN_COUNT_MAX,
    TOKEN_USES_MAX,
    PoolState,
    Token,
    with_changes,
)
from gpupool.pool.transitions import leases
from gpupool.pool.transitions.kept_records import emit_event, record

MINUTES_SINCE = 7
"""The version of the formats from which on all servers say a short life in minutes."""


def create_token(state: PoolState, command: CreateToken) -> Step:
    """Register a token."""
    if command.token in state.tokens:
        same = state.tokens[command.token].secret_hash == command.secret_hash
        return state, Result(ok=True) if same else refuse(
            RefusalKind.CONFLICT, "this token id is taken"
        )
    if len(state.tokens) >= TOKEN_COUNT_MAX:
        return state, refuse(
            RefusalKind.DENIED, f"the pool has {TOKEN_COUNT_MAX} tokens, the most it can"
        )
    if not 0 < len(command.user) <= NAME_LENGTH_MAX or len(command.secret_hash) != 32:
        return state, refuse(
            RefusalKind.DENIED, "a token needs a user name and a SHA-256 of its secret"
        )
    if not 1 <= command.uses <= TOKEN_USES_MAX:
        return state, refuse(RefusalKind.DENIED, f"a token lets in 1 to {TOKEN_USES_MAX} servers")
    token = Token(
        id=command.token,
        kind=command.kind,
        user=command.user,
        secret_hash=command.secret_hash,
        created_at=state.now,
        expires_at=command.expires_at,
        created_by=command.by,
        uses=command.uses,
    )
    state = with_changes(state, tokens=state.tokens | {token.id: token})
    text = f"{token.kind.value} token {token.id} created by {command.by or 'the pool'}"
    what = f"{token.kind.value} token for {token.user}, good for {_life(state, token)}"
    if token.uses > 1:
        what += f", for {token.uses} servers"
    state = record(state, "token-created", by=command.by, subject=token.id, text=what)
    return emit_event(state, "token-created", token.user, text), Result(ok=True)


def renew_token(state: PoolState, command: RenewToken) -> Step:
    """Let a token be good for longer; it is never good for less long than before."""
    token = state.tokens.get(command.token)
    if token is None:
        return state, refuse(RefusalKind.NEVER, f"the pool has no token {command.token}")
    if token.revoked_at:
        return state, refuse(RefusalKind.DENIED, f"token {token.id} was revoked")
    if token.expires_at >= command.expires_at:
        return state, Result(ok=True)
    token = replace(token, expires_at=command.expires_at)
    state = with_changes(state, tokens=state.tokens | {token.id: token})
    what = f"{token.kind.value} token of {token.user}, good for {_life(state, token)}"
    state = record(state, "token-renewed", by=command.by, subject=token.id, text=what)
    text = f"token {token.id} renewed by {command.by}"
    return emit_event(state, "token-renewed", token.user, text), Result(ok=True)


def revoke_token(state: PoolState, command: RevokeToken) -> Step:
    """Refuse a token from now on, and end its leases, as many as one command may."""
    token = state.tokens.get(command.token)
    if token is None:
        return state, refuse(RefusalKind.NEVER, f"the pool has no token {command.token}")
    is_first = not token.revoked_at
    if not is_first and token.id not in state.revoking:
        return state, Result(ok=True)
    if is_first:
        token = replace(token, revoked_at=state.now)
        state = with_changes(state, tokens=state.tokens | {token.id: token})
    state, is_left = leases.end_leases_of(state, token.id, token.refusal(state.now))
    others = tuple(each for each in state.revoking if each != token.id)
    if is_left or others != state.revoking:
        state = with_changes(state, revoking=(*others, token.id) if is_left else others)
    if not is_first:
        return state, Result(ok=True)
    text = f"token {token.id} revoked by {command.by}"
    what = f"{token.kind.value} token of {token.user}"
    state = record(state, "token-revoked", by=command.by, subject=token.id, text=what)
    return emit_event(state, "token-revoked", token.user, text), Result(ok=True)


def _life(state: PoolState, token: Token) -> str:
    """Return how long a token is good for, rounded down, as all servers of the pool say it."""
    left_ms = max(0, token.expires_at - state.now)
    if left_ms >= 3_600_000 or state.formats() < MINUTES_SINCE:
        return f"{left_ms // 3_600_000} h"
    return f"{left_ms // 60_000} min" if left_ms >= 60_000 else f"{left_ms // 1000} s"
