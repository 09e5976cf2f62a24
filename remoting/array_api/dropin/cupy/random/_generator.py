"""Random states and generators on the servers; this side knows the looks of their draws."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import is_array
from cupy._core.ufunc import broadcast
from cupy._door import pool, state
from cupy._door.calls import Remote, remote_object
from cupy._door.meta import fresh

_REQUIRED = object()

_DISTRIBUTIONS = """
beta a b -> any
binomial n p -> int
chisquare df -> any
exponential scale=1
f dfnum dfden -> any
gamma shape scale=1 -> any
geometric p -> int
gumbel loc=0 scale=1
hypergeometric ngood nbad nsample -> int
laplace loc=0 scale=1
logistic loc=0 scale=1
lognormal mean=0 sigma=1
logseries p -> int
negative_binomial n p -> int
noncentral_chisquare df nonc -> any
noncentral_f dfnum dfden nonc -> any
normal loc=0 scale=1
pareto a
poisson lam=1 -> int
power a
random
random_sample
rayleigh scale=1
standard_cauchy
standard_exponential
standard_gamma shape -> any
standard_normal
standard_t df -> any
triangular left mode right
uniform low=0 high=1
vonmises mu kappa -> any
wald mean scale
weibull a
zipf a -> int
"""
"""Distributions: the parameters before ``size``, and the type of elements.

It is float32 or float64 without a word, because cuRAND draws these. ``any`` is a type of the
program's choice, for CuPy's own kernels draw these.
"""

_TYPED = "random standard_exponential standard_gamma standard_normal"
_GENERATED = f"""
{_TYPED} beta binomial chisquare exponential f gamma geometric hypergeometric logseries poisson
power uniform
"""
"""Distributions of a Generator, of which the first ones have a type as a parameter.

A RandomState has all but ``random``.
"""


def _rows() -> dict[str, tuple[dict[str, Any], str]]:
    """Return the default values of parameters by name, and the type, by distribution."""
    made: dict[str, tuple[dict[str, Any], str]] = {}
    for line in _DISTRIBUTIONS.strip().splitlines():
        head, _, result = line.partition(" -> ")
        name, *words = head.split()
        pairs = [word.partition("=") for word in words]
        parameters = {key: float(value) if value else _REQUIRED for key, _, value in pairs}
        made[name] = parameters, result
    return made


_ROWS = _rows()
DISTRIBUTIONS = [name for name in _ROWS if name != "random"]
"""Names of the distributions of a RandomState."""


# --- arguments ------------------------------------------------------------------------------------


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


def _shape(size: Any, *values: Any) -> tuple[int, ...]:
    if size is not None:
        return arguments.shape_of(size)
    shapes = [value.shape for value in values if is_array(value)]
    return broadcast(*shapes) if shapes else ()


def _check_range(low: int, last: int, kind: np.dtype[Any]) -> None:
    """Raise where a type of integers does not have all numbers from ``low`` to ``last``."""
    if low > last:
        raise ValueError("low >= high")
    limits = None if kind.kind == "b" else np.iinfo(kind)
    least, most = (0, 1) if limits is None else (limits.min, limits.max)
    for name, fits in (("low", low >= least), ("high", last <= most)):
        if not fits:
            raise ValueError(f"{name} is out of bounds for {kind.name}")


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


# --- draws ----------------------------------------------------------------------------------------


class _Source:
    """A source of draws."""

    __slots__ = ()
    _gp_family = ""

    def _remote(self) -> Any:
        """Return the worker's object."""
        return self

    def _draw(self, name: str, values: Iterable[Any], shape: Any, dtype: np.dtype[Any]) -> Any:
        args = (self._remote(), shape, dtype, *values)
        return make.forward(f"{self._gp_family}.{name}", args, {}, fresh(dtype, shape))

    def dirichlet(self, alpha: Any, size: Any = None, dtype: Any = float) -> Any:
        """Draw vectors from the Dirichlet distribution."""
        values = convert.asarray(alpha)
        shape = (*_shape(size), *values.shape)
        return self._draw("dirichlet", (values,), shape, arguments.dtype_of(dtype))


