"""PyTorch over NCCL with a process for each of two GPUs: the use of a lease on two servers.

Arguments: reduce, collectives, ddp, fsdp or hold; --short. With RANK in the environment it is that
rank alone; else it starts two processes.
"""

import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WIDTH, HEADS, LAYERS, LENGTH, WORDS, BATCH = 768, 12, 6, 512, 16384, 4


def say(*words: object) -> None:
    if dist.get_rank() == 0:
        print(*words, flush=True)


def reduce() -> None:
    """All-reduce of 1 KiB to 1 GiB: results and bus bandwidth."""
    for power in range(10, 31, 4):
        count, rounds = (1 << power) // 4, 50 if power < 24 else 10 if power < 30 else 5
        data = torch.arange(count, device="cuda", dtype=torch.float32).remainder_(97)
        wanted = data * 2 + 1
        data += dist.get_rank()
        dist.all_reduce(data)
        good = bool(torch.equal(data, wanted))
        del wanted
        times: list[float] = []
        for _ in range(3):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(rounds):
                dist.all_reduce(data)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) / rounds)
        took = statistics.median(times)
        say("RESULT", f"reduced_{power}", good)
        say("FIGURE", f"all-reduce of 2^{power} bytes", f"{(1 << power) / took / 1e9:.4f}", "GB/s")


def collectives() -> None:
    """Try the other collectives, sends, splits, bfloat16, captured graphs."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    mine = torch.full((1000,), rank + 1.0, device="cuda")
    parts = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(parts, mine)
    say("RESULT gathered", parts[0].sum().item(), parts[1].sum().item())
    out = torch.empty(500, device="cuda")
    dist.reduce_scatter_tensor(out, mine)
    say("RESULT scattered", out.sum().item())
    dist.broadcast(mine, 1)
    say("RESULT broadcast", mine.sum().item())
    got = torch.empty_like(mine)
    mine.fill_(rank + 5.0)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, got, other)]
    ):
        work.wait()
    say("RESULT received", got.sum().item())
    swapped = torch.empty_like(mine)
    dist.all_to_all_single(swapped, mine)
    say("RESULT swapped", swapped.sum().item())
    half = mine.bfloat16()
    dist.all_reduce(half, dist.ReduceOp.AVG)
    say("RESULT average", half.float().sum().item())
    alone = [dist.new_group([at]) for at in range(2)]
    dist.all_reduce(mine, group=alone[rank])
    say("RESULT alone", mine.sum().item())
    graph = torch.cuda.CUDAGraph()
    static = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(static)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    say("RESULT replayed", static.sum().item())


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.attend(self.first(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.wide(self.second(x))


def train(kind: str, short: bool) -> None:
    """Train a model like GPT-2 for some steps: losses, and steps in a second."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS)
    ).cuda()
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        spread: nn.Module = fully_shard(model)
    else:
        spread = nn.parallel.DistributedDataParallel(model, [torch.cuda.current_device()])
    optimizer = torch.optim.SGD(spread.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), device="cuda")
    losses: list[torch.Tensor] = []
    started = 0.0
    count = 8 if short else 30
    for step in range(count):
        if step == 5:
            torch.cuda.synchronize()
            started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            said = spread(words[:, :-1])
            loss = nn.functional.cross_entropy(said.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    rate = (count - 5) / (time.perf_counter() - started)
    # Native runs differ from one another in the fourth decimal; the check allows for that.
    say("RESULT losses", *(f"{loss.item():.4f}" for loss in losses[:: count // 4]))
    say("FIGURE", f"{kind} of {LAYERS} layers", f"{rate:.3f}", "steps/s")


def hold() -> None:
    """Reduce until something fails."""
    data = torch.ones(1 << 24, device="cuda")
    dist.all_reduce(data)
    torch.cuda.synchronize()
    say("holding")
    try:
        while True:
            dist.all_reduce(data, dist.ReduceOp.AVG)
            torch.cuda.synchronize()
    except RuntimeError as error:
        print("heard", type(error).__name__, str(error).splitlines()[0], flush=True)
        os._exit(1)


def work(rank: int, local: int, words: list[str]) -> None:
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", local))
    what = words[0]
    if what in ("ddp", "fsdp"):
        train(what, "--short" in words)
    else:
        {"reduce": reduce, "collectives": collectives, "hold": hold}[what]()
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def start(rank: int, words: list[str]) -> None:
    work(rank, rank, words)


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), sys.argv[1:])
    else:
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        mp.spawn(start, (sys.argv[1:],), nprocs=2)
