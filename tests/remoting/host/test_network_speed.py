"""A server's report on its network, from a tree of files as the kernel shows it."""

import sys
from pathlib import Path

import pytest

from gpupool.remoting.host.measuring.network_speed import (
    has_rdma,
    interface_of,
    link_speed,
    speed_of,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "speed"),
    [("100000\n", 100_000), ("-1\n", 0), ("4294967295\n", 0), ("", 0), ("fast\n", 0)],
)
def test_the_speed_of_an_interface(tmp_path: Path, text: str, speed: int) -> None:
    write(tmp_path / "class" / "net" / "eth0" / "speed", text)
    assert speed_of("eth0", tmp_path) == speed
    assert speed_of("eth1", tmp_path) == 0


@pytest.mark.parametrize(
    ("states", "expected"),
    [(["1: DOWN", "4: ACTIVE"], True), (["1: DOWN", "2: INIT"], False), ([], False)],
)
def test_rdma_takes_an_active_port(tmp_path: Path, states: list[str], expected: bool) -> None:
    for number, state in enumerate(states):
        port = tmp_path / "class" / "infiniband" / f"mlx5_{number}" / "ports" / "1"
        write(port / "state", f"{state}\n")
    assert has_rdma(tmp_path) is expected


@pytest.mark.skipif(sys.platform != "linux", reason="it asks Linux")
def test_the_interface_that_has_an_address(tmp_path: Path) -> None:
    loopback = interface_of("127.0.0.1")
    assert loopback == "lo"
    write(tmp_path / "class" / "net" / loopback / "speed", "25000")
    assert link_speed("127.0.0.1", tmp_path) == 25_000
    for unknown in ("192.0.2.1", "2001:db8::1", "host.example", ""):
        assert interface_of(unknown) == ""
        assert link_speed(unknown, tmp_path) == 0