def _method(name: str, *, of_generator: bool = False) -> Callable[..., Any]:
    """Return the method of a distribution; see `_DISTRIBUTIONS`."""
    parameters, result = _ROWS[name]
    typed = not of_generator or name in _TYPED.split()
    default = np.dtype(np.int64 if result == "int" else np.float64)
    names = {**parameters, "size": None, **({"dtype": default} if typed else {})}
    names |= {"out": None, "method": None} if of_generator else {}
    floats = typed and (of_generator or not result)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bind(name, names, args, kwargs)
        size, out = bound.pop("size"), None
        if of_generator:
            out = bound.pop("out")
            del bound["method"]
        dtype = arguments.dtype_of(bound.pop("dtype", default))
        if floats and dtype.char not in "fd":
            raise TypeError(f"cupy.random only supports float32 and float64, not {dtype}")
        if not of_generator and any(value is None for value in bound.values()):
            raise ValueError(f"{name}() takes numbers and arrays, not None")
        values = [convert.operand(value) for value in bound.values()]
        if out is None:
            return self._draw(name, values, _shape(size, *values), dtype)
        _check_out(out, dtype, size, name == "standard_gamma")
        out[...] = self._draw(name, values, out.shape, dtype)
        return out

    kind = "Generator" if of_generator else "RandomState"
    method.__name__ = name
    method.__doc__ = f"Draw from the distribution; see `numpy.random.{kind}.{name}`."
    return method


class RandomState(Remote, _Source):
    """A random state on the current device; the numbers are those of its generator."""

    __slots__ = ()
    _gp_family = "random"

    def __new__(cls, seed: Any = None, method: int = 100) -> Any:
        """Make a state with a seed, a random one by default."""
        return remote_object(cls, pool.current(), "random.state", (_seed(seed), method))

    def seed(self, seed: Any = None) -> None:
        """Start again from a seed."""
        self._gp_session.call("random.seed", (self, _seed(seed)), {})

    def rand(self: Any, *size: int, dtype: Any = float) -> Any:
        """Draw uniformly from [0, 1)."""
        return self.random_sample(size=size, dtype=dtype)

    def randn(self: Any, *size: int, dtype: Any = float) -> Any:
        """Draw from the standard normal distribution."""
        return self.standard_normal(size=size, dtype=dtype)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Draw integers from [low, high), or from [0, low)."""
        if high is None:
            low, high = 0, low
        kind = arguments.dtype_of(dtype)
        if arguments.is_scalar(low) and arguments.is_scalar(high):
            low, high = int(low), int(high)
            _check_range(low, high - 1, kind)
        values = [convert.operand(low), convert.operand(high)]
        return self._draw("randint", values, _shape(size, *values), kind)

    def tomaxint(self, size: Any = None) -> Any:
        """Draw integers from the whole range of int32."""
        return self._draw("tomaxint", (), _shape(size), np.dtype(np.int64))

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        """Draw elements of an array, or integers below a number; the worker checks the rest."""
        if a is None:
            raise ValueError("a must be 1-dimensional or an integer")
        source: Any = a if isinstance(a, int) else convert.asarray(a)
        kind = np.dtype(np.int64) if isinstance(a, int) else source.dtype
        shape, weights = _shape(size), None if p is None else convert.asarray(p)
        args = (self, source, shape, bool(replace), weights)
        return make.forward("random.choice", args, {}, fresh(kind, shape))

    def permutation(self, a: Any) -> Any:
        """Return a permuted copy, or a permuted range."""
        if isinstance(a, int):
            source, meta = a, fresh(np.dtype(np.int64), arguments.shape_of((a,)))
        else:
            source = convert.asarray(a)
            meta = fresh(source.dtype, source.shape)
        return make.forward("random.permutation", (self, source), {}, meta)

    def shuffle(self, a: Any) -> None:
        """Permute in place along the first axis."""
        if not is_array(a):
            raise TypeError("The array must be cupy.ndarray")
        if a.ndim == 0:
            raise TypeError("An array whose ndim is 0 is not supported")
        self._gp_session.call("random.shuffle", (self, a), {})

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
        """Draw vectors from the multivariate normal distribution."""
        del check_valid, tol, method  # by its defaults the worker draws
        values = convert.asarray(mean), convert.asarray(cov)
        shape = (*_shape(size), *values[0].shape)
        return self._draw("multivariate_normal", values, shape, arguments.dtype_of(dtype))


for _name in DISTRIBUTIONS:
    setattr(RandomState, _name, _method(_name))


class Generator(_Source):
    """A random generator; see `numpy.random.Generator`. Its state is that of its bit generator."""

    _gp_family = "generator"

    def __init__(self, bit_generator: Any) -> None:
        self.bit_generator = bit_generator

    def _remote(self) -> Any:
        return self.bit_generator._remote()

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
        return self._draw("integers", (first, last + 1), _shape(size), kind)


for _name in _GENERATED.split():
    setattr(Generator, _name, _method(_name, of_generator=True))


# --- seeds ----------------------------------------------------------------------------------------


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


def _words(numbers: Any) -> list[int]:
    """Return the words of 32 bits that NumPy makes of numbers."""
    given = [int(number) for number in np.ravel(np.asarray(numbers, object))]
    counts = [max(1, -(-number.bit_length() // 32)) for number in given]
    packed = [number.to_bytes(4 * count, "little") for number, count in zip(given, counts)]
    return np.frombuffer(b"".join(packed), "<u4").tolist()


def _entropy(sequence: np.random.SeedSequence) -> list[int]:
    """Return the words that a sequence of seeds mixes, which are a seed as good as it."""
    words = _words(sequence.entropy)
    if sequence.spawn_key:
        words += [0] * (sequence.pool_size - len(words)) + _words(sequence.spawn_key)
    return words


class _Bits(Remote):
    __slots__ = ()


class BitGenerator:
    """A source of random bits; its state is made on the current device when it is first used."""

    def __init__(self, seed: Any = None, *, size: int = -1) -> None:
        del size  # of the state; the server has CuPy's own default
        if seed is None:
            seed = int.from_bytes(os.urandom(7), "little")
        seed = seed.get() if is_array(seed) else seed
        is_sequence = isinstance(seed, np.random.SeedSequence)
        # Libraries spawn the seeds of parts from it, as from CuPy's.
        self._seed_seq: Any = seed if is_sequence else np.random.SeedSequence(seed)
        self._made: Any = None

    def _remote(self) -> Any:
        if self._made is None or self._made._gp_session.failure is not None:
            args = (type(self).__name__, _entropy(self._seed_seq))
            self._made = remote_object(_Bits, pool.current(), "random.generator", args)
        return self._made

    def random_raw(self, size: Any = None, output: bool = True) -> Any:
        """Draw 32 random bits for each element."""
        drawn = Generator(self).integers(0, 1 << 32, () if size is None else size, np.uint32)
        return drawn.view(np.int32) if output else None


class XORWOW(BitGenerator):
    """cuRAND's default generator."""


