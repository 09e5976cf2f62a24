"""The two records in the table: events for the live view, and administrative acts for the audit.

Events come from leases, servers and operators alike, and the oldest are dropped first. Acts are
numbered, and leases never push one out.

The table keeps the latest ``ACT_COUNT_MAX`` acts. Every server also writes each act to a file of
its own as it applies it, so that the older ones are not lost: ``audit_file`` of
``remoting.daemon.records``.
"""

from gpupool.pool.model.state import (
    ACT_COUNT_MAX,
    EVENT_COUNT_MAX,
    Act,
    Event,
    PoolState,
    with_changes,
)

BY_LENGTH_MAX = 64
SUBJECT_LENGTH_MAX = 128
TEXT_LENGTH_MAX = 400
EVENT_SUBJECT_LENGTH_MAX = 200

THE_POOL = "the pool"
"""The author of acts that no user asked for."""


def emit_event(state: PoolState, kind: str, subject: str, text: str) -> PoolState:
    """Return ``state`` with one more event, the oldest dropped beyond the limit."""
    subject, text = subject[:EVENT_SUBJECT_LENGTH_MAX], text[:TEXT_LENGTH_MAX]
    event = Event(state.now, kind, subject, text)
    return with_changes(state, events=(*state.events[-EVENT_COUNT_MAX + 1 :], event))


def record(state: PoolState, kind: str, *, by: str, subject: str, text: str = "") -> PoolState:
    """Return ``state`` with one more act; beyond the bound the oldest is dropped.

    Handlers call it once for each change that an operator, or a server about itself, has made. A
    command that was proposed twice, and changes nothing the second time, is no act.
    """
    act = Act(
        number=state.act_count + 1,
        index=state.index,
        at=state.now,
        kind=kind,
        by=by[:BY_LENGTH_MAX] or THE_POOL,
        subject=subject[:SUBJECT_LENGTH_MAX],
        text=text[:TEXT_LENGTH_MAX],
    )
    acts = (*state.acts[-ACT_COUNT_MAX + 1 :], act)
    return with_changes(state, acts=acts, act_count=act.number)


def acts_since(state: PoolState, number: int) -> tuple[Act, ...]:
    """Return the acts in the table with a number larger than ``number``, oldest first."""
    count = min(max(0, state.act_count - number), len(state.acts))
    return state.acts[len(state.acts) - count :]
