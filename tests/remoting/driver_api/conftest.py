"""What the tests of the CUDA door share."""

from pathlib import Path

import pytest

from gpupool.remoting.driver_api import build


@pytest.fixture(scope="session")
def library() -> Path:
    """Give the folder with the shim, and with what the worker loads, as an installation has it."""
    return build.ensure().parent
