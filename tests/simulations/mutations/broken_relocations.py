"""Broken builds of leases that go to another server."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tests.simulations.mutations.mutation import Mutation, two_gpus
from tests.simulations.mutations.patching import patched, patched_handler

from gpupool.monitoring import usage_store
from gpupool.pool import reconcile, view_building
from gpupool.pool.model.commands import FreeLease
from gpupool.pool.model.relocation import ConfirmRelocated
from gpupool.pool.model.results import Step
from gpupool.pool.model.state import Lease, PoolState
from gpupool.pool.transitions import lease_relocations
from gpupool.pool.transitions.leases import free_part
from gpupool.pool.view import Stay
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server import reconciler
from gpupool.remoting.server.relocating import relocation_service
from gpupool.simulations.kernel.swarm_options import Options


def goes_on_undecided() -> AbstractContextManager[None]:
    """Let a server tell a program to go on that is to stay."""

    def has_gone(lease: Lease, message: m.GoOn) -> bool:
        del lease, message
        return True

    return patched(relocation_service, "_has_gone", has_gone)


def left_part_freed_at_once() -> AbstractContextManager[None]:
    """Give the memory on the old server back before it has killed the remaining processes."""
    original = lease_relocations.confirm_relocated

    def confirm_relocated(state: PoolState, command: ConfirmRelocated) -> Step:
        state, result = original(state, command)
        lease = state.leases.get(command.lease)
        if result.ok and lease is not None:
            state = free_part(state, lease, command.server)
        return state, result

    return patched_handler(ConfirmRelocated, confirm_relocated)


def kept_part_uncharged() -> AbstractContextManager[None]:
    """Let a lease have memory on its new server that is not counted there."""

    def charge(state: PoolState, partitions: object, *, sign: int) -> PoolState:
        del partitions, sign
        return state

    return patched(lease_relocations, "charge", charge)


def left_part_never_freed() -> AbstractContextManager[None]:
    """Let servers keep the part of a lease that has gone, or never came."""
    original = reconcile.plan_host

    def plan_host(state: PoolState, *rest: Any) -> reconcile.HostPlan:
        plan = original(state, *rest)
        frees = (each for each in plan.propose if isinstance(each, FreeLease))
        kept = {each for each in frees if state.leases[each.lease].held}
        return replace(plan, propose=tuple(each for each in plan.propose if each not in kept))

    return patched(reconciler, "plan_host", plan_host)


def stays_not_told_apart() -> AbstractContextManager[None]:
    """Let the accounts have one record of a lease and a server, as they had once."""
    make = usage_store._MAKE  # pyright: ignore[reportPrivateUsage]
    merging = make.replace("(lease, server, number)", "(lease, server)")
    return patched(usage_store, "_MAKE", merging)


def counts_from_its_grant() -> AbstractContextManager[None]:
    """Let a view not say since when a moved lease has been on its server, as it did once."""

    def stays(lease: Lease) -> tuple[Stay, ...]:
        del lease
        return ()

    return patched(view_building, "_stays", stays)


def _long(options: Options) -> Options:
    return replace(two_gpus(options), hold_s=30.0, fault_s=8.0, heal_s=12.0)


def _back_and_forth(options: Options) -> Options:
    return replace(_long(options), servers=3, clients=2, fault_s=12.0)


RELOCATIONS = (
    Mutation(
        "goes-on-undecided",
        "runs-once",
        "a server tells a program to go on with another server before the pool has decided",
        goes_on_undecided,
        (("relocate", 0.4), ("isolate-leader", 4.0), ("pause", 3.0)),
        two_gpus,
    ),
    Mutation(
        "left-part-freed-at-once",
        "freed-is-gone",
        "memory of a lease that has gone is given back before its old workers are",
        left_part_freed_at_once,
        (("relocate", 0.4),),
        two_gpus,
    ),
    Mutation(
        "left-part-never-freed",
        "relocations-end",
        "a server never gives back the part of a lease that has gone from it",
        left_part_never_freed,
        (("relocate", 0.4),),
        _long,
    ),
    Mutation(
        "kept-part-uncharged",
        "table-sound",
        "memory on the new server is granted twice while a lease is on its way",
        kept_part_uncharged,
        (("relocate", 0.4),),
        two_gpus,
    ),
    Mutation(
        "stays-not-told-apart",
        "accounts-close",
        "the accounts drop the record of a lease that came back to a server",
        stays_not_told_apart,
        (("relocate", 0.4),),
        _back_and_forth,
    ),
    Mutation(
        "counts-from-its-grant",
        "accounts-close",
        "a moved lease that is not over counts on its server since its grant",
        counts_from_its_grant,
        (("relocate", 0.4),),
        two_gpus,
    ),
)
"""Runs in which leases are moved all the time."""
