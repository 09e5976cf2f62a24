"""JAX over NCCL with both devices in one process: collectives of shard_map and pmap, and training.

NCCL connects the two servers of a lease here, as it connects two GPUs natively.
"""

import os
import statistics
import time
from functools import partial

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, LAYERS, BATCH = 1024, 4, 256
devices = jax.devices()[:2]
mesh = Mesh(np.array(devices), ("d",))
everywhere, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
print("RESULT devices", len(devices), devices[0].platform)


def collectives() -> None:
    """Print a number for each collective, of known elements."""
    rows = jax.device_put(jnp.arange(2 * 8 * 128, dtype=jnp.float32).reshape(16, 128), by_rows)
    swap = [(0, 1), (1, 0)]
    kinds = {
        "psum": lambda x: lax.psum(x, "d"),
        "pmax": lambda x: lax.pmax(x, "d"),
        "all_gather": lambda x: lax.all_gather(x, "d", tiled=True),
        "psum_scatter": lambda x: lax.psum_scatter(x, "d", tiled=True),
        "ppermute": lambda x: lax.ppermute(x, "d", swap),
        "all_to_all": lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True),
    }
    for name, one in kinds.items():
        made = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(rows)
        weights = jnp.arange(made.size, dtype=jnp.float32).reshape(made.shape) % 7
        print("RESULT", name, made.shape, float(jnp.sum(made * weights)))
    sums = jax.pmap(lambda x: lax.psum(x * x, "p"), axis_name="p", devices=devices)(
        jnp.arange(8.0).reshape(2, 4)
    )
    print("RESULT pmap", np.asarray(sums).tolist())


def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    for each in weights:
        x = jnp.tanh(x @ each)
    return jnp.mean((x - y) ** 2)


@partial(jax.jit, out_shardings=(everywhere, everywhere))
def step(weights: list[jax.Array], x: jax.Array, y: jax.Array):
    """Take one step of descent: the mean over both devices needs an all-reduce of all slopes."""
    value, slopes = jax.value_and_grad(loss)(weights, x, y)
    return [w - 0.1 * s for w, s in zip(weights, slopes, strict=True)], value


def training() -> None:
    random = np.random.default_rng(0)
    weights = [
        jax.device_put(random.normal(0, 0.03, (WIDTH, WIDTH)).astype(np.float32), everywhere)
        for _ in range(LAYERS)
    ]
    x, y = (
        jax.device_put(random.normal(0, 1, (BATCH, WIDTH)).astype(np.float32), by_rows)
        for _ in range(2)
    )
    for _ in range(5):
        weights, value = step(weights, x, y)
    jax.block_until_ready(weights)
    rates: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(20):
            weights, value = step(weights, x, y)
        jax.block_until_ready(weights)
        rates.append(20 / (time.perf_counter() - started))
    print("RESULT loss", f"{float(value):.4f}")
    print("FIGURE", "training by jit over a mesh", f"{statistics.median(rates):.2f}", "steps/s")


collectives()
training()
