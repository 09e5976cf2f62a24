"""Which device and stream each thread uses, and hooks that later modules fill in."""

import threading
from typing import Any

Context = tuple[int, int]
"""A device's number in this program, and the handle of a stream there (0: the default one)."""

DEFAULT: Context = (0, 0)
hooks: dict[str, Any] = {}
"""Classes that this package's inner modules need from its outer ones, by name."""


class _Local(threading.local):
    context: Context = DEFAULT


local = _Local()
_contexts: dict[Context, Context] = {DEFAULT: DEFAULT}


def use(device: int, stream: int) -> Context:
    """Make this thread use a device and stream; return what it used before.

    Equal contexts are one object, so that the hot path compares identities.
    """
    before = local.context
    key = (device, stream)
    local.context = _contexts.setdefault(key, key)
    return before
