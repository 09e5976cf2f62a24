"""Drains of single GPUs, by order of a person and by a server that sees a sign of a failing GPU.

Automatic drains are bounded: of all GPUs of the pool a tenth at most, or one, is drained so. And a
person who undrains a GPU is obeyed until a sign comes anew.
"""

from gpupool.pool.model.commands import DrainGpu
from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import GpuOrder, PoolState, Server, with_changes
from gpupool.pool.transitions.kept_records import emit_event, record
from gpupool.pool.transitions.servers import order_result, with_order

AUTOMATIC = "auto: "
"""Begins the reason of each drain that no person ordered."""

AUTOMATIC_SHARE = 10
"""One GPU in so many may be drained automatically: the signs may be wrong everywhere at once."""


def drain_gpu(state: PoolState, command: DrainGpu) -> Step:
    """Stop or resume granting on one GPU; running leases go on."""
    server = state.servers.get(command.server)
    if server is None:
        return state, refuse(RefusalKind.NEVER, "no such server")
    known, gpu = server.gpu_orders.get(command.gpu), server.gpus.get(command.gpu)
    if gpu is None and known is None:
        return state, refuse(RefusalKind.NEVER, "no such GPU on that server")
    if (settled := order_result(server, command.order)) is not None:
        return state, settled
    if command.sign:
        if (why := automatic_refusal(state, server, command)) is not None:
            return state, why
    elif command.reason is not None and command.reason.startswith(AUTOMATIC):
        return state, refuse(RefusalKind.INVALID, "a person's reason does not begin so")
    was = known.drain_reason if known else ""
    reason = command.reason or ""
    subject = f"{server.name}/{gpu.index if gpu is not None else command.gpu}"
    if was != reason:
        kind = "drained" if reason else "undrained"
        state = record(state, kind, by=command.by, subject=subject, text=reason)
    gpus = server.gpus
    if gpu is not None:
        gpus = gpus | {gpu.id: with_changes(gpu, drain_reason=reason)}
    orders = server.gpu_orders | {command.gpu: GpuOrder(reason, state.now)}
    if gpu is None and not reason:
        del orders[command.gpu]
    server = with_changes(
        server, gpus=gpus, gpu_orders=orders, orders=with_order(server, command.order)
    )
    state = with_changes(state, servers=state.servers.set(server.id, server))
    if was == reason:
        return state, Result(ok=True, why=f"it was {'' if was else 'not '}drained")
    if not reason:
        return emit_event(state, "undrained", subject, f"by {command.by}"), Result(ok=True)
    text = f"{reason[:200]} (by {command.by})"
    return emit_event(state, "drained", subject, text), Result(ok=True)


def automatic_refusal(state: PoolState, server: Server, command: DrainGpu) -> Result | None:
    """Return why a server may not drain a GPU by itself, or None.

    Args:
        state: the table.
        server: that proposes it, as the table has it.
        command: with the sign, and when it came.
    """
    if command.reason is None or not command.reason.startswith(AUTOMATIC):
        return refuse(RefusalKind.INVALID, f'an automatic drain has a reason with "{AUTOMATIC}"')
    if command.gpu not in server.gpus:
        return refuse(RefusalKind.NEVER, "the GPU is no longer present")
    if (why := holds_back(server, command.gpu, command.onset)) is not None:
        return refuse(RefusalKind.DENIED, why)
    if (drained := automatic_count(state)) >= automatic_max(state):
        return refuse(RefusalKind.DENIED, f"{drained} GPUs are drained automatically already")
    return None


def holds_back(server: Server, gpu: GpuId, onset: int) -> str | None:
    """Return why no sign that came at ``onset`` may drain a GPU: drained, or undrained since."""
    order = server.gpu_orders.get(gpu)
    if order is None:
        return None
    if order.drain_reason:
        return "it is drained already"
    return "it was undrained since" if onset <= order.at else None


def automatic_count(state: PoolState) -> int:
    """Return how many GPUs are drained automatically now, those that are absent too."""
    return sum(
        order.drain_reason.startswith(AUTOMATIC)
        for each in state.servers.values()
        for order in each.gpu_orders.values()
    )


def automatic_max(state: PoolState) -> int:
    """Return how many GPUs of the pool may be drained automatically at a time."""
    count = sum(not gpu.clash for each in state.servers.values() for gpu in each.gpus.values())
    return max(1, count // AUTOMATIC_SHARE)
