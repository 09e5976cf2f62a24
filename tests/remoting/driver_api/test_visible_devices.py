"""The meaning of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: to the library, and to gpupool run."""

import subprocess
from pathlib import Path

import pytest

from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.state import Partition
from gpupool.remoting.client.visible_devices import visible_servers
from gpupool.remoting.driver_api import build

HERE = Path(__file__).resolve().parent

UUIDS = (
    *("GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1", "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293"),
    *("GPU-e429a63e-c61c-4795-b757-5132caeb8e70", "GPU-e56257c4-947f-6a5b-7ec9-0f45567ccf4e"),
)

LISTS = {
    "": "",
    "-1": "",
    "NoDevFiles": "",
    "0": "0",
    "2,1": "21",
    " 3 , 0 ": "30",
    "0,2,-1,1": "02",  # nothing behind what fits nothing
    "1,9,0": "1",
    "1,,0": "1",
    "1,two,0": "1",
    "1,0,1": "twice",
    "2, +3, -0": "230",
    "1gpu2,2ampere": "12",
    "99999999999999999999": "",
    UUIDS[1]: "1",
    f"{UUIDS[3]},{UUIDS[0]}": "30",
    UUIDS[2].upper(): "2",
    "GPU-e4,GPU-99": "20",
    "GPU-9e8 ,GPU-e5": "13",
    "GPU-9e8, GPU-e5": "1",
    " GPU-9e8": "",
    "GPU-9e8,GPU-123,GPU-e4": "1",
    "GPU-9e8,GPU-e,GPU-99": "1",  # it fits two
    "GPU-9": "",
    "GPU-": "",
    "GPU": "",
    "9942190a": "",
    "GPU-9e8d35e3,GPU-e4,GPU-9e8": "twice",
    "GPU-e4,1": "2",  # names or numbers
    "1,GPU-e4": "1",
    "MIG-9942190a": "",
    f"MIG-{UUIDS[0]}/1/2": "",
}


@pytest.fixture(scope="module")
def visible(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = tmp_path_factory.mktemp("visible") / "visible"
    command = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{build.HEADERS}"]
    sources = (HERE / "programs" / "visible.c", build.HERE / "shim" / "base" / "visible.c")
    command += ["-o", str(program), *map(str, sources)]
    subprocess.run(command, check=True)
    return str(program)


def output(*words: str, **environment: str) -> str:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_library_sees_what_cuda_does(visible: str) -> None:
    words = output(visible, ",".join(UUIDS), *LISTS).split(".\n")
    assert dict(zip(LISTS, words, strict=False)) == LISTS


@pytest.mark.parametrize("given", LISTS)
def test_servers_of_what_the_library_sees_get_sessions(given: str) -> None:
    servers = [ServerId(f"s{at}") for at in range(len(UUIDS))]
    partitions = [
        Partition(server, GpuId(uuid), 1) for server, uuid in zip(servers, UUIDS, strict=True)
    ]
    chosen = sorted(LISTS[given].strip("twice") or "0")  # the first has a driver's version to tell
    assert visible_servers(given, partitions, servers) == tuple(f"s{at}" for at in chosen)


def test_a_part_of_a_gpu_has_its_own_name_and_the_gpus(visible: str) -> None:
    part = "MIG-65f8d22b-2f3b-5d6b-8c7e-5c3c8a2b1d0e"
    lists = {part: "0", "MIG-65": "0", UUIDS[0]: "0", "0": "0", "MIG-66": "", f"{part},0": "0"}
    words = output(visible, f"{part}/{UUIDS[0]}", *lists).split(".\n")
    assert dict(zip(lists, words, strict=False)) == lists


@pytest.mark.parametrize(
    ("order", "expected"),
    [("FASTEST_FIRST", "21403"), ("PCI_BUS_ID", "01234"), ("", "01234"), ("no", "01234")],
)
def test_order_of_unlike_devices(order: str, expected: str, visible: str) -> None:
    speeds = ("500", "900", "1000", "400", "900")
    given = {"CUDA_DEVICE_ORDER": order} if order else {}
    assert output(visible, "order", *speeds, **given) == expected
