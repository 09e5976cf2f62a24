"""One physical GPU is offered by one server of the pool, whatever servers show it."""

from dataclasses import replace

from gpupool.pool.model.copies import with_changes
from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.state import Gpu, PoolState, Server
from gpupool.pool.transitions.leases import note

UNSETTLED = "not settled yet"
"""The clash of a GPU that its server has not shown before; ``settle_clashes`` decides."""


def settle_clashes(state: PoolState) -> PoolState:
    """Return ``state`` with every physical GPU offered by one server only.

    Two servers show the same GPU when two run on one host, or when a host came back under a new
    identity. Whoever offered it first keeps it until that server is removed or lacks the GPU.
    """
    owners: dict[GpuId, Server] = {}
    for server in state.servers.values():
        for gpu in server.gpus.values():
            if not gpu.clash:
                owners[gpu.id] = server
    servers = dict(state.servers)
    for server in state.servers.values():
        changed: dict[GpuId, Gpu] = {}
        for gpu in server.gpus.values():
            owner = owners.setdefault(gpu.id, server)
            clash = "" if owner.id == server.id else f"already offered by server {owner.name}"
            if clash != gpu.clash:
                changed[gpu.id] = replace(gpu, clash=clash)
                if clash:
                    what = f"{server.name}/{gpu.index}"
                    state = note(state, "gpu-clash", what, clash)
        if changed:
            servers[server.id] = with_changes(server, gpus=server.gpus | changed)
    return with_changes(state, servers=servers)
