"""Power series, which the worker describes: a row for each function."""

# ruff: noqa: D103

from __future__ import annotations

from typing import Any

from cupy._core.dispatch import learning as _learning
from cupy._core.dispatch.learning import Array, Elements, Like


def polycompanion(c: Array) -> Elements: ...
def polyval(x: Like, c: Like, tensor: bool = True) -> Any: ...
def polyvalfromroots(x: Like, r: Like, tensor: bool = True) -> Any: ...
def polyvander(x: Array, deg: int) -> Any: ...


_learning.rows(globals(), "polynomial.polynomial.")
