"""``nvidia-smi --query-gpu=... --format=csv`` and ``-L``, as programs call and read them.

Fields, headings and units as nvidia-smi's own help (``--help-query-gpu``) and output have them.
"""

from collections.abc import Callable, Mapping, Sequence

from gpupool.pool.errors import UsageError

NOT_MEASURED = "[N/A]"
FORMATS = frozenset(("csv", "noheader", "nounits"))
MIB = 1 << 20

Devices = Sequence[Mapping[str, object]]


def _number(device: Mapping[str, object], key: str) -> float | None:
    value = device[key]
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


MEASURED: dict[str, tuple[str, Callable[[Mapping[str, object]], str]]] = {
    "index": ("", _text("index")),
    "name": ("", _text("name")),
    "uuid": ("", _text("uuid")),
    "pci.bus_id": ("", _text("bus_id")),
    "compute_cap": ("", _text("capability")),
    "memory.total": ("MiB", lambda device: _mib(device, "memory")),
    "memory.used": ("MiB", lambda device: _mib(device, "used")),
    "memory.free": ("MiB", _free),
    "utilization.gpu": ("%", _reading("utilization", 100, ".0f")),
    "temperature.gpu": ("", _reading("temperature_c", 1, ".0f")),
    "power.draw": ("W", _reading("power_w", 1, ".2f")),
}
"""Fields with their units, and how each is read off a device."""

ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "power.draw.instant": "power.draw",
    "power.draw.average": "power.draw",
}

UNITS = {
    "memory.reserved": "MiB",
    "utilization.memory": "%",
    "fan.speed": "%",
    "power.limit": "W",
    "power.max_limit": "W",
    "power.default_limit": "W",
    "enforced.power.limit": "W",
    "clocks.sm": "MHz",
    "clocks.gr": "MHz",
    "clocks.mem": "MHz",
    "clocks.current.sm": "MHz",
    "clocks.current.graphics": "MHz",
    "clocks.current.memory": "MHz",
    "clocks.max.sm": "MHz",
    "clocks.max.memory": "MHz",
}
"""Fields that nvidia-smi has and that no server reports, with their units."""

UNITLESS = frozenset(
    (
        *("serial", "gpu_serial", "display_active", "display_mode", "display_attached", "pstate"),
        *("persistence_mode", "compute_mode", "mig.mode.current", "mig.mode.pending"),
        *("ecc.mode.current", "vbios_version", "temperature.memory", "pci.domain", "pci.bus"),
        *("pcie.link.gen.current", "pcie.link.width.current", "accounting.mode"),
    )
)
"""The same without units."""


def listed(devices: Devices) -> list[str]:
    """Return what ``nvidia-smi -L`` prints."""
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
            # Outside of a lease, several servers have a GPU of the same number.
            found = ", ".join(dict.fromkeys(str(d["index"]) for d in devices)) or "none"
            raise UsageError(f"there is no device {name}", hint=f"devices here: {found}")
    return [d for d in devices if any(str(d[key]).lower() in names for key in keys)]


def query(devices: Devices, driver: str, fields: str, form: str) -> list[str]:
    """Return the lines of a query.

    Args:
        devices: as ``gpupool smi --json`` has them.
        driver: the version of the servers' driver.
        fields: their names, with commas between them.
        form: "csv", and "noheader", "nounits", with commas between them.

    Raises:
        UsageError: for a format or a field that nvidia-smi has not, or that is not known here.
    """
    words = {word.strip() for word in form.split(",")}
    if "csv" not in words or words - FORMATS:
        raise UsageError(
            f"--format={form} is not a format", hint="--format=csv[,noheader][,nounits]"
        )
    columns = [_column(name.strip(), driver, len(devices)) for name in fields.split(",")]
    bare = "nounits" in words
    lines = [] if "noheader" in words else [", ".join(heading for heading, _, _ in columns)]
    for device in devices:
        cells: list[str] = []
        for _, unit, read in columns:
            value = read(device)
            cells.append(value if bare or not unit or value == NOT_MEASURED else f"{value} {unit}")
        lines.append(", ".join(cells))
    return lines


def _column(
    name: str, driver: str, count: int
) -> tuple[str, str, Callable[[Mapping[str, object]], str]]:
    """Return a field's heading, its unit, and how to read it."""
    fixed = {"driver_version": driver or NOT_MEASURED, "count": str(count)}
    if name in fixed:
        return name, "", lambda device: fixed[name]
    real = ALIASES.get(name, name)
    if real in MEASURED:
        unit, read = MEASURED[real]
    elif real in UNITS or real in UNITLESS:
        unit, read = UNITS.get(real, ""), _not_measured
    else:
        known = ", ".join(("driver_version", "count", *MEASURED))
        raise UsageError(f'Field "{name}" is not a valid field to query', hint=f"fields: {known}")
    return (f"{name} [{unit}]" if unit else name), unit, read
