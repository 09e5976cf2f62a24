"""PyTorch's tools: extensions in CUDA, exported models, autotuning, graphs, profiling, errors."""

import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import torch
from sections import section
from torch import nn

warnings.filterwarnings("ignore")
os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")


def random(*shape: int) -> torch.Tensor:
    """Draw on the CPU, so that it is the same everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).cuda()


@section
def extension():
    from torch.utils.cpp_extension import load_inline

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        module = load_inline(
            "scaled",
            cpp_sources="torch::Tensor scaled(torch::Tensor x, double by);",
            cuda_sources="""
            #include <c10/cuda/CUDAStream.h>
            __global__ void scale(float *x, float by, int n) {
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < n) x[i] *= by;
            }
            torch::Tensor scaled(torch::Tensor x, double by) {
                auto y = x.clone();
                int n = y.numel();
                scale<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
                    y.data_ptr<float>(), float(by), n);
                return y;
            }""",
            functions=["scaled"],
            build_directory=folder,
        )
        made = module.scaled(random(100, 7), 3.0)
    print(f"RESULT extension_s {time.monotonic() - start:.1f}")
    return made.abs().sum().item()


@section
def flexible():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = random(1, 2, 256, 64)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")
    made = torch.compile(flex_attention)(q, q, q, block_mask=mask)
    return made.abs().mean().item()


@section
def tuned():
    product = torch.compile(
        lambda x, y: torch.relu(x @ y), mode="max-autotune-no-cudagraphs", dynamic=False
    )
    return product(random(256, 512).bfloat16(), random(512, 256).bfloat16()).float().mean().item()


@section
def graphed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    x = random(16, 32)
    called = torch.cuda.make_graphed_callables(model, (x.clone().requires_grad_(),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = (called(x)[:, 0] - x.sum(1)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


@section
def pools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = random(1000, 100)
    return kept.abs().mean().item(), len(pool.snapshot()) > 0


@section
def offloaded():
    x = random(64, 64).requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x.sin() * x.exp()).sum()
    y.backward()
    return x.grad.abs().sum().item()


@section
def together():
    found = [0.0] * 6

    def work(number: int) -> None:
        stream = torch.cuda.Stream(priority=-(number % 2))
        with torch.cuda.stream(stream):
            x = random(64, 64 + number)
            total = torch.zeros(64, 64, device="cuda")
            for turn in range(50):
                total += (x * turn) @ x.T
            event = stream.record_event()
            total.record_stream(torch.cuda.default_stream())
        event.synchronize()
        found[number] = total.abs().sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@section
def exchanged():
    import cupy
    from numba import cuda

    x = random(10, 10)
    there = cupy.from_dlpack(x)
    there *= 2
    back = torch.from_dlpack(there + 1)
    viewed = cuda.as_cuda_array(back)
    return back.sum().item(), float(viewed.copy_to_host().sum())


@section
def full():
    """Take memory to the end, twice, and go on."""
    counts = []
    for _ in range(2):
        kept = []
        try:
            while True:
                kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            counts.append(len(kept))
        del kept
        torch.cuda.empty_cache()
    return counts[0] == counts[1], counts[0] > 3, random(50, 50).sum().item()


@section
def profiled():
    """CUPTI is not behind the door; the program must go on without its figures."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, record_shapes=True) as found:
        value = (random(64, 64) @ random(64, 64)).sum().item()
    on_device = sum(event.device_type.name == "CUDA" for event in found.events())
    print("device events", on_device, flush=True)
    with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range("part"):
        random(8, 8).sum().item()
    return value, any("mm" in row.key for row in found.key_averages())


@section
def asked():
    numbers = [torch.cuda.temperature(), torch.cuda.power_draw(), torch.cuda.utilization()]
    torch.cuda.memory._record_memory_history()
    kept = random(10, 10)
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    done = subprocess.run([sys.executable, "-m", "torch.utils.collect_env"], capture_output=True,
                          text=True, check=False)  # fmt: skip
    named = [line for line in done.stdout.splitlines() if line.startswith(("GPU ", "Is CUDA"))]
    named = named[:2]  # natively, nvidia-smi does not heed CUDA_VISIBLE_DEVICES
    return all(n >= 0 for n in numbers), len(snapshot["segments"]) > 0, kept.numel(), named


@section
def jitted():
    made = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T half_square(T x) { return x * x / T(2); }"
    )(random(100))
    return made.sum().item()


@section
def asserted():
    """Raise a device-side assert in a separate process, with CUDA's error text."""
    code = (
        "import torch; x = torch.zeros(4).cuda(); i = torch.tensor([9]).cuda()\n"
        "try: x[i].sum().item()\n"
        "except RuntimeError as e: print(str(e).splitlines()[0])\n"
        "try: torch.ones(3).cuda().sum().item()\n"
        "except RuntimeError as e: print(str(e).splitlines()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()
