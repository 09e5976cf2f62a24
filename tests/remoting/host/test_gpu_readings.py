"""The slow readings of GPUs, the leases' shares of time, and reports on a lost GPU."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_binding import LINKS, FakeBinding, install
from fake_nvml import IDLE, FakeNvml, device
from host_kit import SERVER

from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.inventory import Inventory, OwnUse
from gpupool.remoting.host.measuring import slow_readings
from gpupool.remoting.host.measuring.gpu_shares import GpuUse, Process, lease_shares
from gpupool.remoting.host.measuring.nvml import NvmlError, NvmlSample, PynvmlNvml, XidEvent
from gpupool.remoting.host.measuring.slow_readings import (
    PCIE_READINGS,
    SlowReadings,
    read_by_others,
    throttle_fields,
)

GPU0 = GpuId("GPU-0")
FIRST, SECOND = LeaseId(1), LeaseId(2)


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> FakeBinding:
    return install(monkeypatch)


class FakeTime:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# --- the fields ---------------------------------------------------------------------------------


def test_fields_become_readings_in_units_without_prefix(binding: FakeBinding) -> None:
    binding.fields = {
        74: 2_500_000_000,
        269: 1_000_000,
        270: 0,
        271: 4_000_000_000,
        76: 0,
        142: 1,
        143: 2,
        144: 0,
        145: 0,
        38: 3,
        45: 4,
        52: 0,
        82: 61,
        3: 9,
        94: 5,
        197: 1 << 40,
        198: 7,
        230: 1,
    }
    nvml = PynvmlNvml()
    nvml.open()
    nvml.devices()
    assert nvml.sample("GPU-0").slow == SlowReadings(
        memory_temperature_c=61,
        shutdown_c=92,
        power_limit_w=700.0,
        sm_clock_hz=1.98e9,
        throttled_s={
            "power": 2.5,
            "thermal": 0.001,
            "sync_boost": 0.0,
            "hw_thermal": 0.0,
            "hw_power_brake": 4.0,
        },
        ecc_corrected=9,
        remapped_rows={"corrected": 1, "uncorrected": 2, "pending": 0, "failed": 0},
        pcie_bytes_in=7,
        pcie_bytes_out=1 << 40,
        pcie_replays=5,
        nvlink_errors=7,
        recovery_action=1,
        **LINKS,
    )


def test_a_counter_that_begins_anew_all_the_time_is_not_taken(binding: FakeBinding) -> None:
    """As two H200 with the driver 580.159 gave the bytes over PCIe."""
    nvml = PynvmlNvml()
    nvml.devices()
    binding.fields = {94: 241, 197: 1950859608, 198: 902320756}
    binding.narrow = {94, 197, 198}
    slow = nvml.sample("GPU-0").slow
    assert (slow.pcie_replays, slow.pcie_bytes_in, slow.pcie_bytes_out) == (241, None, None)


def test_each_slow_reading_may_be_missing(binding: FakeBinding) -> None:
    nvml = PynvmlNvml(gpm=True)
    nvml.devices()
    binding.failing = dict.fromkeys(
        (
            *("nvmlDeviceGetFieldValues", "nvmlDeviceGetEnforcedPowerLimit"),
            *("nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperatureThreshold"),
            *("nvmlGpmQueryDeviceSupport", "nvmlDeviceGetNvLinkState", *PCIE_READINGS.values()),
        ),
        3,
    )
    assert nvml.sample("GPU-0").slow == SlowReadings()


def test_slow_readings_are_made_every_ten_seconds(binding: FakeBinding) -> None:
    now = FakeTime()
    nvml = PynvmlNvml(monotonic=now)
    nvml.devices()
    for at, replays in ((0.0, 1), (1.0, 1), (9.9, 1), (10.0, 4), (19.9, 4), (21.0, 7)):
        now.now = 100.0 + at
        binding.fields[94] = replays if at in (0.0, 10.0, 21.0) else 99
        assert nvml.sample("GPU-0").slow.pcie_replays == replays


@pytest.mark.parametrize(
    ("driver", "thermal"),
    [("570.86.15", 75), ("575.51.03", 251), ("580.65.06", 269), ("615.1", 269), ("unknown", 75)],
)
def test_numbers_of_fields_differ_between_drivers(driver: str, thermal: int) -> None:
    assert throttle_fields(driver)["thermal"] == thermal


def test_numbers_are_those_of_the_binding() -> None:
    import pynvml

    reason = "NVML_FI_DEV_CLOCKS_EVENT_REASON_"
    names = {
        74: reason + "SW_POWER_CAP",
        76: reason + "SYNC_BOOST",
        269: reason + "SW_THERM_SLOWDOWN",
        270: reason + "HW_THERM_SLOWDOWN",
        271: reason + "HW_POWER_BRAKE_SLOWDOWN",
        142: "NVML_FI_DEV_REMAPPED_COR",
        143: "NVML_FI_DEV_REMAPPED_UNC",
        144: "NVML_FI_DEV_REMAPPED_PENDING",
        145: "NVML_FI_DEV_REMAPPED_FAILURE",
        38: "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        45: "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        52: "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        59: "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        82: "NVML_FI_DEV_MEMORY_TEMP",
        3: "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",
        94: "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
        197: "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
        198: "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
        230: "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
        2: "NVML_GPM_METRIC_SM_UTIL",
        5: "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
        10: "NVML_GPM_METRIC_DRAM_BW_UTIL",
    }
    used = {
        *slow_readings.THROTTLE_FIELDS_580.values(),
        *slow_readings.REMAPPED_FIELDS.values(),
        *slow_readings.NVLINK_ERROR_FIELDS,
        *slow_readings.SINGLE_FIELDS.values(),
        *slow_readings.GPM_METRICS.values(),
    }
    assert used == set(names)
    assert {number: getattr(pynvml, name) for number, name in names.items()} == {
        number: number for number in names
    }
    members = [each[0] for each in pynvml.c_nvmlValue_t._fields_]
    assert tuple(members) == slow_readings.VALUES


# --- GPM ----------------------------------------------------------------------------------------


def test_gpm_tells_the_average_between_two_readings(binding: FakeBinding) -> None:
    now = FakeTime()
    binding.gpm = {2: 87.5, 10: 250.0}  # no tensor activity here
    nvml = PynvmlNvml(gpm=True, monotonic=now)
    nvml.devices()
    first = nvml.sample("GPU-0").slow
    assert first.sm_activity is first.tensor_activity is first.memory_bandwidth is None
    now.now += 10
    second = nvml.sample("GPU-0").slow
    assert (second.sm_activity, second.memory_bandwidth) == (0.875, 1.0)
    assert second.tensor_activity is None
    now.now += 10
    nvml.sample("GPU-0")
    assert binding.gpm_taken == [("GPU-0",)] * 3
    nvml.sample("MIG-0")
    assert binding.gpm_taken[3:] == [("GPU-1", 2)]  # the GPU, and the number of the instance


def test_gpm_is_read_only_where_it_is_wanted_and_to_be_had(binding: FakeBinding) -> None:
    now = FakeTime()
    binding.gpm = {2: 50.0}
    without = PynvmlNvml(monotonic=now)
    older = PynvmlNvml(gpm=True, monotonic=now)
    for nvml in (without, older):
        nvml.devices()
    binding.failing["nvmlGpmSampleGet"] = 3
    for _ in range(3):
        now.now += 10
        assert without.sample("GPU-0").slow.sm_activity is None
        assert older.sample("GPU-0").slow.sm_activity is None
    assert binding.gpm_taken == []


def test_who_else_reads_gpm_is_seen(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("systemd\n")
    assert not read_by_others(tmp_path)
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "comm").write_text("nv-hostengine\n")
    assert read_by_others(tmp_path)


# --- whose time it is ---------------------------------------------------------------------------


def process(lease: LeaseId, pid: int, *, executes: bool = True) -> Process:
    return Process(lease, pid, executes)


BOTH = (process(FIRST, 1), process(FIRST, 2), process(SECOND, 3))


@pytest.mark.parametrize(
    ("use", "shares", "estimated"),
    [
        (GpuUse(0.9, {1: 0.2, 2: 0.3, 3: 0.1}), {FIRST: 0.5, SECOND: 0.1}, False),
        (GpuUse(0.9, {3: 0.1}), {FIRST: 0.0, SECOND: 0.1}, False),
        # More than the GPU was busy: in proportion, those of strangers too.
        (GpuUse(0.5, {1: 0.5, 3: 0.25, 99: 0.25}), {FIRST: 0.25, SECOND: 0.125}, False),
        (GpuUse(None, {1: 0.9, 3: 0.9}), {FIRST: 0.5, SECOND: 0.5}, False),
        (GpuUse(0.5, None), {}, False),
        (GpuUse(0.6, {99: 0.6}, unseen=True), {FIRST: 0.4, SECOND: 0.2}, True),
        # A MIG instance: its activity, exact for one lease and an estimate for two.
        (GpuUse(None, None, 0.6), {FIRST: 0.4, SECOND: 0.2}, True),
    ],
)
def test_shares_of_leases(use: GpuUse, shares: dict[LeaseId, float], estimated: bool) -> None:
    found, is_estimate = lease_shares(use, BOTH)
    assert found == pytest.approx(shares)
    assert is_estimate == estimated


def test_shares_of_an_instance_of_one_lease_and_of_those_that_rest() -> None:
    alone = [process(FIRST, 1, executes=False)]
    assert lease_shares(GpuUse(None, None, 0.6), alone) == ({FIRST: 0.6}, False)
    unseen = GpuUse(0.8, {99: 0.8}, unseen=True)
    rests = [process(FIRST, 1), process(SECOND, 2, executes=False)]
    assert lease_shares(unseen, rests) == ({FIRST: 0.8, SECOND: 0.0}, True)


async def test_unknown_process_ids_are_noticed_after_a_minute() -> None:
    now = FakeTime()
    nvml = FakeNvml(samples={"GPU-0": NvmlSample(1, {77: 1}, 0.5, shares={77: 0.5})})
    system = nvml.open()
    inventory = Inventory.discover(SERVER, nvml)
    inventory = Inventory(list(inventory.gpus()), nvml, system=system, monotonic=now)
    own = {GPU0: OwnUse(frozenset({1}), 1)}
    for second, unseen in ((0, False), (59, False), (60, True), (61, True)):
        now.now = 100.0 + second
        await inventory.sample(lambda: own)
        assert inventory.use(GPU0).unseen == unseen
    nvml.samples["GPU-0"] = NvmlSample(1, {1: 1}, 0.5, shares={1: 0.5})
    await inventory.sample(lambda: own)
    assert not inventory.use(GPU0).unseen


# --- errors, and loss ---------------------------------------------------------------------------


async def test_each_xid_is_counted_with_the_time_of_the_last() -> None:
    nvml = FakeNvml(found=[device(0), device(1, "GPU-7")])
    inventory = Inventory(
        list(Inventory.discover(SERVER, nvml).gpus()), nvml, wall_ms=lambda: 1_700_000_000_123
    )
    nvml.events += [XidEvent("GPU-0", 13), XidEvent("GPU-0", 13), XidEvent("GPU-7", 79)]
    await inventory.sample(dict)
    await inventory.sample(dict)
    whole, part = inventory.telemetry({}, {})
    assert (whole.xids, whole.xid_at) == ({13: 2}, 1_700_000_000_123)
    assert part.xids == {79: 1}
    assert inventory.readings()[GPU0].fault == ""


async def test_former_readings_of_a_lost_gpu_are_not_told_as_the_present() -> None:
    sample = replace(IDLE, utilization=0.9, slow=SlowReadings(power_limit_w=700.0))
    nvml = FakeNvml(samples={"GPU-0": sample}, events=[XidEvent("GPU-0", 79)])
    inventory = Inventory.discover(SERVER, nvml)
    assert inventory.telemetry({}, {})[0].power_limit_w == 700.0
    nvml.broken["GPU-0"] = NvmlError("lost", lost=True)
    await inventory.sample(dict)
    lost = inventory.telemetry({}, {})[0]
    assert lost.utilization is lost.temperature_c is lost.power_limit_w is None
    assert lost.xids == {79: 1}
    assert lost.gpu == GPU0
