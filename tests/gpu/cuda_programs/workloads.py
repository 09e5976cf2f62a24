"""Workloads of PyTorch and JAX, one round at a time, for ``tests/benchmarks/cuda_workloads.py``.

Reads lines from its standard input: ``make NAME`` prepares a workload and answers ``READY value``,
where value is a result that must be the same everywhere; ``play NAME STEPS`` runs steps and answers
``MS milliseconds`` of one. What fails answers ``FAILED why``.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Made = tuple[Callable[[], object], Callable[[], object]]
"""A step, and what waits for all steps."""


def torch_made(step: Callable[[], object]) -> Made:
    import torch

    return step, torch.cuda.synchronize


def training(model: Any, data: Any, labels: Any, dtype: Any) -> Callable[[], object]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            output = model(data)
            loss = torch.nn.functional.cross_entropy(
                output.float().flatten(0, -2), labels.flatten()
            )
        loss.backward()
        optimizer.step()
        return loss

    return step


def gpt2_train() -> Made:
    """GPT-2 of 124 million parameters, 8 x 512 in bf16, with loss.item()."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(50257, 768)
            self.places = torch.nn.Embedding(1024, 768)
            layer = torch.nn.TransformerEncoderLayer(
                768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.layers = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.head = torch.nn.Linear(768, 50257, bias=False)

        def forward(self, words: Any) -> Any:
            count = words.shape[1]
            x = self.words(words) + self.places(torch.arange(count, device=words.device))
            mask = torch.nn.Transformer.generate_square_subsequent_mask(count, device=words.device)
            return self.head(self.layers(x, mask=mask, is_causal=True))

    model = Model().cuda()
    data = torch.randint(0, 50257, (8, 512)).cuda()
    step = training(model, data, data, torch.bfloat16)
    return torch_made(lambda: float(step().item()))


def resnet(depth: int) -> Any:
    import torchvision

    return getattr(torchvision.models, f"resnet{depth}")().cuda().eval()


def infer() -> Made:
    """ResNet-50 on one image, with .item()."""
    import torch

    model, one = resnet(50), torch.randn(1, 3, 224, 224).cuda()

    def step() -> int:
        with torch.no_grad():
            return int(model(one).argmax().item())

    return torch_made(step)


def lstm() -> Made:
    """Two layers of cuDNN's LSTM, forwards, backwards and Adam."""
    import torch

    model = torch.nn.LSTM(256, 512, 2, batch_first=True).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randn(64, 100, 256).cuda()

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data)[0].square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return torch_made(step)


def timed() -> Made:
    """Ten times: two events around a product, a wait, and the time between them."""
    import torch

    data = torch.randn(1024, 1024).cuda()

    def step() -> float:
        total = 0.0
        for _ in range(10):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            torch.mm(data, data)
            last.record()
            last.synchronize()
            total += first.elapsed_time(last)
        assert total > 0
        return 1.0

    return torch_made(step)


def small_copies() -> Made:
    """32 images, copied one by one, and ResNet-18 in fp16."""
    import torch

    model = resnet(18).half()
    images = [torch.randn(3, 224, 224).half() for _ in range(32)]

    def step() -> int:
        with torch.no_grad():
            batch = torch.stack([image.to("cuda") for image in images])
            return int(model(batch).argmax(1)[0].item())

    return torch_made(step)


def masks() -> Made:
    """Five times a mask, nonzero and unique, whose sizes the host needs."""
    import torch

    data = torch.randn(100000).cuda()

    def step() -> int:
        count = 0
        for at in range(5):
            chosen = data[data > 0.1 * at]
            count += len(torch.nonzero(chosen > 0.5)) + len(torch.unique((chosen * 100).int()))
        return count

    return torch_made(step)


def state_dict() -> Made:
    """Load a state_dict of 497 MB in 148 pieces."""
    import torch

    sizes = [768 * 50257, 768 * 1024, *([768 * 768 * 4] * 36), *([768] * 110)]
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.empty(size)) for size in sizes).cuda()
    state = {str(at): torch.full((size,), float(at)) for at, size in enumerate(sizes)}

    def step() -> float:
        model.load_state_dict(state)
        return float(model[-1][5].item())

    return torch_made(step)


def churn() -> Made:
    """Empty PyTorch's cache at each step, so that it calls cudaMalloc and cudaFree."""
    import torch

    def step() -> float:
        pieces = [torch.full((4 << 20,), float(at), device="cuda") for at in range(6)]
        found = pieces[3]
        result = found[:1] + 0
        del pieces, found
        torch.cuda.empty_cache()
        return result

    return torch_made(step)


def rl_loop() -> Made:
    """32 steps of a policy, with a state from the host and .item() at each, and one update."""
    import torch

    policy = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 8)
    ).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    states = torch.randn(32, 64)

    def step() -> float:
        losses: list[Any] = []
        for at in range(32):
            choices = torch.distributions.Categorical(logits=policy(states[at].cuda()))
            action = choices.sample()
            losses.append(-choices.log_prob(action) * (1.0 if action.item() > 3 else -1.0))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        return 1.0

    return torch_made(step)


