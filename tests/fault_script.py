"""Readings and errors of emulated GPUs, by a script: so that checks can be seen without a GPU.

A script is TOML. Each ``[[at]]`` says from which second after the server's start its values hold,
and for which emulated GPU, by number; for all of them without one::

    [[at]]
    second = 0
    temperature = 55
    power = 310

    [[at]]
    second = 30
    gpu = 1
    temperature = 91
    per_second = { "throttled.hw_thermal" = 0.6, pcie_replays = 2 }

    [[at]]
    second = 60
    gpu = 1
    xid = 79
    lost = true

``per_second`` lets counters grow from then on. ``xid`` is an event. ``lost`` and ``silent`` hold
until they are set to false.
"""

import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gpupool.remoting.host.measuring.nvml import (
    NvmlDevice,
    NvmlError,
    NvmlSample,
    NvmlSystem,
    XidEvent,
)
from gpupool.remoting.host.measuring.slow_readings import SlowReadings

SECOND_MAX = 10 * 365 * 86_400
ENTRY_COUNT_MAX = 10_000

FAST = {
    "temperature": "temperature_c",
    "power": "power_w",
    "energy": "energy_j",
    "ecc": "ecc_errors",
    "remap_failed": "row_remap_failed",
    "exclusive": "exclusive",
    "computes_wrongly": "computes_wrongly",
}
SLOW = {
    "memory_temperature": "memory_temperature_c",
    "shutdown": "shutdown_c",
    "power_limit": "power_limit_w",
    "sm_clock": "sm_clock_hz",
    "sm_activity": "sm_activity",
    "tensor_activity": "tensor_activity",
    "memory_bandwidth": "memory_bandwidth",
    "ecc_corrected": "ecc_corrected",
    "pcie_bytes_in": "pcie_bytes_in",
    "pcie_bytes_out": "pcie_bytes_out",
    "pcie_replays": "pcie_replays",
    "nvlink_errors": "nvlink_errors",
    "nvlinks_up": "nvlinks_up",
    "pcie_width": "pcie_width",
    "pcie_width_max": "pcie_width_max",
    "pcie_generation": "pcie_generation",
    "pcie_generation_max": "pcie_generation_max",
    "recovery_action": "recovery_action",
}
COUNTERS = {
    *("ecc", "ecc_corrected", "pcie_bytes_in", "pcie_bytes_out", "pcie_replays"),
    *("nvlink_errors", "recovery_action"),
}
"""Readings that are 0 on a device without errors."""
WHOLE = {
    *COUNTERS,
    *("nvlinks_up", "pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max"),
}
"""Values that are whole numbers; growing ones are rounded down."""

TABLES = {
    "throttled": ("power", "thermal", "hw_thermal", "hw_power_brake", "sync_boost"),
    "remapped": ("corrected", "uncorrected", "pending", "failed"),
}
FLAGS = {"lost", "silent", "remap_failed", "exclusive", "computes_wrongly"}
NUMBERS = ({*FAST, *SLOW} - FLAGS) | {
    f"{table}.{key}" for table, keys in TABLES.items() for key in keys
}


class ScriptError(ValueError):
    """A script is invalid; the text says where."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Values from one second on."""

    second: float
    gpu: int | None = None  # number of the emulated GPU; None: all
    values: Mapping[str, float | bool] = field(default_factory=dict[str, float | bool])
    per_second: Mapping[str, float] = field(default_factory=dict[str, float])
    xid: int | None = None


