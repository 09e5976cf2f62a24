"""``nvidia-smi --query-gpu=... --format=csv`` and ``-L``, as programs call and read them.

Fields, headings and units as nvidia-smi's own help (``--help-query-gpu``) and output have them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from gpupool.pool.errors import UsageError
from gpupool.pool.model.units import MIB

NOT_MEASURED = "[N/A]"
FORMATS = frozenset(("csv", "noheader", "nounits"))

Devices = Sequence[Mapping[str, object]]


def _number(device: Mapping[str, object], key: str) -> float | None:
    value = device.get(key)
    return float(value) if isinstance(value, int | float) else None


def _mib(device: Mapping[str, object], key: str) -> str:
    return str(int(_number(device, key) or 0) // MIB)


def _free(device: Mapping[str, object]) -> str:
    free = (_number(device, "memory") or 0) - (_number(device, "used") or 0)
    return str(max(0, int(free)) // MIB)


def _reading(key: str, scale: float, form: str) -> Callable[[Mapping[str, object]], str]:
    def text(device: Mapping[str, object]) -> str:
        value = _number(device, key)
        return NOT_MEASURED if value is None else format(value * scale, form)

    return text


def _not_measured(device: Mapping[str, object]) -> str:
    return NOT_MEASURED


def _text(key: str) -> Callable[[Mapping[str, object]], str]:
    return lambda device: str(device[key]) or NOT_MEASURED


MEASURED: dict[str, Callable[[Mapping[str, object]], str]] = {
    "index": _text("index"),
    "name": _text("name"),
    "uuid": _text("uuid"),
    "pci.bus_id": _text("bus_id"),
    "compute_cap": _text("capability"),
    "memory.total": lambda device: _mib(device, "memory"),
    "memory.used": lambda device: _mib(device, "used"),
    "memory.free": _free,
    "utilization.gpu": _reading("utilization", 100, ".0f"),
    "temperature.gpu": _reading("temperature_c", 1, ".0f"),
    "temperature.memory": _reading("memory_temperature_c", 1, ".0f"),
    **dict.fromkeys(
        ("clocks.current.sm", "clocks.current.graphics"), _reading("sm_clock_hz", 1e-6, ".0f")
    ),
    **dict.fromkeys(("power.limit", "enforced.power.limit"), _reading("power_limit_w", 1, ".2f")),
    "pcie.link.gen.current": _reading("pcie_generation", 1, ".0f"),
    "pcie.link.gen.max": _reading("pcie_generation_max", 1, ".0f"),
    "pcie.link.width.current": _reading("pcie_width", 1, ".0f"),
    "pcie.link.width.max": _reading("pcie_width_max", 1, ".0f"),
    **dict.fromkeys(
        ("power.draw", "power.draw.instant", "power.draw.average"), _reading("power_w", 1, ".2f")
    ),
}
"""How each field that a server measures is read off a device."""

APPS = {
    "timestamp": (),
    "gpu_name": (),
    "gpu_bus_id": (),
    "gpu_serial": (),
    "gpu_uuid": (),
    "pid": (),
    "process_name": ("name",),
    "used_gpu_memory [MiB]": ("used_memory",),
}
"""Of --query-compute-apps: the headings, and other names of the fields."""


@cache
def words_of(name: str) -> str:
    """Return the text of a file in ``smi/``, with the words of nvidia-smi."""
    return (Path(__file__).with_name("smi") / name).read_text("utf-8")


@cache
def fields_known() -> dict[str, str]:
    """Return the heading of each field and of each other name that nvidia-smi has for it."""
    found: dict[str, str] = {}
    for line in words_of("fields.txt").splitlines():
        heading, *others = line.split(" | ")
        found |= dict.fromkeys((heading.partition(" ")[0], *others), heading)
    return found


def listed(devices: Devices) -> list[str]:
    """Return the lines of ``nvidia-smi -L``."""
    return [f"GPU {d['index']}: {d['name']} (UUID: {d['uuid']})" for d in devices]


def chosen(devices: Devices, wanted: str) -> Devices:
    """Return the devices that ``-i`` names, by index, UUID or PCI address, in their own order.

    Raises:
        UsageError: when one of the names is no device's.
    """
    names = [name.strip().lower() for name in wanted.split(",") if name.strip()]
    keys = ("index", "uuid", "bus_id")
    for name in names:
        if not any(name in (str(d[key]).lower() for key in keys) for d in devices):
            found = ", ".join(str(d["index"]) for d in devices) or "none"
            raise UsageError(f"there is no device {name}", hint=f"devices here: {found}")
    return [d for d in devices if any(str(d[key]).lower() in names for key in keys)]


def query(devices: Devices, driver: str, fields: str, form: str) -> list[str]:
    """Return the lines of a query.

    Args:
        devices: as the agent has told them.
        driver: the version of the servers' driver.
        fields: their names, with commas between them.
        form: "csv", and "noheader", "nounits", with commas between them.

    Raises:
        UsageError: for a format or a field that nvidia-smi has not, or that is not known here.
    """
    headings = [_heading(name.strip(), fields_known()) for name in fields.split(",")]
    fixed = {"driver_version": driver, "count": str(len(devices)), "timestamp": stamp()}

    def cell(device: Mapping[str, object], name: str) -> str:
        if name in fixed:
            return fixed[name] or NOT_MEASURED
        return MEASURED.get(name, _not_measured)(device)

    return _table(headings, devices, cell, form)


def query_apps(devices: Devices, processes: Sequence[int], fields: str, form: str) -> list[str]:
    """Return the lines of a query of programs: each process of the lease is on each device.

    Raises:
        UsageError: as for ``query``.
    """
    known = {
        name: heading
        for heading, others in APPS.items()
        for name in (heading.partition(" ")[0], *others)
    }
    headings = [_heading(name.strip(), known) for name in fields.split(",")]
    rows = [{**device, "pid": pid} for device in devices for pid in processes]

    def cell(row: Mapping[str, object], name: str) -> str:
        pid = str(row["pid"])
        if name == "process_name":
            return process_name(pid)
        if name == "used_gpu_memory":
            return str(int(_number(row, "used") or 0) // len(processes) // MIB)
        fixed = {"timestamp": stamp(), "pid": pid, "gpu_serial": NOT_MEASURED}
        return fixed.get(name) or str(row[name.removeprefix("gpu_")])

    return _table(headings, rows, cell, form)


def process_name(pid: str) -> str:
    """Return the program of a process of this machine."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8").partition("\0")[0] or NOT_MEASURED
    except OSError:
        return NOT_MEASURED


def stamp() -> str:
    """Return the time as nvidia-smi writes it."""
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03}"


def _heading(name: str, known: Mapping[str, str]) -> str:
    if name not in known:
        names = ", ".join(dict.fromkeys(heading.partition(" ")[0] for heading in known.values()))
        raise UsageError(f'Field "{name}" is not a valid field to query', hint=f"fields: {names}")
    return known[name]


def _table(
    headings: Sequence[str],
    rows: Devices,
    cell: Callable[[Mapping[str, object], str], str],
    form: str,
) -> list[str]:
    words = {word.strip() for word in form.split(",")}
    if "csv" not in words or words - FORMATS:
        raise UsageError(
            f"--format={form} is not a format", hint="--format=csv[,noheader][,nounits]"
        )
    lines = [] if "noheader" in words else [", ".join(headings)]
    for row in rows:
        cells: list[str] = []
        for heading in headings:
            name, _, unit = heading.partition(" ")
            value = cell(row, name)
            bare = "nounits" in words or not unit or value == NOT_MEASURED
            cells.append(value if bare else f"{value} {unit.strip('[]')}")
        lines.append(", ".join(cells))
    return lines
