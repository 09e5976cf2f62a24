"""Broken builds of the records of ended leases."""

from contextlib import AbstractContextManager
from dataclasses import replace

from tests.simulations.mutations.patching import patched

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Lease, PoolState, with_changes
from gpupool.pool.transitions import leases
from gpupool.pool.transitions.kept_records import record_part


def counted_to_the_end() -> AbstractContextManager[None]:
    def record(state: PoolState, lease: Lease, server: ServerId) -> PoolState:
        state = record_part(state, lease, server)
        *others, last = state.records
        last = replace(last, freed_at=last.ended_at)
        return with_changes(state, records=(*others, last))

    return patched(leases, "record_part", record)


def suspended_counted() -> AbstractContextManager[None]:
    def record(state: PoolState, lease: Lease, server: ServerId) -> PoolState:
        state = record_part(state, lease, server)
        *others, last = state.records
        return with_changes(state, records=(*others, replace(last, away=())))

    return patched(leases, "record_part", record)


def restart_unrecorded() -> AbstractContextManager[None]:
    def record(state: PoolState, lease: Lease, server: ServerId) -> PoolState:
        if lease.end_reason.endswith("restarted"):
            return state
        return record_part(state, lease, server)

    return patched(leases, "record_part", record)
