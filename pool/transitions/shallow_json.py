"""JSON in uploads, read to a depth that is stated: how deep a stack is differs between servers."""

import json
import re
from collections.abc import Callable
from typing import Any

DEPTH_MAX = 64
"""Policies and backups nest less than ten deep."""

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A JSON string, matched without backtracking: a backup has 100,000 characters."""

_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")


def load_shallow(data: bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the value in ``data``, with each object replaced by the result of ``object_hook``.

    Raises:
        ValueError: when it is not JSON, or nested too deeply.
    """
    depth = 0
    for bracket in STRING.sub(b"", data).translate(None, _OTHERS):
        depth += 1 if bracket in _OPENING else -1
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    return json.loads(data, object_hook=object_hook)
