"""Common parts of the tests of the CUDA door."""

import os
from pathlib import Path

import pytest

from gpupool.remoting.driver_api import build


@pytest.fixture(scope="session")
def library() -> Path:
    """Return the folder with the shim and the worker's libraries, as an installation has it.

    ``make sanitized-tests`` gives a folder of its own, and flags for the C programs.
    """
    if "GPUPOOL_LIBRARY" in os.environ:
        return Path(os.environ["GPUPOOL_LIBRARY"])
    return build.ensure().parent
