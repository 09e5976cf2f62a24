"""Rank the pages of a random web of links with a sparse matrix, some pages without links."""

import importlib
from typing import Any

import numpy as np

PAGES, LINKS, DAMPING, TOLERANCE = 2000, 9000, 0.85, 1e-10


def run(xp: Any) -> list[Any]:
    """Return the ranks, the ten best pages, and how many turns it took."""
    sparse: Any = importlib.import_module("scipy.sparse" if xp is np else "cupyx.scipy.sparse")
    rng = np.random.default_rng(5)
    source = xp.asarray(rng.integers(0, PAGES, LINKS) ** 2 // PAGES)
    target = xp.asarray(rng.integers(0, PAGES, LINKS))
    links = sparse.coo_matrix((xp.ones(LINKS), (target, source)), shape=(PAGES, PAGES)).tocsr()
    links.sum_duplicates()
    links.data[:] = 1.0  # a page counts each other once
    degree = xp.asarray(links.sum(axis=0)).ravel()
    leaves = degree == 0
    share = sparse.diags(xp.where(leaves, 0.0, 1.0 / xp.maximum(degree, 1.0)))
    step = (links @ share).tocsr()
    rank = xp.full(PAGES, 1.0 / PAGES)
    turns = 0
    for _ in range(200):
        turns += 1
        new = DAMPING * (step @ rank + rank[leaves].sum() / PAGES) + (1 - DAMPING) / PAGES
        moved = float(xp.abs(new - rank).sum())
        rank = new
        if moved < TOLERANCE:
            break
    best = xp.argsort(-rank)[:10]
    return [rank, best, links.nnz, step.sum(), rank.sum(), turns]
