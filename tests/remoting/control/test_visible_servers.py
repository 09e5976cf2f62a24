"""The servers of a lease that a process needs, by its CUDA_VISIBLE_DEVICES."""

import pytest

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.state import Partition
from gpupool.remoting.client.visible_devices import check_places, places_of, visible_servers
from gpupool.remoting.protocol.driver_variables import VISIBLE

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


@pytest.mark.parametrize(
    ("visible", "places"),
    [
        (None, {"a": "", "b": ""}),
        ("0,1,2,3", {"a": "", "b": ""}),
        ("2", {"b": "0"}),
        ("1, 0", {"a": "1,0"}),
        ("3,0,1", {"b": "1", "a": ""}),
        ("0,0", None),
        *((text, {}) for text in ("", "-1", "abc", "5", "GPU-", "NoDevFiles", ",0")),
        ("1,7,0", {"a": "1"}),
        ("1,GPU-aaaa-0", {"a": "1"}),
        ("gpu-BBBB-1,GPU-aaaa-1", {"b": "1", "a": "1"}),
        ("GPU-aaaa", {}),  # fits two
    ],
)
def test_devices_of_the_array_door(visible: str | None, places: dict[str, str] | None) -> None:
    found = places_of("arrays", visible, PARTITIONS, (A, B))
    if places is None:
        assert found is None
        return
    assert found is not None
    # In this order.
    assert [*found.items()] == [
        (server, {VISIBLE: text} if text else {}) for server, text in places.items()
    ]


def test_a_server_twice_is_refused() -> None:
    with pytest.raises(GpupoolError, match="not possible here"):
        places_of("arrays", "0,2,1", PARTITIONS, (A, B))


def test_the_cuda_door_chooses_by_itself() -> None:
    assert places_of("cuda", "3", PARTITIONS, (A, B)) == {B: {}}


def test_emulated_devices_have_names_too() -> None:
    parts = [Partition(A, GpuId(f"EMU-{name}-0"), 1) for name in ("1a", "2b")]
    assert places_of("arrays", "EMU-2,EMU-1a-0", parts, (A,)) == {A: {VISIBLE: "1,0"}}


def test_a_server_that_is_too_old_is_named() -> None:
    check_places({VISIBLE: "1"}, 1, "a")
    check_places({}, 2, "a")
    with pytest.raises(GpupoolError, match="server a opened a session with all its devices"):
        check_places({VISIBLE: "1"}, 2, "a")
