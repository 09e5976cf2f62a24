"""Rank the pages of a random web of links by power iteration, some pages without links."""

from typing import Any

import numpy as np

PAGES, LINKS, DAMPING, TOLERANCE = 300, 2400, 0.85, 1e-10


def run(xp: Any) -> list[Any]:
    """Return the ranks, the order of the ten best, and how many turns it took."""
    rng = np.random.default_rng(11)
    links = np.unique(rng.integers(0, PAGES, (LINKS, 2)) ** 2 // PAGES, axis=0)
    source, target = xp.asarray(links[:, 0]), xp.asarray(links[:, 1])
    degree = xp.bincount(source, minlength=PAGES)
    leaves = degree == 0
    share = xp.where(leaves, 0.0, 1.0 / xp.maximum(degree, 1))
    rank = xp.full(PAGES, 1.0 / PAGES)
    turns = 0
    for _ in range(200):
        turns += 1
        sent = xp.bincount(target, weights=(rank * share)[source], minlength=PAGES)
        lost = rank[leaves].sum() / PAGES
        new = (1 - DAMPING) / PAGES + DAMPING * (sent + lost)
        moved = xp.abs(new - rank).sum()
        rank = new
        if float(moved) < TOLERANCE:
            break
    matrix = xp.zeros((PAGES, PAGES))
    matrix[target, source] = share[source]  # the same product with a dense matrix
    again = (1 - DAMPING) / PAGES + DAMPING * (matrix @ rank + rank[leaves].sum() / PAGES)
    assert bool(xp.allclose(again, rank, atol=1e-9))
    best = xp.argsort(-rank)[:10]
    return [rank, best, xp.take(rank, best), rank.sum(), turns]
