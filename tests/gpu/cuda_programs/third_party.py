"""Packages with separate kernels. One that is not installed is left out."""

import importlib.util
import subprocess
import warnings
from collections.abc import Callable

import torch
from sections import section

warnings.filterwarnings("ignore")


def random(*shape: int) -> torch.Tensor:
    """Draw on the CPU, so that it is the same everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).cuda()


def needs(*names: str) -> Callable[[Callable[[], object]], object]:
    """Run a section if these packages are there."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return (lambda run: print("left out:", run.__name__, *missing)) if missing else section


@needs("bitsandbytes")
def eight_bits():
    import bitsandbytes as bnb

    torch.manual_seed(0)
    layer = bnb.nn.Linear8bitLt(64, 64, has_fp16_weights=False).cuda()
    out = layer(random(16, 64).half())
    four, state = bnb.functional.quantize_4bit(random(64, 64), quant_type="nf4")
    back = bnb.functional.dequantize_4bit(four, state)
    weight = torch.nn.Parameter(random(128, 64))
    optimizer = bnb.optim.AdamW8bit([weight], lr=1e-2)
    for _ in range(3):
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return out.float().abs().mean().item(), back.abs().mean().item(), weight.abs().mean().item()


@needs("liger_kernel")
def liger():
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerLayerNorm, LigerRMSNorm

    x = random(32, 256).requires_grad_()
    norm = LigerRMSNorm(256).cuda()(LigerLayerNorm(256).cuda()(x))
    loss = LigerCrossEntropyLoss()(norm, torch.arange(32).cuda())
    loss.backward()
    return loss.item(), x.grad.abs().sum().item()


@needs("fla")
def linear_attention():
    from fla.ops.gla import chunk_gla

    q, k, v = (random(1, 128, 2, 64 + i)[..., :64].bfloat16() for i in range(3))
    gate = torch.nn.functional.logsigmoid(random(1, 128, 2, 64))
    out, _ = chunk_gla(q, k, v, gate)
    return out.float().abs().mean().item()


@needs("torchao")
def quantised():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)).cuda().bfloat16()
    quantize_(model, Int8WeightOnlyConfig())
    return model(random(4, 64).bfloat16()).float().abs().sum().item()


@needs("nvmath")
def math():
    import cupy
    import nvmath

    a = cupy.arange(64 * 64, dtype=cupy.float32).reshape(64, 64) / 4096
    product = nvmath.linalg.advanced.matmul(a, a)
    return float(product.sum()), float(abs(nvmath.fft.fft(a.astype(cupy.complex64))).sum())


@needs("nvitop")
def watched():
    from nvitop import Device

    devices = Device.all()
    return len(devices), devices[0].name(), devices[0].memory_total() > 1 << 30


@section
def tools():
    """Ask ``nvidia-smi`` as scripts do; a lease has less memory, so that is not compared."""
    words = ["nvidia-smi", "--query-gpu=name,index,memory.total", "--format=csv,noheader,nounits"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    shown = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False)
    print(asked.stdout, shown.stdout, sep="\n", flush=True)
    first = listed.stdout.splitlines()[0]
    return asked.stdout.split(", ")[:2], first, "CUDA Version" in shown.stdout
