"""gpupool: one pool of the GPUs of many servers, and programs that run on them from anywhere.

For Python programs: ``lease``, ``open_lease`` and ``Pool``; docs/api.md describes them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpupool.pool.errors import GpupoolError as GpupoolError
    from gpupool.remoting.program.python_lease import Lease as Lease
    from gpupool.remoting.program.python_lease import lease as lease
    from gpupool.remoting.program.python_lease import open_lease as open_lease
    from gpupool.remoting.program.python_pool import Pool as Pool

__version__ = "0.1.0"

_PLACES = {
    "lease": "gpupool.remoting.program.python_lease",
    "open_lease": "gpupool.remoting.program.python_lease",
    "Lease": "gpupool.remoting.program.python_lease",
    "Pool": "gpupool.remoting.program.python_pool",
    "GpupoolError": "gpupool.pool.errors",
}
"""Imported when they are used: the command line must start fast."""

__all__ = ["GpupoolError", "Lease", "Pool", "lease", "open_lease"]  # as _PLACES has them


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'gpupool' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Serve ``%load_ext gpupool``."""
    importlib.import_module("gpupool.remoting.program.notebook_magics").register(shell)
