"""Graphs as sparse matrices."""

from __future__ import annotations

from typing import Any

from cupy._door import absent as _absent

from cupyx.scipy.sparse import _wire


def connected_components(
    csgraph: Any,
    directed: bool = True,
    connection: str = "weak",
    return_labels: bool = True,
) -> Any:
    """Return how many parts of a graph are not connected, and the part of each node."""
    if connection.lower() not in ("weak", "strong"):
        raise ValueError("connection must be 'weak' or 'strong'")
    if csgraph.ndim != 2 or csgraph.shape[0] != csgraph.shape[1]:
        raise ValueError("graph should be a square array")
    return _wire.ask(
        "csgraph.connected_components", csgraph, bool(directed), connection, bool(return_labels)
    )


__getattr__ = _absent.lookup(__name__)
