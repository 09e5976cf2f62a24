"""Two GPUs as people start them: torchrun, accelerate, memory that processes see of each other."""

import os
import subprocess
import sys

import torch
from sections import section

WORK = """
import torch, torch.distributed as dist, os
from torch.distributed import _symmetric_memory as symmetric
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.full((1000,), float(rank + 1)).cuda()
dist.all_reduce(x)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).cuda())
model(torch.full((4, 8), float(rank)).cuda()).sum().backward()
words = [x.sum().item(), model.module.weight.grad.sum().item()]
if os.environ.get("SYMMETRIC"):
    own = symmetric.empty(256, device="cuda")
    handle = symmetric.rendezvous(own, dist.group.WORLD)
    own.fill_(rank + 10)
    handle.barrier(0)
    other = handle.get_buffer(1 - rank, (256,), torch.float32)
    words.append(other.sum().item())
    handle.barrier(1)
if rank == 0:
    print("FOUND", *words, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def started(*words: str, **settings: str) -> str:
    """Run the work above by a launcher, and return the first process's output."""
    path = f"/tmp/launched-{os.getpid()}.py"
    with open(path, "w") as file:
        file.write(WORK)
    done = subprocess.run([sys.executable, "-m", *words, path], capture_output=True, text=True,
                          env=os.environ | settings, check=False)  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    if not found:
        print(done.stdout[-2000:], done.stderr[-9000:], flush=True)
        return f"exit {done.returncode}"
    return found[0]


@section
def torchrun():
    return started("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@section
def symmetric():
    words = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return started(*words, SYMMETRIC="1")


@section
def accelerate():
    words = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    return started("accelerate.commands.launch", *words.split())


print("RESULT devices", torch.cuda.device_count())
