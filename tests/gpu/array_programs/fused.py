"""Functions of `fuse`: a step of Adam in place, prices of options, types of all kinds, and sums.

Each is called several times, because a worker fuses the calls that it has seen before. No number is
computed of numbers in them: natively CuPy 14.2 does that in half precision (`1.0 - 0.9` is 0.0999).
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from typing import Any

import numpy as np

TIMES = 4
TYPES = "?bBhHiIlLefdFD"


def adam(xp: Any) -> Any:
    """Return weights and moments after some steps, each in place."""
    random = np.random.default_rng(1)
    weights, gradient = (xp.asarray(random.random((30, 40)).astype("f")) for _ in range(2))
    mean, square = xp.zeros_like(weights), xp.zeros_like(weights)

    def step(w: Any, g: Any, m: Any, v: Any, rate: float, decay: float, rest: float) -> None:
        m *= decay
        m += g * rest
        v *= 0.999
        v += g * g * 0.001
        w -= rate * m / (xp.sqrt(v) + 1e-3)

    fused = fuse(xp, step)
    for at in range(TIMES):
        fused(weights, gradient, mean, square, 0.01 / (at + 1), 0.9, 0.1)
    return weights, mean, square


def options(xp: Any) -> Any:
    """Return the prices by a rational approximation of the normal distribution."""
    strike, days = xp.linspace(50.0, 150.0, 60)[:, None], xp.linspace(0.1, 2.0, 50)

    def normal(x: Any) -> Any:
        t = 1.0 / (1.0 + 0.2316419 * xp.absolute(x))
        tail = t * (0.31938153 + t * (-0.356563782 + t * 1.781477937))
        below = xp.exp(-0.5 * x * x) * 0.3989422804 * tail
        return xp.where(x < 0, below, 1.0 - below)

    def price(k: Any, t: Any, rate: float, drift: float) -> Any:
        root = 0.2 * xp.sqrt(t)
        first = (xp.log(100.0 / k) + drift * t) / root
        return 100.0 * normal(first) - k * xp.exp(0.0 - rate * t) * normal(first - root)

    fused = fuse(xp, price)
    return [fused(strike, days, 0.01 * at, 0.01 * at + 0.02) for at in range(TIMES)][-1]


def types(xp: Any) -> list[Any]:
    """Return chains over arrays of each type, with numbers of Python."""
    found = []
    for kind in TYPES:
        a = xp.asarray(np.arange(1, 13).reshape(3, 4).astype(kind))
        b = xp.asarray((np.arange(12).reshape(3, 4) % 3).astype(kind))

        def chain(a: Any, b: Any) -> Any:
            c = a + b
            d = c * a
            return d, xp.maximum(c, d) if a.dtype.kind != "c" else d * 2, (d == c) | (c != a)

        fused = fuse(xp, chain)
        found += [fused(a, b) for _ in range(TIMES)][-1]

        def weak(a: Any, n: int) -> Any:
            return (a * n + n) * a

        if kind != "?":
            found.append([fuse(xp, weak)(a, 2) for _ in range(TIMES)][-1])
    return found


def sums(xp: Any) -> list[Any]:
    """Return the results of sums between element-wise operations; CuPy itself cannot fuse these."""
    x = xp.asarray(np.linspace(-1, 1, 48).reshape(6, 8), order="F")

    def spread(x: Any) -> Any:
        centred = (x - x.sum(axis=0) / 6) * 2.0
        return xp.sqrt((centred * centred).sum(axis=0)) + 1.0, centred.astype("f") * 3

    fused = fuse(xp, spread) if hasattr(xp, "_door") else spread
    return list([fused(x) for _ in range(TIMES)][-1])


def fuse(xp: Any, function: Any) -> Any:
    """Return the fused function; NumPy computes it as it is."""
    return function if xp is np else xp.fuse(function)


def run(xp: Any) -> list[Any]:
    """Return all results."""
    return [*adam(xp), options(xp), *types(xp), *sums(xp)]
