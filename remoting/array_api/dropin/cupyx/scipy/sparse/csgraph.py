"""Graphs as sparse matrices."""

from cupy._door import absent as _absent

from cupyx import _objects

connected_components = _objects.function("sparse", "csgraph.connected_components")
__getattr__ = _absent.lookup(__name__)
