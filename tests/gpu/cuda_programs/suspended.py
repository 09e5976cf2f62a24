"""A program that computes for a while, for ``suspend_check.py``: KIND STEPS [BALLAST_GIB].

Each step prints ``STEP number value`` with a value that shows any bit that differs.
"""

import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
PAUSE_S = 0.03
kind, steps = sys.argv[1], int(sys.argv[2])
ballast_gib = int(sys.argv[3]) if len(sys.argv) > 3 else 0


def torch_training():
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if kind == "resnet":
        import torchvision

        model = torchvision.models.resnet50().cuda()
        batch, labels = torch.randn(32, 3, 224, 224).cuda(), torch.randint(0, 1000, (32,)).cuda()

        def loss_of():
            return torch.nn.functional.cross_entropy(model(batch), labels)
    else:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        model = GPT2LMHeadModel(config).cuda()
        batch = torch.randint(0, 50000, (4, 256)).cuda()

        def loss_of():
            return model(batch, labels=batch).loss

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ballast = [
        torch.full((1 << 30,), i, dtype=torch.uint8, device="cuda") for i in range(ballast_gib)
    ]
    stream, pinned = torch.cuda.Stream(), torch.empty(1 << 20).pin_memory()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        value = float(loss)  # waits for this stream, as the other one would not
        with torch.cuda.stream(stream):
            on_device = pinned.fill_(value).cuda(non_blocking=True)
            total = float(on_device.sum())
        stream.synchronize()
        held = sum(int(block[:: 1 << 20].sum(dtype=torch.int64)) for block in ballast)
        return f"{value.hex()} {total.hex()} {held}"

    return step


def jax_loop():
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(0), (4096, 1024))
    w = [jax.random.normal(jax.random.key(i), (1024, 1024)) / 32 for i in range(4)]

    @jax.jit
    def update(w):
        def loss(w):
            h = x
            for each in w:
                h = jnp.tanh(h @ each)
            return jnp.mean(h**2)

        value, gradient = jax.value_and_grad(loss)(w)
        return value, [a - 0.1 * b for a, b in zip(w, gradient, strict=True)]

    state = [w]

    def step():
        value, state[0] = update(state[0])
        return float(value).hex()

    return step


def cupy_loop():
    import cupy

    generator = cupy.random.default_rng(7)
    a = generator.standard_normal((2048, 2048), dtype=cupy.float32) / 45
    big = cupy.arange(64 << 20, dtype=cupy.float32)
    state = [a]

    def step():
        state[0] = cupy.tanh(state[0] @ a) + a
        noise = generator.standard_normal(1000)
        sums = (state[0].sum(), big[::999].sum(), noise.sum())
        return " ".join(float(each).hex() for each in sums)

    return step


work = {"jax": jax_loop, "cupy": cupy_loop}.get(kind, torch_training)()
for number in range(steps):
    print("STEP", number, work(), flush=True)
    time.sleep(PAUSE_S)
print("DONE", flush=True)
