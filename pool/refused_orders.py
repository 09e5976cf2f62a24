"""The message to a person when the pool refuses an order about a lease.

It says what was not done, where the lease is now, why, and what to do next. Results of the table
say why alone, and stay in the words of their version: servers compare them.
"""

from gpupool.pool.errors import DeniedError, GpupoolError, NotNowError, UsageError
from gpupool.pool.model.commands import NAMES, SINCE, Command, EndLease
from gpupool.pool.model.ids import lease_name
from gpupool.pool.model.relocation import RelocateLease
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import Lease, PoolState, ServerStatus
from gpupool.pool.model.suspension import MoveLease, ResumeLease, SuspendLease, SuspensionState

DONE: dict[type[Command], str] = {
    EndLease: "ended",
    SuspendLease: "suspended",
    ResumeLease: "resumed",
    MoveLease: "moved",
    RelocateLease: "moved",
}
LEASES_HINT = '"gpupool leases" shows those that it has'
GPUS_HINT = '"gpupool gpus" shows the GPUs by number and id, and what is free on each'


def check_known_to_all(state: PoolState, command: Command) -> None:
    """Refuse a command for which a server of the pool is too old, if it has ever been up.

    Raises:
        NotNowError: when there is such a server.
    """
    name = NAMES[type(command)]
    since = SINCE.get(name, 0)
    been_up = [s for s in state.servers.values() if s.status is not ServerStatus.JOINED]
    old = sorted(each.name for each in been_up if each.formats < since)
    if old:
        verb, _, noun = name.partition("-")
        raise NotNowError(
            f"this pool cannot {verb} a {noun} yet",
            why=f"{', '.join(old)[:100]} {'has' if len(old) == 1 else 'have'} an older gpupool",
            hint="upgrade these servers first",
        )


def refusal_of(order: Command, lease: Lease, result: Result, state: PoolState) -> GpupoolError:
    """Return the error by which the pool answers an order that its table refuses."""
    if result.kind == RefusalKind.CLOSED:
        return UsageError(result.why, hint=LEASES_HINT)
    if result.kind in (RefusalKind.NEVER, RefusalKind.INVALID):
        moves = isinstance(order, MoveLease | RelocateLease)
        return UsageError(result.why, hint=GPUS_HINT if moves else "")
    what = f"lease {lease_name(lease.id)} was not {DONE[type(order)]}, and {_now(state, lease)}"
    if result.kind != RefusalKind.BUSY:
        return DeniedError(what, why=result.why)
    return NotNowError(what, why=result.why, hint=_hint(order, lease))


def places_text(state: PoolState, lease: Lease) -> str:
    """Return a lease's GPUs, for people: ``GPU 2 of gpu-a``."""
    places: list[str] = []
    ending = lease.relocation.ending if lease.relocation is not None else None
    for part in lease.partitions:
        if part.server == ending:
            continue
        server = state.servers.get(part.server)
        gpu = server.gpus.get(part.gpu) if server is not None else None
        where = server.name if server is not None else part.server
        places.append(f"GPU {gpu.index if gpu is not None else part.gpu} of {where}")
    return ", ".join(places[:4]) + ("" if len(places) <= 4 else f" and {len(places) - 4} more")


def _now(state: PoolState, lease: Lease) -> str:
    """Return the present state of a lease, as a phrase."""
    found, leaves = lease.suspension, lease.relocation
    if leaves is not None and leaves.ending is None:
        target = state.servers.get(leaves.target)
        return f"is being moved to {target.name if target is not None else leaves.target}"
    if found is None:
        return f"runs on with {places_text(state, lease)}"
    if found.state is SuspensionState.SUSPENDED:
        return "stays suspended"
    return f"is being {'moved' if found.moves else _GERUNDS[found.state]}"


_GERUNDS = {SuspensionState.SUSPENDING: "suspended", SuspensionState.RESUMING: "resumed"}


def _is_suspended(lease: Lease) -> bool:
    return lease.suspension is not None and lease.suspension.state is SuspensionState.SUSPENDED


def _hint(order: Command, lease: Lease) -> str:
    """Return the next step for a person after an order about a lease was refused."""
    name = lease_name(lease.id)
    if isinstance(order, MoveLease) and _is_suspended(lease):
        return f'{GPUS_HINT}; "gpupool resume {name}" has it go on with its own once they have room'
    if lease.suspension is not None:
        return f'"gpupool leases" shows when {name} runs; try again then'
    return GPUS_HINT if isinstance(order, MoveLease | RelocateLease) else ""
