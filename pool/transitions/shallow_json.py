"""JSON in uploads, read to a depth that is stated: how deep a stack is differs between servers."""

import json
import re
from typing import Any

DEPTH_MAX = 64
"""Policies and backups nest less than ten deep."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def load_shallow(data: bytes) -> Any:
    """Return the value in ``data``.

    Raises:
        ValueError: when it is not JSON, or nested too deeply.
    """
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    return json.loads(data)