class MRG32k3a(BitGenerator):
    """Combined multiple recursive generator."""


class Philox4x3210(BitGenerator):
    """Counter-based generator."""


# --- the state of the module's functions ----------------------------------------------------------

_random_states: dict[int, Any] = {}
_making = threading.Lock()


def get_random_state() -> Any:
    """Return the current device's random state, made at first use."""
    device = state.local.context[0]
    found = _random_states.get(device)
    if found is None or found._gp_session.failure is not None:
        given = os.environ.get("CUPY_SEED")
        made = RandomState(None if given is None else int(given))
        with _making:
            other = _random_states.get(device)
            # Another thread may have been first; one that it seeded must stay.
            if other is found:
                _random_states[device] = made
            found = _random_states[device]
    return found


def set_random_state(rs: Any) -> None:
    """Use another random state on the current device."""
    if not isinstance(rs, RandomState):
        raise TypeError(f"Random state must be an instance of RandomState. Actual: {type(rs)}")
    _random_states[state.local.context[0]] = rs


def reset_states() -> None:
    """Forget all random states, so that new seeds are drawn."""
    global _random_states
    _random_states = {}  # a new one, by which callers recognise the reset


def seed(seed: Any = None) -> None:
    """Start the current device's random state again from a seed."""
    get_random_state().seed(seed)


def multinomial(n: int, pvals: object, size: Any = None) -> Any:
    """Draw counts of outcomes from the multinomial distribution."""
    weights = convert.asarray(pvals)
    meta = fresh(np.dtype(np.int64), (*_shape(size), *weights.shape))
    args = (get_random_state(), n, weights, meta.shape)
    return make.forward("random.multinomial", args, {}, meta)
