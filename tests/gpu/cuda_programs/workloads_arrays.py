"""Workloads of JAX and CuPy, for ``workloads.py``."""

from collections.abc import Callable
from typing import Any

from workloads_kit import Made


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


def cupy_kernels() -> Made:
    """Two hundred small kernels of CuPy, and a number from the last."""
    import cupy

    data = cupy.arange(1024, dtype=cupy.float32)

    def step() -> float:
        x = data
        for _ in range(100):
            x = x * 0.5 + 1.0
        return float(x[5])

    return step, cupy.cuda.Device().synchronize


def jax_only(make: Callable[[], Made]) -> Callable[[], Made]:
    """Refuse JAX where it would compute without a GPU."""

    def made() -> Made:
        import jax

        backend = jax.default_backend()
        if backend not in ("gpu", "cuda"):
            raise RuntimeError(f"JAX computes on {backend}, and not on a GPU")
        return make()

    return made


ARRAYS = {one.__name__: jax_only(one) for one in (jax_jit, jax_fed, jax_eager)} | {
    "cupy_kernels": cupy_kernels
}
