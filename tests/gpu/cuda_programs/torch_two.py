"""PyTorch with two GPUs in one process: copies between them, events, DataParallel."""

import torch

print("RESULT devices", torch.cuda.device_count())
torch.manual_seed(0)
a = torch.randn(512, 512)
one, two = a.cuda(0), a.cuda(1)
print("RESULT products", (one @ one).sum().item(), (two @ two).sum().item())
there = (one * 2).to("cuda:1")
print("RESULT peer", bool(torch.equal(there.cpu(), a * 2)), there.device.index)
large = torch.arange(64 << 20, dtype=torch.int32, device="cuda:1")
back = large.to("cuda:0", non_blocking=True)
print("RESULT large", bool((back.cpu() == torch.arange(64 << 20, dtype=torch.int32)).all()))
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
model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
spread = torch.nn.DataParallel(model.cuda(0), [0, 1])
loss = spread(one).square().mean()
loss.backward()
print("RESULT parallel", loss.item(), model[0].weight.grad.abs().sum().item())
print("RESULT memory", torch.cuda.memory_allocated(1) > 0)
