"""Which servers of a lease a process needs, by its CUDA_VISIBLE_DEVICES."""

import pytest

from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.state import Partition
from gpupool.remoting.client.lease_handle import visible_servers

A, B = ServerId("a"), ServerId("b")
NAMES = ("GPU-aaaa-0", "GPU-bbbb-0", "GPU-aaaa-1", "GPU-bbbb-1")
PARTITIONS = [
    Partition(server, GpuId(name), 1) for server, name in zip((A, B, A, B), NAMES, strict=True)
]


@pytest.mark.parametrize(
    ("visible", "servers"),
    [
        (None, "ab"),
        ("0", "a"),
        ("1", "a"),  # numbered server after server
        ("2, 3", "b"),
        ("3,0", "ab"),
        ("2,7,0", "b"),  # nothing behind what fits nothing
        ("GPU-aaaa-1,gpu-BBBB-0", "ab"),
        ("GPU-bbbb", "a"),  # none, but the version of a driver
        ("", "a"),
        ("-1", "a"),
        ("2,2", "a"),
    ],
)
def test_servers_of_visible_devices(visible: str | None, servers: str) -> None:
    assert "".join(visible_servers(visible, PARTITIONS, (A, B))) == servers


def test_parts_of_gpus_say_nothing() -> None:
    parts = [Partition(server, GpuId(f"MIG-{server}"), 1) for server in (A, B)]
    assert visible_servers("1", parts, (A, B)) == (A, B)
