"""The latest time at which leases can be suspended for a request, told to its client.

A lease that was resumed is left alone for its minimum run time. So a request may have to wait for
that, and not for the end of any lease.
"""

from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import PoolState, Request, Waiting, with_changes
from gpupool.pool.policy.giving_way import pause_end
from gpupool.pool.scheduling import fairness
from gpupool.pool.scheduling.fairness import Place
from gpupool.pool.scheduling.preemption import Preemption, Rules, choose, preemptions

LATER_MAX = 8
"""Instants at which a choice is looked for, besides now: each may take 20 ms."""


def suspendable_in_ms(state: PoolState, user: str, request: Request) -> int | None:
    """Return after how long the policy has leases suspended for a request; None: never, so far.

    Limits, guarantees and who goes first are as they are now, so this is no promise.
    """
    rules = Rules(state)
    if not rules.admission.book.has_priorities:
        return None
    entry = entry_of(rules, user, request)
    if fairness.is_held_back(rules.admission, entry) or entry.priority <= rules.lowest:
        return None
    _, taken = before_entry(rules, entry)
    ends = {
        pause_end(lease, rules.admission.terms(lease.user).min_run_ms)
        for lease in state.leases.values()
        if lease.held and rules.priority(lease) < entry.priority
    }
    later = sorted(each for each in ends if each > state.now)
    for at in (state.now, *later[:LATER_MAX]):
        then = with_changes(state, now=Milliseconds(at))
        if choose(Rules(then), entry, taken) is not None:
            return at - state.now
    return None


def entry_of(rules: Rules, user: str, request: Request) -> Waiting:
    """Return the place in line of a request, or the one that it would get now."""
    state = rules.state
    priority = rules.admission.terms(user).priority
    known = state.waiting.get(request.id)
    return known or Waiting(request, user, priority, state.now, state.now, "")


def before_entry(rules: Rules, entry: Waiting) -> tuple[list[Preemption], frozenset[Place]]:
    """Return the earlier preemptions, and all GPUs that others have first."""
    state, turn = rules.state, fairness.turn(entry)
    ahead = [each for each in preemptions(state) if fairness.turn(each.entry) < turn]
    kept = fairness.kept_from(state, entry.request.id, entry.user)
    return ahead, frozenset[Place]().union(*(each.gpus for each in (*kept, *ahead)))