def waits() -> Made:
    """Launch a small kernel and wait for the device, a hundred times."""
    import torch

    data = torch.zeros(16).cuda()

    def step() -> float:
        for _ in range(100):
            data.add_(1)
            torch.cuda.synchronize()
        return 1.0

    return torch_made(step)


def launches() -> Made:
    """Three hundred tiny kernels."""
    import torch

    data = torch.zeros(16).cuda()

    def step() -> float:
        for _ in range(300):
            data.add_(1)
        return 1.0

    return torch_made(step)


def network() -> tuple[Any, Any, Any]:
    """Return a step of Adam on a small convolutional network, its state, and a batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        x = images
        for kernel in weights[:2]:
            x = jax.lax.conv_general_dilated(
                x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x)
        x = jax.nn.relu(x.reshape(x.shape[0], -1) @ weights[2]) @ weights[3]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(x) * jax.nn.one_hot(labels, 10), axis=-1))

    @jax.jit
    def step(state: Any, images: Any, labels: Any) -> Any:
        weights, first, second, count = state
        value, slopes = jax.value_and_grad(loss)(weights, images, labels)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, slopes, strict=True)]
        second = [0.999 * v + 0.001 * g * g for v, g in zip(second, slopes, strict=True)]
        weights = [
            w - 1e-3 * m / (jnp.sqrt(v) + 1e-8)
            for w, m, v in zip(weights, first, second, strict=True)
        ]
        return (weights, first, second, count + 1), value

    shapes = [(3, 3, 3, 32), (3, 3, 32, 64), (8 * 8 * 64, 128), (128, 10)]
    random = np.random.default_rng(0)
    weights = [jnp.asarray(random.normal(0, 0.05, shape).astype(np.float32)) for shape in shapes]
    zeros = [jnp.zeros_like(weight) for weight in weights]
    batch = (random.random((64, 32, 32, 3), np.float32), random.integers(0, 10, 64))
    return step, (weights, zeros, list(zeros), jnp.zeros(())), batch


def jax_jit() -> Made:
    """Train by a jitted step, without a wait."""
    import jax

    function, state, batch = network()
    batch = jax.device_put(batch)
    held = [state]

    def step() -> Any:
        held[0], loss = function(held[0], *batch)
        return loss

    return step, lambda: jax.block_until_ready(held[0])


def jax_fed() -> Made:
    """Train the same with a batch from the host, and the loss on the host at each step."""
    import jax

    function, state, batch = network()
    held = [state]

    def step() -> float:
        held[0], loss = function(held[0], *batch)
        return float(loss)

    return step, lambda: jax.block_until_ready(held[0])


def jax_eager() -> Made:
    """Sixty operations without jit."""
    import jax
    import jax.numpy as jnp

    start = jnp.ones((256, 256))

    def step() -> Any:
        x = start
        for _ in range(20):
            x = x * 1.5
            x = x + 0.25
            x = x / 1.6
        held[0] = x
        return x.sum()

    held = [start]
    return step, lambda: jax.block_until_ready(held[0])


TORCH = {
    one.__name__: one
    for one in (
        *(lstm, timed, small_copies, masks, state_dict, churn, rl_loop, infer),
        *(gpt2_train, waits, launches),
    )
}
JAX = {one.__name__: one for one in (jax_jit, jax_fed, jax_eager)}


def seeded(name: str) -> Made:
    """Make a workload from the same numbers everywhere."""
    if name in JAX:
        import jax

        backend = jax.default_backend()
        if backend not in ("gpu", "cuda"):
            raise RuntimeError(f"JAX computes on {backend}, and not on a GPU")
        return JAX[name]()
    import torch

    torch.manual_seed(0)
    return TORCH[name]()


def commands() -> Iterator[list[str]]:
    for line in sys.stdin:
        if line.split():
            yield line.split()


def number(value: Any) -> float:
    """Return what a step gave as a number; of PyTorch's also one with a gradient."""
    return float(value.detach() if hasattr(value, "detach") else value)


def answer(words: list[str], made: dict[str, Made]) -> str:
    name = words[1]
    if words[0] == "make":
        made.clear()
        made[name] = seeded(name)
        step, settle = made[name]
        value = number(step())
        for _ in range(4):
            step()
        settle()
        return f"READY {value:.6g}"
    step, settle = made[name]
    settle()
    start = time.perf_counter()
    for _ in range(int(words[2])):
        step()
    settle()
    return f"MS {(time.perf_counter() - start) / int(words[2]) * 1e3:.5f}"


def main() -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    made: dict[str, Made] = {}
    for words in commands():
        try:
            said = answer(words, made)
        except Exception as error:  # noqa: BLE001
            said = f"FAILED {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        output.write(said + "\n")
        output.flush()


if __name__ == "__main__":
    main()
