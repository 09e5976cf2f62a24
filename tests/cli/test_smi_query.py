"""nvidia-smi's options that programs use, in the words that they parse."""

import pytest

from gpupool.pool.errors import UsageError
from gpupool.remoting.program.smi_query import chosen, listed, query

GIB = 1 << 30


def device(index: int, **other: object) -> dict[str, object]:
    return {
        "index": index,
        "server": "a",
        "name": "NVIDIA H200",
        "uuid": f"GPU-{index}{index}",
        "bus_id": f"00000000:0{index}:00.0",
        "capability": "9.0",
        "memory": 20 * GIB,
        "used": 5 * GIB,
        "utilization": 0.416,
        "temperature_c": 34.0,
        "power_w": 122.349,
    } | other


DEVICES = [device(0), device(1, utilization=None, power_w=None)]


def test_list() -> None:
    assert listed(DEVICES) == [
        "GPU 0: NVIDIA H200 (UUID: GPU-00)",
        "GPU 1: NVIDIA H200 (UUID: GPU-11)",
    ]


def test_query_has_nvidia_smis_headings_units_and_order() -> None:
    fields = "name, memory.used,utilization.gpu,temperature.gpu,power.draw"
    assert query(DEVICES, "580.1", fields, "csv") == [
        "name, memory.used [MiB], utilization.gpu [%], temperature.gpu, power.draw [W]",
        "NVIDIA H200, 5120 MiB, 42 %, 34, 122.35 W",
        "NVIDIA H200, 5120 MiB, [N/A], 34, [N/A]",
    ]


def test_query_as_gputil_asks() -> None:
    """GPUtil's list of fields; it splits at ", " and converts numbers."""
    fields = (
        "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,"
        "gpu_serial,display_active,display_mode,temperature.gpu"
    )
    line = query(DEVICES[:1], "580.1", fields, "csv,noheader,nounits")
    assert line == [
        "0, GPU-00, 42, 20480, 5120, 15360, 580.1, NVIDIA H200, [N/A], [N/A], [N/A], 34"
    ]


def test_no_units_keeps_the_heading() -> None:
    assert query(DEVICES[:1], "", "gpu_name,memory.free,count,driver_version", "csv,nounits") == [
        "name, memory.free [MiB], count, driver_version",  # as nvidia-smi's own, whatever was asked
        "NVIDIA H200, 15360, 1, [N/A]",
    ]


def test_more_used_than_there_is_leaves_nothing_free() -> None:
    assert query([device(0, used=21 * GIB)], "", "memory.free", "csv,noheader") == ["0 MiB"]


@pytest.mark.parametrize("wanted", ["1", "GPU-11", "gpu-11", "00000000:01:00.0", " 1 ,"])
def test_chosen(wanted: str) -> None:
    assert [d["index"] for d in chosen(DEVICES, wanted)] == [1]


def test_wrong_words_say_what_there_is() -> None:
    with pytest.raises(UsageError, match='Field "nam" is not a valid field to query') as raised:
        query(DEVICES, "", "nam", "csv")
    assert "memory.used" in str(raised.value.hint)
    with pytest.raises(UsageError, match="not a format"):
        query(DEVICES, "", "name", "noheader")
    with pytest.raises(UsageError, match="no device 2"):
        chosen(DEVICES, "2")
