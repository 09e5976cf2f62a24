"""Random numbers of an emulated device: NumPy's generators behind CuPy's methods.

The numbers cannot be cuRAND's; shapes, types and distributions are the same.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.operation_names import BIT_GENERATORS, GENERATOR, RANDOM_STATE

_WORDS = 624
"""Of the state of the Mersenne twister."""

_SPECIAL = ("choice", "permutation", "randint", "seed", "shuffle", "tomaxint")


def _state(seed: int, _method: int) -> np.random.RandomState:
    return np.random.RandomState(seed % (1 << 32))


def _generator(kind: str, seed: int | list[int]) -> np.random.Generator:
    if kind not in BIT_GENERATORS:
        raise ValueError(f"no bit generator {kind}")
    return np.random.Generator(np.random.PCG64(seed))


def _drawn(name: str) -> Callable[..., Any]:
    def draw(source: object, shape: tuple[int, ...], dtype: Any, *values: Any) -> Any:
        method = getattr(source, name)
        if name in ("dirichlet", "multivariate_normal"):
            shape = shape[: len(shape) - values[0].ndim]
        if name == "dirichlet" and not values[0].ndim:
            return np.asarray(method(values[0].reshape(1), size=shape)[..., 0]).astype(dtype)
        if name == "logseries" and np.any((np.asarray(values[0]) <= 0) | (values[0] >= 1)):
            raise ValueError("p <= 0.0 or p >= 1.0")
        if name == "hypergeometric":
            values = tuple([np.asarray(value).astype(np.int64) for value in values])
        return np.asarray(method(*values, size=shape)).astype(dtype)

    return draw


def _randint(source: Any, shape: tuple[int, ...], dtype: Any, low: Any, high: Any) -> Any:
    draw = source.integers if isinstance(source, np.random.Generator) else source.randint
    # Bounds of one number each may need all 64 bits of their own type.
    wide = np.uint64 if isinstance(high, int) and high > (1 << 63) else np.int64
    return np.asarray(draw(low, high, size=shape, dtype=wide)).astype(dtype)


def _choice(source: Any, a: Any, shape: tuple[int, ...], replace: bool, p: Any) -> Any:
    if p is not None and not replace:
        raise NotImplementedError("choice() cannot draw by p without replacement, nor can CuPy's")
    return np.asarray(source.choice(a, shape, replace, p))


def _multinomial(source: Any, n: int, weights: Any, shape: tuple[int, ...]) -> Any:
    return source.multinomial(n, weights, shape[: len(shape) - 1])


def generator_state(value: object) -> list[Any]:
    """Return the state of a generator as plain values; empty for any other object."""
    if isinstance(value, np.random.RandomState):
        found: Any = value.get_state(legacy=False)
        words, position = found["state"]["key"], found["state"]["pos"]
        return [words.tobytes(), int(position), int(found["has_gauss"]), float(found["gauss"])]
    if isinstance(value, np.random.Generator):
        found = value.bit_generator.state
        inner = [int(found["state"][name]).to_bytes(16, "little") for name in ("state", "inc")]
        return [*inner, int(found["has_uint32"]), int(found["uinteger"])]
    return []


def set_generator_state(value: object, state: list[Any]) -> None:
    """Set a random generator to the state of another one.

    Raises:
        ValueError: it is no state of a generator of this kind.
    """
    kinds = [type(item) for item in state]
    if isinstance(value, np.random.RandomState):
        good = kinds == [bytes, int, int, float] and len(state[0]) == _WORDS * 4
        if not good or not 0 <= state[1] <= _WORDS or state[2] not in (0, 1):
            raise ValueError("no state of a RandomState")
        key = np.frombuffer(state[0], np.uint32)
        inner = {"key": key, "pos": state[1]}
        made: dict[str, Any] = {"bit_generator": "MT19937", "state": inner}
        value.set_state({**made, "has_gauss": state[2], "gauss": state[3]})
    elif isinstance(value, np.random.Generator):
        good = kinds == [bytes, bytes, int, int] and len(state[0]) == len(state[1]) == 16
        if not good or state[2] not in (0, 1) or not 0 <= state[3] < 1 << 32:
            raise ValueError("no state of a generator")
        numbers = [int.from_bytes(item, "little") for item in state[:2]]
        made = {
            "bit_generator": "PCG64",
            "state": dict(zip(("state", "inc"), numbers, strict=True)),
        }
        value.bit_generator.state = {**made, "has_uint32": state[2], "uinteger": state[3]}
    elif state:
        raise ValueError("an object that has no state")


def random_operations() -> dict[str, Callable[..., Any]]:
    """Return name to callable of everything under ``random.`` and ``generator.``."""
    table: dict[str, Callable[..., Any]] = {
        "random.state": _state,
        "random.generator": _generator,
        "random.seed": lambda source, seed: source.seed(seed % (1 << 32)),
        "random.randint": _randint,
        "random.choice": _choice,
        "random.permutation": lambda source, a: source.permutation(a),
        "random.shuffle": lambda source, a: source.shuffle(a),
        "random.tomaxint": lambda source, shape, dtype: _randint(source, shape, dtype, 0, 1 << 31),
        "random.multinomial": _multinomial,
        "generator.integers": _randint,
    }
    table |= {f"random.{name}": _drawn(name) for name in RANDOM_STATE if name not in _SPECIAL}
    table |= {f"generator.{name}": _drawn(name) for name in GENERATOR if name != "integers"}
    return table
