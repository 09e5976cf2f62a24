"""DistributedDataParallel over NCCL: one process for each of two GPUs, a few steps of training."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    total = torch.full((1 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(total)
    parts = [torch.empty(4, device="cuda") for _ in range(2)]
    dist.all_gather(parts, torch.full((4,), float(rank), device="cuda"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    spread = torch.nn.parallel.DistributedDataParallel(model.cuda(), [rank])
    optimizer = torch.optim.SGD(spread.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        x = torch.randn(32, 64).cuda()
        loss = (spread(x)[:, 0] - x.sum(1)).square().mean()
        loss.backward()
        optimizer.step()
    weights = sum(p.abs().sum().item() for p in model.parameters())
    if rank == 0:
        print("RESULT all_reduce", total[0].item(), total[-1].item())
        print("RESULT all_gather", *torch.cat(parts).tolist())
        print("RESULT weights", weights, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
