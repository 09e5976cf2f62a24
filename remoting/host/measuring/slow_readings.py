"""The readings of NVML that change slowly or cost more, which are made every ten seconds.

Numbers of fields are those of NVIDIA's nvml.h. Each reading is optional: GPUs, drivers and MIG
instances differ in what they give, and what they do not give is None or left out.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SLOW_EVERY_S = 10.0

VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The members of ``nvmlValue_t`` by ``nvmlValueType_t``."""

THROTTLE_FIELDS = {"power": 74, "thermal": 75, "sync_boost": 76}
THROTTLE_FIELDS_575 = {**THROTTLE_FIELDS, "thermal": 251, "hw_thermal": 252, "hw_power_brake": 253}
THROTTLE_FIELDS_580 = {**THROTTLE_FIELDS, "thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}
"""Nanoseconds by reason. The driver 575 had other numbers, which mean other things since 580."""

REMAPPED_FIELDS = {"corrected": 142, "uncorrected": 143, "pending": 144, "failed": 145}
NVLINK_ERROR_FIELDS = (38, 45, 52, 59)
"""CRC errors of flow control and of data, replays, recoveries; each of all links."""

SINGLE_FIELDS = {
    "memory_temperature_c": 82,
    "ecc_corrected": 3,
    "pcie_replays": 94,
    "pcie_bytes_out": 197,  # that the GPU has sent
    "pcie_bytes_in": 198,
    "recovery_action": 230,
}
COUNTERS_OF_64_BITS = (197, 198)
"""Taken only in a type of 64 bits: the driver 580 gives 32, which begin anew ten times a second."""

PCIE_READINGS = {
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
}
NVLINKS_MAX = 18

GPM_METRICS = {"sm_activity": 2, "tensor_activity": 5, "memory_bandwidth": 10}
"""Percentages, by ``nvmlGpmMetricId_t``."""

OTHER_READERS = frozenset({"nv-hostengine", "dcgm-exporter"})
"""Programs that read GPM themselves, and may be disturbed by a second reader."""


@dataclass(frozen=True, slots=True)
class SlowReadings:
    """One reading of a device; None, or absent, for unsupported readings."""

    memory_temperature_c: float | None = None
    shutdown_c: float | None = None
    power_limit_w: float | None = None
    sm_clock_hz: float | None = None
    throttled_s: dict[str, float] = field(default_factory=dict[str, float])
    ecc_corrected: int | None = None
    remapped_rows: dict[str, int] = field(default_factory=dict[str, int])
    pcie_bytes_in: int | None = None
    pcie_bytes_out: int | None = None
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    nvlinks_up: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    recovery_action: int | None = None
    sm_activity: float | None = None
    tensor_activity: float | None = None
    memory_bandwidth: float | None = None


def throttle_fields(driver_version: str) -> Mapping[str, int]:
    """Return the numbers of the fields that tell how long clocks were held down, by reason."""
    major = driver_version.partition(".")[0]
    if not major.isdigit() or int(major) < 575:
        return THROTTLE_FIELDS
    return THROTTLE_FIELDS_580 if int(major) >= 580 else THROTTLE_FIELDS_575


Optional = Callable[..., Any]
"""Calls a function of NVML, and returns None where the device does not give the reading."""


class SlowReader:
    """Makes the slow readings of all devices of a machine; used by one thread at a time."""

    def __init__(self, nvml: Any, optional: Optional, *, gpm: bool) -> None:
        """Prepare.

        Args:
            nvml: the binding.
            optional: see ``Optional``.
            gpm: whether to read GPM where a device has it.
        """
        self._nvml = nvml
        self._optional = optional
        self._gpm = Gpm(nvml) if gpm else None
        self._throttle: Mapping[str, int] = THROTTLE_FIELDS

    def driver(self, version: str) -> None:
        """Choose the throttle fields of the driver's version: their numbers differ."""
        self._throttle = throttle_fields(version)

    def read(self, uuid: str, handle: Any, physical: Any, instance: int | None) -> SlowReadings:
        """Read one device.

        Args:
            uuid: of the device.
            handle: of the device.
            physical: the handle of the GPU that it is, or is a part of; None: not known.
            instance: the number of its GPU instance, if it is a MIG instance.
        """
        nvml = self._nvml
        found = self._fields(handle)
        limit = self._optional(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        clock = self._optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        found = replace(
            found,
            power_limit_w=None if limit is None else limit / 1000,
            sm_clock_hz=None if clock is None else clock * 1e6,
            shutdown_c=self._optional(
                nvml.nvmlDeviceGetTemperatureThreshold,
                handle,
                nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
            ),
            nvlinks_up=self._nvlinks_up(handle),
            **{name: self._named(call, handle) for name, call in PCIE_READINGS.items()},
        )
        if self._gpm is None:
            return found
        return replace(found, **self._gpm.read(uuid, physical, instance))

    def _named(self, name: str, *arguments: Any) -> Any:
        """Call a function that older bindings may lack."""
        function = getattr(self._nvml, name, None)
        return None if function is None else self._optional(function, *arguments)

    def _nvlinks_up(self, handle: Any) -> int | None:
        states: list[Any] = []
        for link in range(NVLINKS_MAX):
            # It says "invalid argument" for a link that a GPU of this kind does not have.
            state = self._named("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break
            states.append(state)
        return sum(map(bool, states)) if states else None

    def _fields(self, handle: Any) -> SlowReadings:
        ids = (
            *self._throttle.values(),
            *REMAPPED_FIELDS.values(),
            *NVLINK_ERROR_FIELDS,
            *SINGLE_FIELDS.values(),
        )
        rows: Any = self._optional(self._nvml.nvmlDeviceGetFieldValues, handle, list(ids))
        if rows is None:
            return SlowReadings()
        values: dict[int, Any] = {
            number: getattr(row.value, VALUES[int(row.valueType)])
            for number, row in zip(ids, rows, strict=True)
            if not row.nvmlReturn
            and 0 <= int(row.valueType) < len(VALUES)
            and not (number in COUNTERS_OF_64_BITS and VALUES[int(row.valueType)] == "uiVal")
        }
        links = [values[each] for each in NVLINK_ERROR_FIELDS if each in values]
        return SlowReadings(
            throttled_s={
                reason: round(values[number] / 1e9, 3)
                for reason, number in self._throttle.items()
                if number in values
            },
            remapped_rows={
                state: int(values[number])
                for state, number in REMAPPED_FIELDS.items()
                if number in values
            },
            nvlink_errors=int(sum(links)) if links else None,
            **{name: values[each] for name, each in SINGLE_FIELDS.items() if each in values},
        )


class Gpm:
    """GPU performance monitoring of Hopper and newer: averages between two readings."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._samples: dict[str, list[Any]] = {}  # two buffers of each device: before, and now
        self._without: set[str] = set()  # devices that have none

    def read(self, uuid: str, physical: Any, instance: int | None) -> dict[str, float]:
        """Return the shares since the last reading of a device; nothing at the first."""
        if physical is None or uuid in self._without:
            return {}
        nvml = self._nvml
        try:
            buffers = self._samples.get(uuid)
            if buffers is None:
                if not nvml.nvmlGpmQueryDeviceSupport(physical).isSupportedDevice:
                    self._without.add(uuid)
                    return {}
                buffers = self._samples[uuid] = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
                self._take(physical, instance, buffers[1])
                return {}
            buffers.reverse()
            self._take(physical, instance, buffers[1])
            return self._between(buffers)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._without.add(uuid)
            return {}

    def _take(self, physical: Any, instance: int | None, buffer: Any) -> None:
        if instance is None:
            self._nvml.nvmlGpmSampleGet(physical, buffer)
        else:
            self._nvml.nvmlGpmMigSampleGet(physical, instance, buffer)

    def _between(self, buffers: Sequence[Any]) -> dict[str, float]:
        nvml = self._nvml
        ask = nvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        ask.sample1, ask.sample2 = buffers
        for at, number in enumerate(GPM_METRICS.values()):
            ask.metrics[at].metricId = number
        nvml.nvmlGpmMetricsGet(ask)
        return {
            name: round(min(max(ask.metrics[at].value / 100, 0.0), 1.0), 4)
            for at, name in enumerate(GPM_METRICS)
            if not ask.metrics[at].nvmlReturn
        }


def read_by_others(proc: Path = Path("/proc")) -> bool:
    """Return whether a program runs here that reads GPM itself."""
    for comm in proc.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if comm.read_text().strip() in OTHER_READERS:
                return True
    return False
