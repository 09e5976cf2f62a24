"""Random numbers, drawn on the server."""

from typing import Any

from cupy._core.dispatch.transfers import download as _download
from cupy._door import absent as _absent
from cupy.random import _generator as _generator
from cupy.random._generator import XORWOW as XORWOW
from cupy.random._generator import BitGenerator as BitGenerator
from cupy.random._generator import Generator as Generator
from cupy.random._generator import MRG32k3a as MRG32k3a
from cupy.random._generator import Philox4x3210 as Philox4x3210
from cupy.random._generator import RandomState as RandomState
from cupy.random._generator import get_random_state as get_random_state
from cupy.random._generator import multinomial as multinomial
from cupy.random._generator import reset_states as reset_states
from cupy.random._generator import seed as seed
from cupy.random._generator import set_random_state as set_random_state


def _of_state(name: str) -> Any:
    def function(*args: object, **kwargs: object) -> Any:
        return getattr(get_random_state(), name)(*args, **kwargs)

    function.__name__ = name
    function.__doc__ = getattr(RandomState, name).__doc__
    return function


_OTHERS = "choice dirichlet multivariate_normal permutation rand randint randn shuffle"
for _name in (*_generator.DISTRIBUTIONS, *_OTHERS.split()):
    globals()[_name] = _of_state(_name)
random = ranf = sample = globals()["random_sample"]


def random_integers(low: int, high: Any = None, size: Any = None) -> Any:
    """Draw integers from [low, high], or from [1, low]."""
    if high is None:
        low, high = 1, low
    return get_random_state().randint(low, high + 1, size)


def bytes(length: int) -> Any:  # noqa: A001 - NumPy's name
    """Return random bytes on the host."""
    return _download(get_random_state().randint(0, 256, length, "uint8")).tobytes()


def default_rng(seed: object = None) -> Generator:
    """Return a generator with a seed."""
    if isinstance(seed, Generator):
        return seed
    return Generator(seed if isinstance(seed, BitGenerator) else XORWOW(seed))


__getattr__ = _absent.lookup(__name__)
