"""Libraries upon JAX: flax with optax, diffrax, numpyro; callbacks; arrays over all devices."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import jax.numpy as jnp
from sections import section

jax.config.update("jax_default_matmul_precision", "highest")


@section
def network():
    import optax
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(8, (3, 3))(x))
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    x = jax.random.normal(jax.random.key(0), (16, 12, 12, 1))
    y = jnp.arange(16) % 10
    net = Net()
    params = net.init(jax.random.key(1), x)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        def loss(p):
            return optax.softmax_cross_entropy_with_integer_labels(net.apply(p, x), y).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    for _ in range(30):
        params, state, value = step(params, state)
    return float(value) < 0.5


@section
def equation():
    import diffrax

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -y), diffrax.Tsit5(), t0=0, t1=1, dt0=0.1,
        y0=jnp.ones(100),
    )  # fmt: skip
    return float(solution.ys.mean())


@section
def sampling():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=100, num_samples=200, progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.full(50, 3.0))
    return abs(float(mcmc.get_samples()["mean"].mean()) - 3) < 0.2


@section
def linear_algebra():
    a = jax.random.normal(jax.random.key(2), (64, 64))
    spd = a @ a.T + jnp.eye(64)
    return (float(jnp.linalg.eigvalsh(spd).sum()), float(jnp.linalg.cholesky(spd).sum()),
            float(jnp.abs(jnp.fft.fft2(a)).mean()), float(jnp.sort(a.ravel())[100]))  # fmt: skip


@section
def callbacks():
    seen = []

    @jax.jit
    def double(x):
        jax.debug.callback(lambda y: seen.append(float(y.sum())), x)
        host = jax.pure_callback(lambda y: y * 2, jax.ShapeDtypeStruct((4,), jnp.float32), x)
        return host + 1

    made = double(jnp.arange(4.0))
    jax.effects_barrier()
    return (*made.tolist(), *seen)


@section
def several_devices():
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()
    mesh = Mesh(devices, ("x",))
    sharded = NamedSharding(mesh, PartitionSpec("x"))
    x = jax.device_put(jnp.arange(8 * 128.0).reshape(8 * 16, 8), sharded)
    total = jax.jit(lambda x: (x @ x.T).sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(
        x
    )
    gathered = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, PartitionSpec()))(x)
    return len(devices), float(total), float(gathered.sum())
