"""PyTorch with two GPUs in one process and no NCCL: calls that also work across two servers.

With the argument "hold": keep both GPUs busy until an error comes, and say which.
"""

import copy
import sys
import time

import torch


def hold() -> None:
    tensors = [torch.ones(256, 256, device=f"cuda:{device}") for device in range(2)]
    for tensor in tensors:
        tensor @= tensor / 256
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    print("holding", flush=True)
    try:
        while True:
            tensors[1] = (tensors[0] @ tensors[0] / 256).to("cuda:1")
            tensors[0] = (tensors[1] @ tensors[1] / 256).to("cuda:0")
            tensors[0].sum().item()
    except RuntimeError as error:
        print("error:", str(error).splitlines()[0], flush=True)
    sys.exit(7)


if sys.argv[1:] == ["hold"]:
    hold()
print("RESULT devices", torch.cuda.device_count())
torch.manual_seed(0)
a = torch.randn(512, 512)
one, two = a.cuda(0), a.cuda(1)
print("RESULT products", (one @ one).sum().item(), (two @ two).sum().item())
there = (one * 2).to("cuda:1")
print("RESULT peer", bool(torch.equal(there.cpu(), a * 2)), there.device.index)
back = (there + 1).to("cuda:0")
print("RESULT back", bool(torch.equal(back.cpu(), a * 2 + 1)), back.device.index)
large = torch.arange(64 << 20, dtype=torch.int32, device="cuda:1")
home = large.to("cuda:0", non_blocking=True)
print("RESULT large", bool((home.cpu() == torch.arange(64 << 20, dtype=torch.int32)).all()))
strided = torch.empty(512, 1024, device="cuda:1")[:, ::2]
strided.copy_(one.t())
print("RESULT strided", bool(torch.equal(strided.cpu(), a.t())))
first, second = torch.cuda.Stream(0), torch.cuda.Stream(1)
with torch.cuda.stream(first):
    x = one
    for _ in range(50):
        x = x @ one / 512
    event = first.record_event()
second.wait_event(event)
with torch.cuda.stream(second):
    y = x.to("cuda:1", non_blocking=True) + 1
torch.cuda.synchronize(1)
print("RESULT ordered", y.sum().item())

# The layers of a model on two devices; then its replicas, whose gradients are added up.
layers = torch.nn.Linear(512, 256).cuda(0), torch.nn.Linear(256, 8).cuda(1)
loss = layers[1](torch.relu(layers[0](one)).to("cuda:1")).square().mean()
loss.backward()
print("RESULT pipeline", loss.item(), layers[0].weight.grad.abs().sum().item())
model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
replicas = [copy.deepcopy(model).cuda(device) for device in range(2)]
steps = [torch.optim.AdamW(replica.parameters(), 1e-3) for replica in replicas]
for _ in range(5):
    losses = []
    for device, replica in enumerate(replicas):
        part = a[device * 256 : (device + 1) * 256].cuda(device)
        losses.append(replica(part).square().mean())
    for part_loss in losses:
        part_loss.backward()
    for p, q in zip(replicas[0].parameters(), replicas[1].parameters(), strict=True):
        total = p.grad + q.grad.to("cuda:0")
        p.grad.copy_(total)
        q.grad.copy_(total)
    for step in steps:
        step.step()
        step.zero_grad()
same = all(
    torch.equal(p.cpu(), q.cpu())
    for p, q in zip(replicas[0].parameters(), replicas[1].parameters(), strict=True)
)
print("RESULT replicas", same, *(one.item() for one in losses))
graph, static = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda:1")
with torch.cuda.device(1):
    for _ in range(3):
        static.mul_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        static.add_(1)
for _ in range(10):
    graph.replay()
print("RESULT graph", static.sum().item())
pinned = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
print(
    "RESULT pinned",
    *(pinned.to(f"cuda:{device}", non_blocking=True).sum().item() for device in range(2)),
)
print("RESULT memory", torch.cuda.memory_allocated(1) > 0)
for name, source, target in (("forth", 0, 1), ("back", 1, 0)):
    bytes_ = torch.empty(256 << 20, dtype=torch.uint8, device=f"cuda:{source}")
    bytes_.to(f"cuda:{target}")
    torch.cuda.synchronize(target)
    start = time.perf_counter()
    for _ in range(3):
        bytes_.to(f"cuda:{target}")
    torch.cuda.synchronize(target)
    print(f"RESULT {name}_GBps {3 * 0.268435456 / (time.perf_counter() - start):.2f}")
