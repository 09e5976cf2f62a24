"""The families of objects of a backend, as operations."""

from collections.abc import Callable
from typing import Any

from gpupool.remoting.devices.geometry.spatial import EmulatedSpatial, Spatial
from gpupool.remoting.devices.interpolators import Interpolators
from gpupool.remoting.devices.remote_objects import Objects
from gpupool.remoting.devices.sparse import EmulatedSparse, Sparse


def real_objects(backend: object) -> dict[str, Callable[..., Any]]:
    """Return the operations of a real GPU, with CuPy's objects."""
    return _table(backend, (Sparse, Interpolators, Spatial), "cupyx.scipy")


def emulated_objects(backend: object) -> dict[str, Callable[..., Any]]:
    """Return the operations of an emulated GPU, with SciPy's objects."""
    return _table(backend, (EmulatedSparse, Interpolators, EmulatedSpatial), "scipy")


def _table(
    backend: object, kinds: tuple[type[Objects], ...], library: str
) -> dict[str, Callable[..., Any]]:
    families: list[Objects] = []
    for kind in kinds:
        kind(backend, families, library)
    return {name: call for family in families for name, call in family.table().items()}
