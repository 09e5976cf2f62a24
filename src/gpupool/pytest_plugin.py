"""The plug-in of pytest: one test session on emulated GPUs, without a pool.

It does nothing until it is named: ``pytest -p gpupool.pytest_plugin``, the same in ``addopts``, or
``pytest_plugins`` of the first conftest.py. ``import cupy`` finds the drop-in from then on, in the
workers of pytest-xdist and all other children, too. Under ``gpupool run`` and ``gpupool emulate``
the program has its GPUs, and the plug-in changes nothing.
"""

import argparse
import os
import sys

import pytest

from gpupool.pool.errors import GpupoolError
from gpupool.pool.values import parse_count, parse_partition
from gpupool.remoting.program.door_choice import dropin_dir
from gpupool.remoting.program.emulation import AGENT, Emulation, start

GPUS, MEMORY = "1", "4G"


def _parsed(name: str, text: str) -> int:
    try:
        return parse_count(text) if name == "--gpupool-gpus" else parse_partition(text)
    except ValueError as error:
        raise pytest.UsageError(f"{name}: {error}") from error


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the GPUs."""
    group = parser.getgroup("gpupool", "emulated GPUs for cupy")
    strict = "find errors that a real GPU hides; slower"
    group.addoption("--gpupool-strict", action="store_true", help=strict)
    gpus, memory = f"number of GPUs, {GPUS} by default", f"memory of each, {MEMORY} by default"
    group.addoption("--gpupool-gpus", default=GPUS, metavar="N", help=gpus)
    group.addoption("--gpupool-memory", default=MEMORY, metavar="SIZE", help=memory)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Emulate before any conftest.py can import cupy."""
    _emulate(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Emulate at the latest; a conftest.py has named the plug-in then."""
    _emulate(config)


def _emulate(config: pytest.Config) -> None:
    if AGENT not in os.environ:
        _start(config.known_args_namespace)
    dropin = str(dropin_dir())
    # pytest-xdist gives its workers the path that it had when it was imported.
    if dropin in os.environ.get("PYTHONPATH", "") and dropin not in sys.path:
        sys.path.insert(0, dropin)


def _start(options: argparse.Namespace) -> None:
    if "cupy" in sys.modules:
        raise pytest.UsageError(
            "cupy was imported before gpupool.pytest_plugin: name the plug-in by -p, or in addopts"
        )
    # A conftest.py that names the plug-in is too late for its options.
    count = _parsed("--gpupool-gpus", getattr(options, "gpupool_gpus", GPUS))
    memory = _parsed("--gpupool-memory", getattr(options, "gpupool_memory", MEMORY))
    strict = getattr(options, "gpupool_strict", False)
    try:
        os.environ.update(start(Emulation(count, memory, strict=strict), os.environ))
    except GpupoolError as error:
        raise pytest.UsageError(f"{error}; {error.hint}" if error.hint else str(error)) from error
