"""PyTorch: start, products, convolution, random numbers, copies, graphs, indexing."""

import time

start = time.perf_counter()
import torch

imported = time.perf_counter()
print(f"RESULT import_s {imported - start:.2f}")
x = torch.ones(4, device="cuda")
print("RESULT ones", x.sum().item())
print(f"RESULT first_s {time.perf_counter() - imported:.2f}")
torch.manual_seed(0)
a, b = torch.randn(512, 256), torch.randn(256, 128)
print("RESULT matmul", (a.cuda() @ b.cuda()).abs().sum().item())
half = (a.cuda().bfloat16() @ b.cuda().bfloat16()).float()
print("RESULT bf16", half.abs().sum().item())
layer = torch.nn.Conv2d(3, 8, 3).cuda()
torch.manual_seed(1)
with torch.no_grad():
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.1)
image = torch.randn(2, 3, 32, 32)
output = layer(image.cuda())
output.sum().backward()
print("RESULT conv", output.abs().sum().item(), layer.weight.grad.abs().sum().item())
torch.cuda.manual_seed(5)
print("RESULT random", torch.randn(1000, device="cuda").sum().item())
values = torch.randn(10000)
print("RESULT sort", *values.cuda().sort()[0][:3].tolist())
print("RESULT nonzero", (values.cuda() > 0).nonzero().shape[0])
print("RESULT fft", torch.fft.fft(values.cuda()).abs().sum().item())
matrix = torch.randn(64, 64) + 64 * torch.eye(64)
print("RESULT solve", torch.linalg.solve(matrix.cuda(), torch.ones(64).cuda()).sum().item())
pinned = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
there = pinned.to("cuda", non_blocking=True) * 2
back = torch.empty(1 << 20).pin_memory()
back.copy_(there, non_blocking=True)
torch.cuda.synchronize()
print("RESULT pinned", back[-1].item(), back.sum().item())
q = torch.randn(2, 4, 64, 32).cuda().half()
print(
    "RESULT sdpa",
    torch.nn.functional.scaled_dot_product_attention(q, q, q).float().abs().sum().item(),
)
static = torch.ones(16, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    warm = static * 2 + 1
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = static * 2 + 1
static.fill_(5)
graph.replay()
print("RESULT graph", result.sum().item())
try:
    torch.empty(1 << 45, device="cuda", dtype=torch.uint8)
except torch.cuda.OutOfMemoryError:
    print("RESULT oom 1")
loop = time.perf_counter()
for _ in range(3000):
    static = static * 1.0
torch.cuda.synchronize()
print(f"RESULT multiply_us {(time.perf_counter() - loop) / 3000 * 1e6:.2f}")
loop = time.perf_counter()
for _ in range(300):
    static[0].item()
print(f"RESULT item_us {(time.perf_counter() - loop) / 300 * 1e6:.2f}")
