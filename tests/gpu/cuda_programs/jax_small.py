"""JAX: a product under jit, a gradient and a few steps of descent."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import jax.numpy as jnp

x = jax.random.normal(jax.random.key(0), (256, 128))
w = jnp.zeros((128,))
y = x @ jnp.arange(128.0) / 128
print("RESULT backend", jax.default_backend())


@jax.jit
def loss(w):
    return jnp.mean((x @ w - y) ** 2)


step = jax.jit(lambda w: w - 0.1 * jax.grad(loss)(w))
for _ in range(50):
    w = step(w)
print("RESULT loss", float(loss(w)))
