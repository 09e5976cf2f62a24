"""Random states on the servers; this side knows the shapes and types of their draws."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import is_array
from cupy._core.ufunc import broadcast
from cupy._door import pool
from cupy._door.calls import Remote, remote_object
from cupy._door.meta import fresh

_REQUIRED = object()
_FLOAT: Any = float
_INT: Any = int

# Parameters before size and dtype, and the default type of the result.
DISTRIBUTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "beta": ({"a": _REQUIRED, "b": _REQUIRED}, _FLOAT),
    "binomial": ({"n": _REQUIRED, "p": _REQUIRED}, _INT),
    "chisquare": ({"df": _REQUIRED}, _FLOAT),
    "exponential": ({"scale": 1.0}, _FLOAT),
    "f": ({"dfnum": _REQUIRED, "dfden": _REQUIRED}, _FLOAT),
    "gamma": ({"shape": _REQUIRED, "scale": 1.0}, _FLOAT),
    "geometric": ({"p": _REQUIRED}, _INT),
    "gumbel": ({"loc": 0.0, "scale": 1.0}, _FLOAT),
    "hypergeometric": ({"ngood": _REQUIRED, "nbad": _REQUIRED, "nsample": _REQUIRED}, _INT),
    "laplace": ({"loc": 0.0, "scale": 1.0}, _FLOAT),
    "logistic": ({"loc": 0.0, "scale": 1.0}, _FLOAT),
    "lognormal": ({"mean": 0.0, "sigma": 1.0}, _FLOAT),
    "logseries": ({"p": _REQUIRED}, _INT),
    "negative_binomial": ({"n": _REQUIRED, "p": _REQUIRED}, _INT),
    "noncentral_chisquare": ({"df": _REQUIRED, "nonc": _REQUIRED}, _FLOAT),
    "noncentral_f": ({"dfnum": _REQUIRED, "dfden": _REQUIRED, "nonc": _REQUIRED}, _FLOAT),
    "normal": ({"loc": 0.0, "scale": 1.0}, _FLOAT),
    "pareto": ({"a": _REQUIRED}, _FLOAT),
    "poisson": ({"lam": 1.0}, _INT),
    "power": ({"a": _REQUIRED}, _FLOAT),
    "rayleigh": ({"scale": 1.0}, _FLOAT),
    "standard_cauchy": ({}, _FLOAT),
    "standard_exponential": ({}, _FLOAT),
    "standard_gamma": ({"shape": _REQUIRED}, _FLOAT),
    "standard_normal": ({}, _FLOAT),
    "standard_t": ({"df": _REQUIRED}, _FLOAT),
    "triangular": ({"left": _REQUIRED, "mode": _REQUIRED, "right": _REQUIRED}, _FLOAT),
    "uniform": ({"low": 0.0, "high": 1.0}, _FLOAT),
    "vonmises": ({"mu": _REQUIRED, "kappa": _REQUIRED}, _FLOAT),
    "wald": ({"mean": _REQUIRED, "scale": _REQUIRED}, _FLOAT),
    "weibull": ({"a": _REQUIRED}, _FLOAT),
    "zipf": ({"a": _REQUIRED}, _INT),
    "random_sample": ({}, _FLOAT),
}


_TYPED = "standard_exponential standard_gamma standard_normal"
"""Distributions with a type in a Generator."""

_OF_ANY_TYPE = """
    beta chisquare f gamma noncentral_chisquare noncentral_f standard_gamma standard_t vonmises
