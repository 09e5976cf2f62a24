"""Two GPUs, a process each: FSDP, sends, reductions of all kinds, layers in two parts."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def work(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(rank)).cuda()
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(x)[:, 0] - x.sum(1)).square().mean()
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    torch.manual_seed(1)
    parts = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parts = parallelize_module(parts, init_device_mesh("cuda", (2,)), plan)
    y = torch.ones(4, 64).cuda()
    whole = parts(y)
    token = torch.full((1000,), float(rank)).cuda()
    if rank == 0:
        dist.send(token + 5, 1)
        dist.recv(token, 1)
    else:
        got = torch.empty_like(token)
        dist.recv(got, 0)
        dist.send(got * 2, 0)
    out = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(out, torch.arange(4.0, device="cuda"))
    swapped = torch.empty(4, device="cuda")
    dist.all_to_all_single(swapped, torch.arange(4.0, device="cuda") + 10 * rank)
    dist.broadcast(y, 1)
    if rank == 0:
        print("RESULT fsdp", loss.item())
        print("RESULT tensor_parallel", whole.abs().sum().item())
        print("RESULT sent", token[0].item(), token.sum().item())
        print("RESULT scattered", *out.tolist())
        print("RESULT swapped", *swapped.tolist(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
