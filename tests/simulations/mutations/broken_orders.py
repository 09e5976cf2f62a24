"""Broken builds of silences and of forgotten users."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from tests.simulations.mutations.mutation import Mutation
from tests.simulations.mutations.patching import patched, patched_handler

from gpupool.pool import view_building
from gpupool.pool.model.commands import SetSilence
from gpupool.pool.model.forgetting import ForgetUser, Forgotten
from gpupool.pool.model.results import Step
from gpupool.pool.model.silences import Silence
from gpupool.pool.model.state import LeaseRecord, PoolState, with_changes
from gpupool.pool.model.tables import LeaseTable, WaitingTable
from gpupool.pool.transitions import kept_records, silencing
from gpupool.simulations.kernel.swarm_options import Options


@contextmanager
def silences_outlast() -> Generator[None]:
    """Let a silence go on until it is lifted or another one is set."""

    def silences_now(state: PoolState, now_ms: int) -> tuple[Silence, ...]:
        del now_ms
        return tuple(each for each in state.silences if not each.lifted)

    with (
        patched(silencing, "silences_now", silences_now),
        patched(view_building, "silences_now", silences_now),
    ):
        yield


def repetition_prolongs() -> AbstractContextManager[None]:
    """Let the table not know an order that it has had."""
    original = silencing.set_silence

    def set_silence(state: PoolState, command: SetSilence) -> Step:
        silences = tuple(replace(each, orders=()) for each in state.silences)
        return original(with_changes(state, silences=silences), command)

    return patched_handler(SetSilence, set_silence)


def client_remembered() -> AbstractContextManager[None]:
    """Let records lose the user's name, and keep that of his machine."""
    original = kept_records.under_pseudonym

    def under_pseudonym(made: LeaseRecord, forgotten: tuple[Forgotten, ...]) -> LeaseRecord:
        return replace(original(made, forgotten), client=made.client)

    return patched(kept_records, "under_pseudonym", under_pseudonym)


def forgets_who_is_there() -> AbstractContextManager[None]:
    """Let users with leases or waiting requests be forgotten."""
    original = kept_records.forget_user

    def forget_user(state: PoolState, command: ForgetUser) -> Step:
        alone = with_changes(state, leases=LeaseTable(), waiting=WaitingTable())
        after, result = original(alone, command)
        return with_changes(after, leases=state.leases, waiting=state.waiting), result

    return patched_handler(ForgetUser, forget_user)


def _ordering(options: Options) -> Options:
    """Return a pool of few clients; they are away often enough to be forgotten."""
    options = replace(options, servers=3, clients=3, think_s=3.0, hold_s=1.0)
    return replace(options, fault_s=10.0, heal_s=1.0)


ORDERS = (
    Mutation(
        "silences-outlast",
        "silences-end",
        "a silence goes on after its end",
        silences_outlast,
        (("silence", 0.5),),
        _ordering,
    ),
    Mutation(
        "repetition-prolongs",
        "silences-end",
        "an order of a silence that is repeated prolongs it",
        repetition_prolongs,
        (("silence", 0.2), ("kill-leader", 1.0), ("reset", 0.5)),
        _ordering,
    ),
    Mutation(
        "client-remembered",
        "forgotten-stay",
        "records of a forgotten user name the client",
        client_remembered,
        (("forget-user", 1.0),),
        _ordering,
    ),
    Mutation(
        "forgets-who-is-there",
        "forgotten-stay",
        "a user who has leases or waits is forgotten",
        forgets_who_is_there,
        (("forget-user", 0.3),),
        lambda options: replace(_ordering(options), clients=12, think_s=0.3),
    ),
)
"""Broken builds of operators' orders on monitoring."""