"""
"""CuPy draws these by kernels that write numbers of any type; the others are drawn by cuRAND."""


def _bind(name: str, names: dict[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    if len(args) > len(names):
        raise TypeError(f"{name}() takes at most {len(names)} arguments ({len(args)} given)")
    bound = dict(zip(names, args))
    for key, value in kwargs.items():
        if key not in names or key in bound:
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
        bound[key] = value
    for key, default in names.items():
        if key not in bound:
            if default is _REQUIRED:
                raise TypeError(f"{name}() missing required argument: {key!r}")
            bound[key] = default
    return bound


def _check_choice(count: int, wanted: int, replace: bool, weights: Any) -> None:
    """Raise where `choice` cannot draw, but for the weights' values."""
    if weights is not None:
        if weights.ndim != 1:
            raise ValueError("p must be 1-dimensional")
        if weights.shape[0] != count:
            raise ValueError("a and p must have same size")
    if count == 0 and wanted:
        raise ValueError("a cannot be empty unless no samples are taken")
    if not replace and weights is None and count < wanted:
        raise ValueError("Cannot take a larger sample than population when 'replace=False'")
    if not replace and weights is not None:
        raise NotImplementedError("choice() cannot draw by p without replacement, nor can CuPy's")


def _shape(size: Any, values: list[Any]) -> tuple[int, ...]:
    if size is not None:
        return arguments.shape_of(size)
    shapes = [value.shape for value in values if is_array(value)]
    return broadcast(*shapes) if shapes else ()


def _distribution(name: str, *, of_generator: bool = False) -> Callable[..., Any]:
    parameters, default = DISTRIBUTIONS[name]
    typed = not of_generator or name in _TYPED.split()
    names = {**parameters, "size": None, **({"dtype": default} if typed else {})}
    names |= {"out": None, "method": None} if of_generator else {}
    whole = np.dtype(np.int64 if default is int else np.float64)
    floats = of_generator or (default is float and name not in _OF_ANY_TYPE.split())

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bind(name, names, args, kwargs)
        size, out = bound.pop("size"), None
        if of_generator:
            out = bound.pop("out")
            del bound["method"]
        dtype = arguments.dtype_of(bound.pop("dtype")) if typed else whole
        if typed and floats and dtype.char not in "fd":
            raise TypeError(f"cupy.random only supports float32 and float64, not {dtype}")
        if not of_generator and any(value is None for value in bound.values()):
            raise ValueError(f"{name}() takes numbers and arrays, not None")
        values = [convert.operand(value) for value in bound.values()]
        if out is None:
            return self._draw(name, values, _shape(size, values), dtype)
        _check_out(out, dtype, size, name == "standard_gamma")
        out[...] = self._draw(name, values, out.shape, dtype)
        return out

    kind = "Generator" if of_generator else "RandomState"
    method.__name__ = name
    method.__doc__ = f"Draw from the distribution; see `numpy.random.{kind}.{name}`."
    return method


def _draw_from(source: Any, name: str) -> Any:
    return getattr(source, name)


