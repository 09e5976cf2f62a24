"""Fit a mixture of Gaussians by expectation and maximization, with full covariances."""

from typing import Any

import numpy as np

POINTS, PARTS, DIMENSIONS, TURNS = 600, 3, 2, 40


def _log_densities(xp: Any, points: Any, means: Any, covariances: Any) -> Any:
    """Return the logarithm of each part's density at each point."""
    factors = xp.linalg.cholesky(covariances)
    apart = points[None] - means[:, None]
    whitened = xp.linalg.solve(factors, xp.swapaxes(apart, 1, 2))
    sizes = xp.log(xp.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    squares = xp.einsum("kdn,kdn->kn", whitened, whitened)
    return (-0.5 * (squares + DIMENSIONS * np.log(2 * np.pi)) - sizes[:, None]).T


def run(xp: Any) -> list[Any]:
    """Return weights, means, covariances, labels and the likelihood of each turn."""
    rng = np.random.default_rng(2)
    centres = np.asarray([[0.0, 0.0], [5.0, 1.0], [1.0, 6.0]])
    made = rng.normal(0, 1, (PARTS, POINTS // PARTS, DIMENSIONS)) + centres[:, None]
    points = xp.asarray(made.reshape(-1, DIMENSIONS))
    means = points[:: POINTS // PARTS][:PARTS].copy()
    covariances = xp.broadcast_to(xp.eye(DIMENSIONS), (PARTS, DIMENSIONS, DIMENSIONS))
    weights = xp.full(PARTS, 1 / PARTS)
    likelihoods: list[float] = []
    shares = xp.zeros((POINTS, PARTS))
    for _ in range(TURNS):
        logs = _log_densities(xp, points, means, covariances) + xp.log(weights)
        top = logs.max(axis=1, keepdims=True)
        totals = top + xp.log(xp.exp(logs - top).sum(axis=1, keepdims=True))
        likelihoods.append(float(totals.sum()))
        shares = xp.exp(logs - totals)
        counts = shares.sum(axis=0)
        weights = counts / POINTS
        means = (shares.T @ points) / counts[:, None]
        apart = points[None] - means[:, None]
        covariances = xp.matmul(xp.swapaxes(apart, 1, 2) * shares.T[:, None], apart)
        covariances = covariances / counts[:, None, None] + 1e-6 * xp.eye(DIMENSIONS)
        if len(likelihoods) > 1 and likelihoods[-1] - likelihoods[-2] < 1e-7:
            break
    labels = shares.argmax(axis=1)
    sizes = xp.unique(labels, return_counts=True)[1]
    return [weights, means, covariances, labels, sizes, np.asarray(likelihoods)]
