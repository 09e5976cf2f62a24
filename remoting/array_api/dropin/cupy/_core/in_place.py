"""Methods that change an array, which the worker describes: a row for each."""

from __future__ import annotations

from typing import Any

from cupy._core.dispatch import arguments, learning
from cupy._core.dispatch.learning import Array


def partition(self: Array, kth: object, axis: object = -1) -> Any: ...
def sort(self: Array, axis: object = -1, kind: object = None) -> Any:
    arguments.check_kind(kind)


learning.rows(globals(), "ndarray.")
