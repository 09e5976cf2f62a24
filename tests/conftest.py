"""Setup common to all tests."""

import compileall
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from tests import limits, processes, properties, shared

# Thousands of collected tests stay: the collector of garbage finds nothing in them.
gc.disable()

properties.register()

# Shells start what runs in the background with these ignored, and so would every program of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where tests run in several processes, their environment has a width of 80; the terminals of tests
# have sizes of their own.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Hundreds of processes of one run import the same modules. Where Python is told to write no
# bytecode, as in many containers, each of them would compile all of them anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package as an installation does: its workers write no bytecode themselves."""
    config.pluginmanager.register(limits)
    config.pluginmanager.register(shared)
    config.pluginmanager.register(processes)
    if not hasattr(config, "workerinput"):
        root = Path(__file__).parent.parent
        for name in ("cli", "consensus", "monitoring", "pool", "remoting", "simulations"):
            compileall.compile_dir(root / name, quiet=2)


def pytest_collection_finish() -> None:
    """Exclude the objects of collected tests from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()
