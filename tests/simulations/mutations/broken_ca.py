"""Broken builds of the CA's exchange."""

from contextlib import AbstractContextManager

from tests.simulations.mutations.patching import patched

from gpupool.pool.model.state import PoolState, Server
from gpupool.pool.transitions import authorities


def dropped_while_used() -> AbstractContextManager[None]:
    def not_moved(state: PoolState) -> tuple[Server, ...]:
        del state
        return ()

    return patched(authorities, "not_moved", not_moved)
