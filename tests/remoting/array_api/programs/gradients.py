"""Solve Poisson's equation on a square by conjugate gradients with Jacobi's preconditioner.

The matrix is never formed: its product is a difference of slices, and the weights vary in space.
"""

from typing import Any

import numpy as np

SIDE, TOLERANCE = 24, 1e-10


def _product(xp: Any, weights: Any, u: Any) -> Any:
    """Return minus the divergence of weights times the slope of u, zero outside the square."""
    wide = xp.pad(u, 1)
    across = weights[:, 1:-1]
    down = weights[1:-1, :]
    east = 0.5 * (across[1:-1] + across[2:])
    west = 0.5 * (across[1:-1] + across[:-2])
    south = 0.5 * (down[:, 1:-1] + down[:, 2:])
    north = 0.5 * (down[:, 1:-1] + down[:, :-2])
    made = (east + west + south + north) * u
    made -= east * wide[2:, 1:-1] + west * wide[:-2, 1:-1]
    made -= south * wide[1:-1, 2:] + north * wide[1:-1, :-2]
    return made


def run(xp: Any) -> list[Any]:
    """Return the solution, the number of turns, and the sizes of the rest."""
    grid = xp.linspace(0, 1, SIDE + 2)
    weights = 1 + 0.5 * xp.sin(np.pi * grid)[:, None] * xp.cos(np.pi * grid)[None, :]
    y, x = xp.ogrid[0 : 1 : SIDE * 1j, 0 : 1 : SIDE * 1j]
    right = xp.where(xp.hypot(y - 0.4, x - 0.6) < 0.2, 1.0, -0.1)
    scale = 1 / (4 * weights[1:-1, 1:-1])
    u = xp.zeros_like(right)
    rest = right - _product(xp, weights, u)
    step = scale * rest
    size = xp.vdot(rest, step)
    sizes: list[float] = []
    for _ in range(400):
        moved = _product(xp, weights, step)
        alpha = size / xp.vdot(step, moved)
        u += alpha * step
        rest -= alpha * moved
        sizes.append(float(xp.linalg.norm(rest)))
        if sizes[-1] < TOLERANCE:
            break
        better = scale * rest
        size, old = xp.vdot(rest, better), size
        step = better + (size / old) * step
    assert sizes[-1] < TOLERANCE, sizes
    columns = xp.eye(SIDE * SIDE).reshape(-1, SIDE, SIDE)
    matrix = xp.stack([_product(xp, weights, each).ravel() for each in columns[: 2 * SIDE]], axis=1)
    return [u, matrix, len(sizes), xp.allclose(_product(xp, weights, u), right)]
