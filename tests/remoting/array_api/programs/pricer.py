"""Price an Asian call option by Monte Carlo, with antithetic paths and a control variate.

The normal numbers come from NumPy, so that both libraries walk the same paths. The control
variate is the geometric mean's option, whose price is known in closed form.
"""

from typing import Any

import numpy as np

PATHS, STEPS = 2000, 12
SPOT, STRIKE, RATE, SIGMA, YEARS = 100.0, 105.0, 0.03, 0.25, 1.0


def run(xp: Any) -> list[Any]:
    """Return the price, its standard error, the plain estimate, and quantiles of the payoff."""
    normal = xp.asarray(np.random.default_rng(7).standard_normal((PATHS, STEPS)))
    both = xp.concatenate([normal, -normal])
    step = YEARS / STEPS
    drift = (RATE - 0.5 * SIGMA**2) * step
    logs = xp.cumsum(drift + SIGMA * np.sqrt(step) * both, axis=1)
    paths = SPOT * xp.exp(logs)
    discount = float(np.exp(-RATE * YEARS))
    payoff = discount * xp.maximum(paths.mean(axis=1) - STRIKE, 0)
    control = discount * xp.clip(xp.exp(xp.log(paths).mean(axis=1)) - STRIKE, 0, None)
    pairs = 0.5 * (payoff[:PATHS] + payoff[PATHS:])
    controls = 0.5 * (control[:PATHS] + control[PATHS:])
    covariance = xp.cov(pairs, controls)
    beta = covariance[0, 1] / covariance[1, 1]
    better = pairs - beta * (controls - controls.mean())
    error = better.std(ddof=1) / np.sqrt(PATHS)
    counts, edges = xp.histogram(payoff, bins=16)
    return [
        better.mean(),
        error,
        payoff.mean(),
        xp.percentile(payoff, [50, 90, 99]),
        xp.count_nonzero(payoff),
        counts,
        edges,
    ]
