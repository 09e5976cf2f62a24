"""What must hold in every state, checked by tests, simulations and, cheaply, in production."""

from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.state import VOTER_COUNT_MAX, Lease, PartStatus, PoolState
from gpupool.pool.policy.rulebook import plus, usage_of


def violations(state: PoolState) -> list[str]:
    """Return every broken invariant as a sentence; an empty list is what should come back."""
    found = _usage_violations(state)
    granted: dict[tuple[ServerId, GpuId], int] = {}
    for lease in state.leases.values():
        found += _lease_violations(state, lease)
        for partition in lease.partitions:
            if lease.parts[partition.server] is not PartStatus.FREED:
                key = (partition.server, partition.gpu)
                granted[key] = granted.get(key, 0) + partition.memory
    for server in state.servers.values():
        for gpu in server.gpus.values():
            total = granted.pop((server.id, gpu.id), 0)
            if total != gpu.memory_granted:
                found.append(f"{gpu.id}: books say {gpu.memory_granted}, leases hold {total}")
            if total and total > gpu.capacity and not gpu.fault:
                found.append(f"{gpu.id}: {total} granted of {gpu.capacity}")
    offered = [g.id for s in state.servers.values() for g in s.gpus.values() if not g.clash]
    if len(set(offered)) != len(offered):
        found.append("a GPU is offered by two servers")
    found += [f"{gpu}: granted but not in the table" for (_, gpu) in granted]
    if len(state.voters()) > VOTER_COUNT_MAX:
        found.append(f"{len(state.voters())} voters")
    for request, lease_id in state.by_request.items():
        if lease_id not in state.leases:
            found.append(f"request {request.hex()} points at no lease")
        if request in state.closed:
            found.append(f"request {request.hex()} is closed and has a lease")
    numbers = [act.number for act in state.acts]
    if numbers != list(range(state.act_count - len(numbers) + 1, state.act_count + 1)):
        found.append(f"{state.act_count} administrative acts, of which {numbers} are kept")
    return found


def _usage_violations(state: PoolState) -> list[str]:
    usage: dict[str, Usage] = {}
    for lease in state.leases.values():
        one, known = usage_of(lease), usage.get(lease.user)
        usage[lease.user] = one if known is None else plus(known, one)
    if usage == state.usage:
        return []
    return [f"the policy's books say {state.usage}, leases hold {usage}"]


def _lease_violations(state: PoolState, lease: Lease) -> list[str]:
    found: list[str] = []
    parts = lease.parts.values()
    if {p.server for p in lease.partitions} != lease.parts.keys():
        found.append(f"lease {lease.id}: parts and partitions name different servers")
    if state.by_request.get(lease.request) != lease.id:
        found.append(f"lease {lease.id}: not found by its request")
    if not set(parts) - {PartStatus.FREED}:
        found.append(f"lease {lease.id}: freed everywhere, and still there")
    if lease.held and PartStatus.ENDING in parts:
        found.append(f"lease {lease.id}: held, with a part ending")
    if len({p.gpu for p in lease.partitions}) != len(lease.partitions):
        found.append(f"lease {lease.id}: two partitions on one GPU")
    return found
