"""torch.compile: a network with Inductor's kernels, forward and backward, and its graphs."""

import time

import torch

torch.manual_seed(0)
layers = torch.nn.Sequential(
    torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 64)
).cuda()
values = torch.randn(128, 256)


def loss(x):
    return torch.nn.functional.softmax(layers(x), dim=-1).square().sum()


x = values.cuda()
plain = loss(x)
start = time.perf_counter()
compiled = torch.compile(loss)
made = compiled(x)
print(f"RESULT compile_s {time.perf_counter() - start:.2f}")
print("RESULT forward", made.item(), bool(torch.allclose(made, plain, rtol=1e-3)))
made.backward()
print("RESULT gradient", sum(p.grad.abs().sum().item() for p in layers.parameters()))
reduced = torch.compile(loss, mode="reduce-overhead")
with torch.no_grad():
    for _ in range(4):
        again = reduced(x).clone()
    print("RESULT graphs", again.item(), bool(torch.allclose(again, plain, rtol=1e-3)))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(200):
        reduced(x)
    torch.cuda.synchronize()
    print(f"RESULT replay_us {(time.perf_counter() - start) / 200 * 1e6:.1f}")