def parse_script(text: str) -> tuple[Entry, ...]:
    """Return the entries of a script, in the order of their seconds.

    Raises:
        ScriptError: when it is none.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScriptError(str(error)) from error
    entries: Any = document.pop("at", [])
    if document:
        raise ScriptError(f"{min(document)!r} is unknown; a script consists of [[at]]")
    if not isinstance(entries, list):
        raise ScriptError("'at' is a list of tables: [[at]]")
    rows = cast("list[Any]", entries)
    if len(rows) > ENTRY_COUNT_MAX:
        raise ScriptError(f"more than {ENTRY_COUNT_MAX} entries")
    return tuple(sorted(map(_entry, rows), key=lambda entry: entry.second))


def _entry(row: Any) -> Entry:
    if not isinstance(row, dict):
        raise ScriptError("'at' is a list of tables: [[at]]")
    left = dict(cast("dict[str, Any]", row))
    second = _number(left.pop("second", 0), "second")
    gpu, xid = left.pop("gpu", None), left.pop("xid", None)
    if not 0 <= second <= SECOND_MAX:
        raise ScriptError(f"second = {second:g} lies outside of any run")
    for name, value in (("gpu", gpu), ("xid", xid)):
        if value is not None and (type(value) is not int or value < 0):
            raise ScriptError(f"{name} = {value!r} is no number of one")
    growing: Any = left.pop("per_second", {})
    if not isinstance(growing, dict):
        raise ScriptError("'per_second' is a table")
    per_second = {
        name: _number(value, name)
        for name, value in _flat(cast("dict[str, Any]", growing)).items()
        if _known(name, NUMBERS)
    }
    values = {
        name: _flag(value, name) if name in FLAGS else _number(value, name)
        for name, value in _flat(left).items()
        if _known(name, NUMBERS | FLAGS)
    }
    return Entry(second, gpu, values, per_second, xid)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name in TABLES and isinstance(value, dict):
            inner = cast("dict[str, Any]", value)
            found |= {f"{name}.{key}": each for key, each in inner.items()}
        else:
            found[name] = value
    return found


def _known(name: str, names: set[str]) -> bool:
    if name not in names:
        raise ScriptError(f"{name!r} is unknown here; known are " + ", ".join(sorted(names)))
    return True


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScriptError(f"{name} = {value!r} is no number")
    return float(value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ScriptError(f"{name} = {value!r} is neither true nor false")
    return value


class ScriptedNvml:
    """``Nvml`` for emulated GPUs, with the readings of a script."""

    def __init__(
        self,
        entries: Sequence[Entry],
        uuids: Sequence[str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin now.

        Args:
            entries: of ``parse_script``.
            uuids: the emulated GPUs, by number.
            monotonic: tells the seconds.
        """
        self._entries = entries
        self._numbers = {uuid: number for number, uuid in enumerate(uuids)}
        self._monotonic = monotonic
        self._began = monotonic()
        self._events_until = -1.0

    def open(self) -> NvmlSystem:
        """Return no versions: there is no driver."""
        return NvmlSystem("", "")

    def devices(self) -> list[NvmlDevice]:
        """Return none: the script's owner knows the emulated GPUs."""
        return []

    def sample(self, uuid: str) -> NvmlSample:
        """Return the script's readings of this moment."""
        number, now = self._numbers[uuid], self._monotonic() - self._began
        # What will be counted has been counted from the start: an error is one more than before.
        values: dict[str, float | bool] = {
            name: 0.0
            for entry in self._entries
            for name in (*entry.values, *entry.per_second)
            if name in COUNTERS and entry.gpu in (None, number)
        }
        rates: dict[str, tuple[float, float]] = {}  # growth a second, since when
        for entry in self._entries:
            if entry.second > now or entry.gpu not in (None, number):
                continue
            for name in (*entry.values, *entry.per_second):
                if name in rates:
                    rate, since = rates.pop(name)
                    values[name] = values.get(name, 0.0) + rate * (entry.second - since)
            values |= entry.values
            rates |= {name: (rate, entry.second) for name, rate in entry.per_second.items()}
        for name, (rate, since) in rates.items():
            values[name] = values.get(name, 0.0) + rate * (now - since)
        if values.get("lost"):
            raise NvmlError("the script says so", lost=True)
        if values.get("silent"):
            raise NvmlError("the script says so")
        return _sample(values)

    def xid_events(self) -> list[XidEvent]:
        """Return the script's errors since the last call."""
        now, before = self._monotonic() - self._began, self._events_until
        self._events_until = now
        return [
            XidEvent(uuid, entry.xid)
            for entry in self._entries
            if entry.xid is not None and before < entry.second <= now
            for uuid, number in self._numbers.items()
            if entry.gpu in (None, number)
        ]


def _sample(values: Mapping[str, float | bool]) -> NvmlSample:
    whole = {name: int(value) if name in WHOLE else value for name, value in values.items()}
    fast: dict[str, Any] = {FAST[name]: whole[name] for name in FAST if name in whole}
    slow: dict[str, Any] = {SLOW[name]: whole[name] for name in SLOW if name in whole}
    tables = {
        table: {key: values[f"{table}.{key}"] for key in keys if f"{table}.{key}" in values}
        for table, keys in TABLES.items()
    }
    slow["throttled_s"] = {key: round(value, 3) for key, value in tables["throttled"].items()}
    slow["remapped_rows"] = {key: int(value) for key, value in tables["remapped"].items()}
    return NvmlSample(memory_used=0, **fast, slow=SlowReadings(**slow))
