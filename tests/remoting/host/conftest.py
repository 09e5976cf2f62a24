"""Starts hosts with real worker processes and ``echo_door`` as their door."""

import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.host.worker_helper import HelperSettings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from host_kit import GIB, SERVER, HostKit, LogLines, MakeHost  # noqa: E402


@pytest.fixture
def door_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import ``echo_door``."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture
async def make_host(
    tmp_path: Path, nursery: trio.Nursery, door_on_path: None
) -> AsyncIterator[MakeHost]:
    """Start hosts; at the end each of their workers must be gone."""
    kits: list[HostKit] = []

    async def make(inventory: Inventory | None = None, **options: Any) -> HostKit:
        log = LogLines()
        options.setdefault("warm_workers", 0)
        options.setdefault("doors", {"echo": "echo_door:serve"})
        inventory = inventory or Inventory.discover(
            SERVER, None, emulated_count=4, emulated_memory=8 * GIB
        )
        directory = tmp_path / f"host{len(kits)}"
        directory.mkdir(mode=0o711)
        names = HelperSettings.__dataclass_fields__.keys() & options.keys()
        workers = HelperSettings(
            directory, directory, **{each: options.pop(each) for each in names}
        )
        host = HostSupervisor(inventory, workers, log=log.append, **options)
        await nursery.start(host.run)
        kits.append(HostKit(host, directory, log, nursery))
        return kits[-1]

    yield make
    nursery.cancel_scope.cancel()
    for kit in kits:
        for client in kit.clients:
            client.stream.close()
        for close in kit.closers:
            close()


@pytest.fixture
def tcp_pair() -> Iterator[Callable[[], tuple[socket.socket, socket.socket]]]:
    """Make connected TCP sockets on the loopback: the client's end and the server's."""
    opened: list[socket.socket] = []

    def make() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _address = listener.accept()
        opened.extend((ours, theirs))
        return ours, theirs

    yield make
    for sock in opened:
        sock.close()
