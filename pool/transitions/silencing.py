"""Silences of findings and alerts: operators set, replace and lift them; they lapse."""

from dataclasses import replace

from gpupool.pool.model.commands import SetSilence
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.silences import (
    SILENCE_COUNT_MAX,
    SILENCE_MAX_MS,
    SILENCE_NAME_MAX,
    SILENCE_SUBJECT_MAX,
    Silence,
)
from gpupool.pool.model.state import PoolState, with_changes
from gpupool.pool.transitions.kept_records import emit_event, record

ORDERS_KEPT = 4


def set_silence(state: PoolState, command: SetSilence) -> Step:
    """Silence something until a time, or lift the silence of it."""
    kept = tuple(each for each in state.silences if each.until > state.now)
    key = (command.check, command.server, command.subject)
    known = next((each for each in kept if each.key == key), None)
    if known is not None and command.order and command.order in known.orders:
        return state, Result(ok=True, why="it was done already")
    if why := _mistake(state, command):
        return state, refuse(RefusalKind.INVALID, why)
    if command.reason is None and (known is None or known.lifted):
        return state, Result(ok=True, why="nothing of it is silenced")
    if known is None and len(kept) >= SILENCE_COUNT_MAX:
        why = f"the pool has {SILENCE_COUNT_MAX} silences: lift some"
        return state, refuse(RefusalKind.CONFLICT, why)
    orders = (*(known.orders if known is not None else ()), command.order)[-ORDERS_KEPT:]
    if command.reason is None and known is not None:
        made = replace(known, lifted=True, orders=orders)
    else:
        made = Silence(
            *key,
            until=command.until,
            reason=command.reason or "",
            by=command.by,
            at=state.now,
            orders=orders,
        )
    others = tuple(each for each in kept if each.key != key)
    state = with_changes(state, silences=(*others, made))
    subject = "/".join(part for part in (command.server, command.check, command.subject) if part)
    kind = "unsilenced" if made.lifted else "silenced"
    minutes = (made.until - state.now + 59_999) // 60_000
    text = "" if made.lifted else f"for {minutes} min: {made.reason}"
    state = record(state, kind, by=command.by, subject=subject, text=text)
    return emit_event(state, kind, subject, f"{text} (by {command.by})".strip()), Result(ok=True)


def _mistake(state: PoolState, command: SetSilence) -> str:
    """Return the mistake in an order, or an empty string."""
    names = (command.check, command.server)
    if not command.check or any(len(each) > SILENCE_NAME_MAX for each in names):
        return "a silence is of a check or a rule, and at most of one server"
    if len(command.subject) > SILENCE_SUBJECT_MAX:
        return "no finding has a subject of that length"
    if command.reason is None:
        return ""
    if not command.reason.strip():
        return "a silence needs a reason"
    if not 0 < command.until - state.now <= SILENCE_MAX_MS:
        return "a silence ends within 90 days"
    return ""


def silences_now(state: PoolState, now_ms: int) -> tuple[Silence, ...]:
    """Return those that hold at a time."""
    return tuple(
        each for each in state.silences if not each.lifted and each.until > Milliseconds(now_ms)
    )