class RandomState(Remote):
    """A random state on the current device; the numbers are those of its generator."""

    __slots__ = ()

    def _draw(
        self, name: str, values: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Any:
        args = (self, shape, dtype, *values)
        return make.forward(f"random.{name}", args, {}, fresh(dtype, shape))

    def __new__(cls, seed: Any = None, method: int = 100) -> Any:
        """Make a state with a seed, a random one by default."""
        return remote_object(cls, pool.current(), "random.state", (_seed(seed), method))

    def seed(self, seed: Any = None) -> None:
        """Start again from a seed."""
        self._gp_session.call("random.seed", (self, _seed(seed)), {})

    def rand(self, *size: int, dtype: Any = float) -> Any:
        """Draw uniformly from [0, 1)."""
        return _draw_from(self, "random_sample")(size=size, dtype=dtype)

    def randn(self, *size: int, dtype: Any = float) -> Any:
        """Draw from the standard normal distribution."""
        return _draw_from(self, "standard_normal")(size=size, dtype=dtype)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Draw integers from [low, high), or from [0, low)."""
        if high is None:
            low, high = 0, low
        kind = arguments.dtype_of(dtype)
        if arguments.is_scalar(low) and arguments.is_scalar(high):
            low, high = int(low), int(high)
            _check_range(low, high - 1, kind)
        values = [convert.operand(low), convert.operand(high)]
        return self._draw("randint", values, _shape(size, values), kind)

    def tomaxint(self, size: Any = None) -> Any:
        """Draw integers from the whole range of int32."""
        return self._draw("tomaxint", [], _shape(size, []), np.dtype(np.int64))

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        """Draw elements of an array, or integers below a number."""
        source: Any = a if isinstance(a, int) else convert.asarray(() if a is None else a)
        shape = _shape(size, [])
        if isinstance(a, int) and a < 0:
            raise ValueError("a must be greater than or equal to 0")
        if a is None or (not isinstance(a, int) and source.ndim != 1):
            raise ValueError("a must be 1-dimensional or an integer")
        count: int = a if isinstance(a, int) else source.shape[0]
        weights = None if p is None else convert.asarray(p)
        _check_choice(count, math.prod(shape), replace, weights)
        if isinstance(a, int) and a == 0:
            return make.empty(shape, np.int64)
        kind = np.dtype(np.int64) if isinstance(a, int) else source.dtype
        args = (self, source, shape, bool(replace), weights)
        return make.forward("random.choice", args, {}, fresh(kind, shape))

    def permutation(self, a: Any) -> Any:
        """Return a permuted copy, or a permuted range."""
        if isinstance(a, int):
            shape = arguments.shape_of((a,))
            return make.forward(
                "random.permutation", (self, *shape), {}, fresh(np.dtype(np.int64), shape)
            )
        array = convert.asarray(a)
        return make.forward(
            "random.permutation", (self, array), {}, fresh(array.dtype, array.shape)
        )

    def shuffle(self, a: Any) -> None:
        """Permute in place along the first axis."""
        if not is_array(a):
            raise TypeError("The array must be cupy.ndarray")
        if a.ndim == 0:
            raise TypeError("An array whose ndim is 0 is not supported")
        self._gp_session.call("random.shuffle", (self, a), {})

    def dirichlet(self, alpha: Any, size: Any = None, dtype: Any = float) -> Any:
        """Draw from the Dirichlet distribution."""
        values = convert.asarray(alpha)
        shape = (*_shape(size, []), *values.shape) if size is not None else values.shape
        return self._draw("dirichlet", [values], shape, arguments.dtype_of(dtype))

    def multivariate_normal(
        self,
        mean: Any,
        cov: Any,
        size: Any = None,
        check_valid: str = "ignore",
        tol: float = 1e-8,
        method: str = "cholesky",
        dtype: Any = float,
    ) -> Any:
        """Draw from the multivariate normal distribution."""
        centre, spread = convert.asarray(mean), convert.asarray(cov)
        shape = (*_shape(size, []), *centre.shape)
        return self._draw("multivariate_normal", [centre, spread], shape, arguments.dtype_of(dtype))


def _check_range(low: int, last: int, kind: np.dtype[Any]) -> None:
    """Raise where a type of integers does not have all numbers from ``low`` to ``last``."""
    if low > last:
        raise ValueError("low >= high")
    if kind.kind == "b":
        least, most = 0, 1
    else:
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
    if low < least:
        raise ValueError(f"low is out of bounds for {kind.name}")
    if last > most:
        raise ValueError(f"high is out of bounds for {kind.name}")


def _seed(seed: Any) -> int:
    """Return the number that CuPy makes of a seed of a random state."""
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    if is_array(seed):
        seed = seed.get()
    if isinstance(seed, np.ndarray):
        digest = hashlib.md5(seed.tobytes(), usedforsecurity=False).hexdigest()
        return int(digest[:16], 16)
    given = np.asarray(seed)
    if given.dtype.kind not in "biu":
        raise TypeError("Seed must be an integer.")
    made = int(given)
    if not 0 <= made < 1 << 64:
        raise ValueError("Seed must be an integer between 0 and 2**64 - 1")
    return made


for _name in DISTRIBUTIONS:
    setattr(RandomState, _name, _distribution(_name))


class _Bits(Remote):
    __slots__ = ()


class BitGenerator:
    """A source of random bits; its state is made on the current device when it is first used."""

    def __init__(self, seed: Any = None, *, size: int = -1) -> None:
        del size  # of the state; the server has CuPy's own default
        # Libraries spawn the seeds of parts from it, as from CuPy's.
        self._seed_seq = _sequence(seed)
        self._made: Any = None

    def _state(self) -> Any:
        if self._made is None or self._made._gp_session.failure is not None:
            args = (type(self).__name__, _entropy(self._seed_seq))
            self._made = remote_object(_Bits, pool.current(), "random.generator", args)
        return self._made

    def random_raw(self, size: Any = None, output: bool = True) -> Any:
        """Draw 32 random bits for each element."""
        drawn = Generator(self).integers(0, 1 << 32, () if size is None else size, np.uint32)
        return drawn.view(np.int32) if output else None


def _sequence(seed: Any) -> np.random.SeedSequence:
    if seed is None:
        seed = int.from_bytes(os.urandom(7), "little")
    if is_array(seed):
        seed = seed.get()
    return seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)


def _entropy(sequence: np.random.SeedSequence) -> Any:
    """Return the entropy of a sequence as a number, or as the words of 32 bits that NumPy mixes."""
    numbers = [int(item) for item in np.ravel(np.asarray(sequence.entropy, object))]
    if len(numbers) == 1 and numbers[0] < 1 << 63 and not sequence.spawn_key:
        return numbers[0]
    words = _words(numbers)
    if sequence.spawn_key:
        words += [0] * (sequence.pool_size - len(words))
        words += _words(sequence.spawn_key)
    return words


def _words(numbers: Iterable[int]) -> list[int]:
    words: list[int] = []
    for number in numbers:
        words.append(number & 0xFFFFFFFF)
        while number := number >> 32:
            words.append(number & 0xFFFFFFFF)
    return words


class XORWOW(BitGenerator):
    """cuRAND's default generator."""


class MRG32k3a(BitGenerator):
    """Combined multiple recursive generator."""


class Philox4x3210(BitGenerator):
    """Counter-based generator."""


def _check_out(out: Any, kind: np.dtype[Any], size: Any, c_only: bool = False) -> None:
    """Raise where an output array does not fit, as CuPy does."""
    if out.dtype != kind:
        raise TypeError(
            f"Supplied output array has the wrong type. Expected {kind.name}, got {out.dtype.name}"
        )
    if not (out.flags.c_contiguous if c_only else out.flags.forc):
        raise ValueError("Supplied output array is not contiguous, writable or aligned.")
    if size is not None and arguments.shape_of(size) != out.shape:
        raise ValueError("size must match out.shape when used together")


class Generator:
    """A random generator; see `numpy.random.Generator`. Its state is that of its bit generator."""

    def __init__(self, bit_generator: Any) -> None:
        self.bit_generator = bit_generator

    def _draw(
        self, name: str, values: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Any:
        args = (self.bit_generator._state(), shape, dtype, *values)
        return make.forward(f"generator.{name}", args, {}, fresh(dtype, shape))

    def random(self, size: Any = None, dtype: Any = float, out: Any = None) -> Any:
        """Draw uniformly from [0, 1)."""
        kind = arguments.dtype_of(dtype)
        if out is not None:
            _check_out(out, kind, size)
        made = self._draw("random", [], out.shape if out is not None else _shape(size, []), kind)
        if out is not None:
            out[...] = made
            return out
        return made

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Any = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Any:
        """Draw integers from [low, high), or [low, high] with ``endpoint``."""
        if high is None:
            low, high = 0, low
        kind = arguments.dtype_of(dtype)
        first, last = int(low), int(high) - (not endpoint)
        _check_range(first, last, kind)
        if last - first >= 1 << 64:
            raise ValueError(f"high - low must be within uint64 range (actual: {last - first})")
        return self._draw("integers", [first, last + 1], _shape(size, []), kind)

    def dirichlet(self, alpha: Any, size: Any = None) -> Any:
        """Draw from the Dirichlet distribution."""
        values = convert.asarray(alpha)
        shape = (*_shape(size, []), *values.shape) if size is not None else values.shape
        return self._draw("dirichlet", [values], shape, np.dtype(np.float64))


_GENERATED = """
    beta binomial chisquare exponential f gamma geometric hypergeometric logseries poisson power
    standard_exponential standard_gamma standard_normal uniform
"""
for _name in _GENERATED.split():
    setattr(Generator, _name, _distribution(_name, of_generator=True))
