"""Helpers of power series, which the worker describes: a row for each."""

# ruff: noqa: D103

from __future__ import annotations

from cupy._core.dispatch import learning as _learning
from cupy._core.dispatch.learning import Array, Asked, Elements, Likes


def as_series(alist: Likes, trim: bool = True) -> Asked: ...
def trimcoef(c: Array, tol: float = 0) -> Elements: ...
def trimseq(seq: Array) -> Elements: ...


_learning.rows(globals(), "polynomial.polyutils.")
