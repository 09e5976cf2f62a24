"""Broken builds of the CA's exchange, and of the holders of its key."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from tests.simulations.mutations.patching import patched

from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState, Server, with_changes
from gpupool.pool.transitions import authorities, servers
from gpupool.simulations.cluster import simulated_ca

KEY_S = 10.0
"""A key is on its way for so long, which is rare in real pools, and so in seeds."""


def dropped_while_used() -> AbstractContextManager[None]:
    def not_moved(state: PoolState) -> tuple[Server, ...]:
        del state
        return ()

    return patched(authorities, "not_moved", not_moved)


@contextmanager
def last_key_leaves() -> Generator[None]:
    """Remove the last server that has the key, while others wait for it."""
    refusal = servers._removal_refusal  # pyright: ignore[reportPrivateUsage]

    def unaware(state: PoolState, server: Server, by: str) -> Result | None:
        return refusal(state, with_changes(server, has_keys=False), by)

    with (
        patched(servers, "_removal_refusal", unaware),
        patched(simulated_ca, "MESSAGE_S", KEY_S),
    ):
        yield
