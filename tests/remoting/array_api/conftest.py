"""The drop-in imported in this process, over workers in threads."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import door_kit


@pytest.fixture(scope="package")
def dropin() -> Iterator[Any]:
    """Import `cupy` of the drop-in, with two emulated devices; forget it afterwards."""
    assert "cupy" not in sys.modules
    sys.path.insert(0, str(door_kit.DROPIN))
    import cupy  # pyright: ignore[reportMissingImports]

    ours, theirs = socket.socketpair()
    thread, _ = door_kit.start_worker(theirs, door_kit.emulated(2, 512 * door_kit.MIB))
    cupy._door.pool.attach(ours)
    yield cupy
    for session in cupy._door.pool.sessions():
        session.close()
    cupy._door.pool.reset()
    thread.join(5)
    assert not thread.is_alive()
    sys.path.remove(str(door_kit.DROPIN))
    for name in [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx")]:
        del sys.modules[name]


@pytest.fixture(scope="package")
def cp(dropin: Any) -> Any:
    """Give the drop-in by the name that programs use."""
    return dropin
