"""GPUs kept for the request that goes first, also when several servers have room."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool.policy_kit import GIB, A, B, Pool

from gpupool.pool.model.ids import Milliseconds, RequestId, ServerId
from gpupool.pool.model.state import PoolState, Request, Waiting
from gpupool.pool.scheduling.fairness import needed_by
from gpupool.pool.scheduling.placement import has_room_together


def with_free(free_gib: dict[ServerId, tuple[int, ...]]) -> PoolState:
    """Return a pool of GPUs of 80 GiB with so much memory free."""
    state = Pool().state
    servers = state.servers
    for server_id, frees in free_gib.items():
        server = servers[server_id]
        gpus = {
            gpu.id: replace(gpu, memory_granted=gpu.capacity - free * GIB)
            for gpu, free in zip(server.gpus.values(), frees, strict=False)
        }
        servers = servers.set(server_id, replace(server, gpus=gpus))
    return replace(state, servers=servers)


def kept_for(state: PoolState, request: Request) -> set[str]:
    waiting = Waiting(request, "ada", 0, Milliseconds(0), Milliseconds(0), "")
    return {gpu for _, gpu in needed_by(state, waiting)}


def two_whole(*, across: bool = False) -> Request:
    return Request(RequestId(bytes(16)), 2, 1.0, 0, across=across)


def test_a_gpu_that_is_ready_counts_more_than_bytes_that_are_missing() -> None:
    state = with_free({A: (80, 10, 0, 0), B: (60, 60, 0, 0)})
    assert kept_for(state, two_whole()) == {f"{A}-0", f"{A}-1"}
    state = with_free({A: (79, 10, 0, 0), B: (60, 60, 0, 0)})
    assert kept_for(state, two_whole()) == {f"{B}-0", f"{B}-1"}


def test_servers_that_are_as_near_are_taken_by_their_names() -> None:
    state = with_free({A: (60, 60, 0, 0), B: (60, 60, 0, 0)})
    assert kept_for(state, two_whole()) == {f"{A}-0", f"{A}-1"}


@pytest.mark.parametrize(
    ("free", "room"),
    [
        ({A: (80, 0, 0, 0), B: (80, 0, 0, 0)}, True),
        ({A: (80, 0, 0, 0), B: (79, 0, 0, 0)}, False),
        ({A: (0, 0, 0, 0), B: (80, 80, 0, 0)}, True),
    ],
)
def test_servers_have_room_together_for_as_many_as_are_asked_for(
    free: dict[ServerId, tuple[int, ...]], room: bool
) -> None:
    state = with_free(free)
    assert has_room_together(state, state.servers.values(), two_whole(across=True)) is room


@given(
    changes=st.lists(
        st.tuples(st.sampled_from([A, B]), st.tuples(*[st.integers(0, 80)] * 4), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    across=st.booleans(),
)
def test_what_is_remembered_of_servers_is_what_a_new_look_finds(
    changes: list[tuple[ServerId, tuple[int, ...], bool]], across: bool
) -> None:
    state = Pool().state
    request = two_whole(across=across)
    for server_id, frees, drained in changes:
        changed = with_free({server_id: frees}).servers[server_id]
        changed = replace(changed, drain_reason="fans" if drained else "")
        state = replace(state, servers=state.servers.set(server_id, changed))
        # An equal request that is another object is looked at anew.
        assert kept_for(state, request) == kept_for(state, replace(request))
