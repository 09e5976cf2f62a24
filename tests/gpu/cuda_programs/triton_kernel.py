"""Triton: a sum of vectors with a mask, a row's softmax, and a product on the tensor cores."""

import time

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def product(a, b, c, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, n, BLOCK):
        inner = k + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        total += tl.dot(left, tl.load(b + inner[:, None] * n + columns[None, :]))
    tl.store(c + rows[:, None] * n + columns[None, :], total)


torch.manual_seed(0)
x, y = torch.randn(98_765).cuda(), torch.randn(98_765).cuda()
out = torch.empty_like(x)
start = time.perf_counter()
add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
torch.cuda.synchronize()
print(f"RESULT first_s {time.perf_counter() - start:.2f}")
print("RESULT add", bool(torch.equal(out, x + y)), out.sum().item())
table = torch.randn(200, 781).cuda()
rows = torch.empty_like(table)
softmax[(200,)](table, rows, 781, BLOCK=1024)
print("RESULT softmax", bool(torch.allclose(rows, table.softmax(1), atol=1e-6)))
a, b = torch.randn(256, 256).cuda().half(), torch.randn(256, 256).cuda().half()
c = torch.empty(256, 256).cuda()
product[lambda meta: (256 // meta["BLOCK"], 256 // meta["BLOCK"])](a, b, c, 256)
print("RESULT product", bool(torch.allclose(c, (a @ b).float(), atol=0.2)), c.abs().sum().item())
