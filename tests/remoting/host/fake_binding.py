"""The functions of pynvml that our adapter calls, with answers that a test sets."""

from types import SimpleNamespace
from typing import Any

import pytest

GIB = 1 << 30

ANSWERS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlSystemGetCudaDriverVersion_v2": 13010,
    "nvmlSystemGetDriverVersion": "590.1",
    "nvmlDeviceGetCount": 2,
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100 * GIB, reserved=GIB, used=5 * GIB),
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="0000:01:00.0"),
    "nvmlDeviceGetMaxMigDeviceCount": 3,
    "nvmlDeviceGetMinorNumber": 7,
    "nvmlDeviceGetGpuInstanceId": 2,
    "nvmlDeviceGetComputeInstanceId": 0,
    "nvmlDeviceGetComputeRunningProcesses": [
        SimpleNamespace(pid=7, usedGpuMemory=3 * GIB),
        SimpleNamespace(pid=8, usedGpuMemory=GIB),
    ],
    "nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=3 * GIB)],
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=42),
    "nvmlDeviceGetTemperature": 55,
    "nvmlDeviceGetPowerUsage": 700_500,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000,
    "nvmlDeviceGetTotalEccErrors": 1,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetComputeMode": 3,
    "nvmlDeviceGetProcessUtilization": [
        SimpleNamespace(pid=7, timeStamp=2000, smUtil=0),
        SimpleNamespace(pid=8, timeStamp=3000, smUtil=12),
    ],
    "nvmlEventSetCreate": "events",
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetTemperatureThreshold": 92,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
    "nvmlDeviceRegisterEvents": None,
}
LINKS: dict[str, Any] = {
    "nvlinks_up": 18,
    "pcie_width": 8,
    "pcie_width_max": 16,
    "pcie_generation": 4,
    "pcie_generation_max": 5,
}
"""A GPU's links as read from these answers."""


class FakeBinding:
    """The functions of pynvml that the adapter calls, for two GPUs of which one is divided."""

    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_COMPUTEMODE_DEFAULT = 0
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_GPU_IS_LOST = 15
    nvmlEventTypeXidCriticalError = 8
    nvmlMemory_v2 = 2
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_GPM_METRICS_GET_VERSION = 1

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"code {value}")
            self.value = value

    def __init__(self) -> None:
        self.xids: list[tuple[str, int]] = []
        self.fields: dict[int, float] = {}
        """Values of fields by number; others are not supported."""
        self.narrow: set[int] = set()
        """Numbers of the fields that are given in 32 bits."""
        self.gpm: dict[int, float] = {}
        """Percentages of metrics by number, of all readings."""
        self.gpm_taken: list[tuple[object, ...]] = []
        self.failing: dict[str, int] = {"nvmlDeviceGetRemappedRows": 3}

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **_options: Any) -> Any:
            if name in self.failing:
                raise self.NVMLError(self.failing[name])
            function = getattr(type(self), "_" + name, None)
            return ANSWERS[name] if function is None else function(self, *arguments)

        return call

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{index}"

    def _nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def _nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:
        return int(handle == "GPU-1"), 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: str, index: int) -> str:
        if index == 1:
            raise self.NVMLError(6)
        return f"MIG-{index}"

    def _nvmlDeviceGetFieldValues(self, _handle: str, ids: list[int]) -> list[Any]:
        return [
            SimpleNamespace(
                fieldId=each,
                nvmlReturn=0 if each in self.fields else 3,
                valueType=self._value_type(each),
                value=SimpleNamespace(
                    dVal=self.fields.get(each),
                    uiVal=self.fields.get(each),
                    ullVal=self.fields.get(each),
                ),
            )
            for each in ids
        ]

    def _value_type(self, number: int) -> int:
        if isinstance(self.fields.get(number), float):
            return 0
        return 1 if number in self.narrow else 3

    def _nvmlGpmSampleAlloc(self) -> list[int]:
        return []

    def _nvmlGpmSampleGet(self, device: str, buffer: list[int]) -> None:
        self.gpm_taken.append((device,))
        buffer[:] = [len(self.gpm_taken)]

    def _nvmlGpmMigSampleGet(self, device: str, instance: int, buffer: list[int]) -> None:
        self.gpm_taken.append((device, instance))
        buffer[:] = [len(self.gpm_taken)]

    def _c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)]
        return SimpleNamespace(metrics=metrics)

    def _nvmlGpmMetricsGet(self, ask: Any) -> None:
        assert ask.sample1[0] < ask.sample2[0], "from the earlier reading to the later one"
        for metric in ask.metrics[: ask.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in self.gpm else 3
            metric.value = self.gpm.get(metric.metricId, 0.0)

    def _nvmlEventSetWait_v2(self, _events: str, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not self.xids:
            raise self.NVMLError(10)
        uuid, xid = self.xids.pop()
        return SimpleNamespace(device=uuid, eventData=xid)


def install(monkeypatch: pytest.MonkeyPatch) -> FakeBinding:
    """Put a fake in the place of pynvml."""
    fake = FakeBinding()

    def import_module(name: str) -> FakeBinding:
        assert name == "pynvml"
        return fake

    monkeypatch.setattr("importlib.import_module", import_module)
    return fake
