"""The audit: every administrative act, numbered, in the table; leases never push one out.

The table keeps the latest ``ACT_COUNT_MAX`` acts. Every server also writes each act to a file of
its own as it applies it, so that the older ones are not lost: see ``cli.auditlog``.
"""

from gpupool.pool.model.copies import with_changes
from gpupool.pool.model.state import ACT_COUNT_MAX, Act, PoolState

BY_LENGTH_MAX = 64
SUBJECT_LENGTH_MAX = 128
TEXT_LENGTH_MAX = 400

THE_POOL = "the pool"
"""Who did what no user asked for."""


def record(state: PoolState, kind: str, *, by: str, subject: str, text: str = "") -> PoolState:
    """Return ``state`` with one more act; beyond the bound the oldest is dropped.

    Called by the handlers of ``transition`` for what an operator, or a server about itself, has
    done, once for each change: a command that was proposed twice and changes nothing is no act.
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
    """Return the acts in the table whose number is larger than ``number``, oldest first."""
    count = min(max(0, state.act_count - number), len(state.acts))
    return state.acts[len(state.acts) - count :]
