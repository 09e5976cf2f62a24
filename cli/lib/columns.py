"""The columns of servers, GPUs and leases, and their cells: pure, for ``top`` and for lists."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpupool.pool.read_model.pool_snapshot import GpuRow, LeaseRow, RequestRow, ServerRow
from gpupool.pool.scheduling.filters import short_model
from gpupool.pool.telemetry import GpuTelemetry
from gpupool.pool.values import duration_text, size_text
from gpupool.pool.view import GpuView, ServerView

AnyLease = LeaseRow | RequestRow
R = TypeVar("R")

UTILIZATION_THRESHOLDS = (0.10, 0.75)
MEMORY_THRESHOLDS = (0.10, 0.80)
"""Moderate from the first, heavy from the second; nvitop's figures."""

STATE_STYLES = {
    "idle": "green",
    "mix": "green",
    "full": "yellow",
    "drain": "cyan",
    "new": "dim",
    "down": "bold red",
    "fault": "bold red",
    "away": "bold red",
    "held": "green",
    "moving": "cyan",
    "suspending": "cyan",
    "suspended": "cyan",
    "resuming": "cyan",
    "ending": "dim",
    "unreachable": "bold red",
    "waiting": "yellow",
}
BLOCKS = " ▁▂▃▄▅▆▇█"
NOT_KNOWN = "-"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Drawing characters: block characters and braille, blocks without it, or ASCII alone."""

    ascii: bool = False
    blocks: bool = False  # no braille, as on the console of Linux


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, and rich's name of its style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column: the cell that it shows for a row, and the key by which it sorts."""

    title: str
    cell: Callable[[R, Glyphs], Cell]
    key: Callable[[R], Any]
    right: bool = False
    wide: bool = False  # shown only when asked for
    live: bool = False  # only where measurements of the servers are at hand
    seldom: bool = False  # only where a row has something there


# --- cells ----------------------------------------------------------------------------------------


def load_style(ratio: float, thresholds: tuple[float, float]) -> str:
    """Return the colour of a load between 0 and 1."""
    moderate, heavy = thresholds
    return "green" if ratio < moderate else "yellow" if ratio < heavy else "red"


def bar(ratio: float, width: int, glyphs: Glyphs) -> str:
    """Return a bar of ``width`` characters, filled to ``ratio``."""
    filled = min(width, max(0, round(min(1.0, max(0.0, ratio)) * width)))
    if ratio > 0 and not filled:
        filled = 1  # something is never shown as nothing
    return ("#" if glyphs.ascii else "█") * filled + ("." if glyphs.ascii else "░") * (
        width - filled
    )


def mini_cell(gpu: GpuView, telemetry: GpuTelemetry | None, glyphs: Glyphs) -> str:
    """Return one character for a GPU: how busy it is, else how much of it is granted."""
    if gpu.fault:
        return "x"
    if gpu.drain:
        return "-"
    load = telemetry.utilization if telemetry is not None else None
    if load is None:
        load = gpu.memory_granted / gpu.capacity if gpu.capacity else 0.0
    load = min(1.0, max(0.0, load))
    if glyphs.ascii:
        return str(min(9, round(load * 9)))
    return BLOCKS[max(1, round(load * 8))]


def _optional(value: float | None, unit: str = "", digits: int = 0) -> str:
    return NOT_KNOWN if value is None else f"{value:.{digits}f}{unit}"


def _figure(
    title: str,
    read: Callable[[R], float | None],
    text: Callable[[float], str],
    *,
    live: bool = False,
    seldom: bool = False,
) -> Column[R]:
    """Return a column of figures, some of them not known, that sorts by the largest first."""

    def cell(row: R, _glyphs: Glyphs) -> Cell:
        value = read(row)
        unknown = "" if seldom else NOT_KNOWN
        return Cell(unknown if value is None else text(value))

    return Column(title, cell, lambda row: -(read(row) or 0), right=True, live=live, seldom=seldom)


def _number(
    title: str, read: Callable[[R], float | None], unit: str = "", digits: int = 0
) -> Column[R]:
    return _figure(title, read, lambda value: f"{value:.{digits}f}{unit}", live=True)


def _size(title: str, read: Callable[[R], float | None], *, live: bool = True) -> Column[R]:
    return _figure(title, read, lambda value: size_text(int(value)), live=live)


def _known(title: str, read: Callable[[R], str], *, wide: bool = False) -> Column[R]:
    """Return a column of words, some of them not known."""
    return Column(title, lambda row, _: Cell(read(row) or NOT_KNOWN), read, wide=wide)


def _memory_cell(granted: int, capacity: int, glyphs: Glyphs) -> Cell:
    ratio = granted / capacity if capacity else 0.0
    text = f"{bar(ratio, 8, glyphs)} {size_text(granted):>5}/{size_text(capacity):<5}"
    return Cell(text, load_style(ratio, MEMORY_THRESHOLDS))


def _mini_cells(row: ServerRow, glyphs: Glyphs) -> Cell:
    text = "".join(mini_cell(each.gpu, each.telemetry, glyphs) for each in row.gpus)
    return Cell(text or ("witness" if row.server.witness else NOT_KNOWN))


def _state_cell(state: str) -> Cell:
    return Cell(state, STATE_STYLES.get(state.rstrip("*"), ""))


def _server_state(row: ServerRow, _glyphs: Glyphs) -> Cell:
    """Return its state, with sinfo's ``*`` where it does not answer and no word says so."""
    return _state_cell(row.state + ("*" if row.unreachable and row.state != "away" else ""))


def _server_reason(row: ServerRow) -> str:
    if row.reason:
        return row.reason
    if row.unreachable and row.telemetry is not None:
        return f"measured {duration_text(row.age_s)} ago"
    gpus = row.server.gpus
    wrong = [f"GPU {gpu.index}: {gpu.fault}" for gpu in gpus if gpu.fault]
    wrong += [f"GPU {gpu.index} drained: {gpu.drain}" for gpu in gpus if gpu.drain]
    return "; ".join(wrong) or ("does not answer" if row.unreachable else "")


def _link_text(server: ServerView) -> str:
    """Return the speed of a server's network, such as ``25G rdma``."""
    speed = server.link_speed
    text = f"{speed // 1000}G" if speed >= 1000 else f"{speed}M" if speed else NOT_KNOWN
    return f"{text} rdma" if server.rdma else text


def _labels(row: ServerRow) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(row.server.labels.items()))


SERVER_COLUMNS: tuple[Column[ServerRow], ...] = (
    Column("STATE", _server_state, lambda r: r.state),
    Column(
        "SERVER",
        lambda r, _: Cell(r.server.name + (" (leader)" if r.server.leader else ""), "bold"),
        lambda r: r.server.name,
    ),
    Column("GPUS", _mini_cells, lambda r: -len(r.server.gpus)),
    Column(
        "MEMORY GRANTED",
        lambda r, glyphs: _memory_cell(r.granted, r.capacity, glyphs),
        lambda r: -r.granted,
    ),
    _figure("LEASES", lambda r: r.server.lease_count, str),
    _number("POWER", lambda r: r.power_w, "W"),
    _number("TEMP", lambda r: r.temperature_c, "C"),
    Column(
        "PING",
        lambda r, _: Cell(_optional(None if r.ping_s is None else r.ping_s * 1000, "ms", 1)),
        lambda r: r.ping_s or 0.0,
        right=True,
        live=True,
    ),
    Column("ADDRESS", lambda r, _: Cell(r.server.address), lambda r: r.server.address),
    _known("VERSION", lambda r: r.server.version, wide=True),
    _known("DRIVER", lambda r: r.server.driver_version, wide=True),
    Column(
        "LINK",
        lambda r, _: Cell(_link_text(r.server)),
        lambda r: -r.server.link_speed,
        right=True,
        wide=True,
    ),
    Column("LABELS", lambda r, _: Cell(_labels(r)), lambda r: _labels(r), wide=True),
    Column("ID", lambda r, _: Cell(r.server.id, "dim"), lambda r: r.server.id, wide=True),
    Column(
        "REASON",
        lambda r, _: Cell(_server_reason(r), "red" if r.server.state == "down" else ""),
        lambda r: r.reason,
    ),
)


def _utilization(row: GpuRow) -> float | None:
    return row.telemetry.utilization if row.telemetry is not None else None


def _utilization_cell(row: GpuRow, glyphs: Glyphs) -> Cell:
    ratio = _utilization(row)
    if ratio is None:
        return Cell(NOT_KNOWN)
    text = f"{bar(ratio, 8, glyphs)} {ratio * 100:3.0f}%"
    return Cell(text, load_style(ratio, UTILIZATION_THRESHOLDS))


def _measured(
    read: Callable[[GpuTelemetry], float | None],
) -> Callable[[GpuRow], float | None]:
    return lambda row: read(row.telemetry) if row.telemetry is not None else None


def _owners(row: GpuRow) -> str:
    words = (
        f"{lease.name} {lease.user}{' suspended' if lease.is_away else ''}" for lease in row.leases
    )
    return ", ".join(dict.fromkeys(words))


def _trouble_cell(gpu: GpuView) -> Cell:
    return Cell(gpu.fault, "bold red") if gpu.fault else Cell(gpu.drain, "cyan")


GPU_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("STATE", lambda r, _: _state_cell(r.state), lambda r: r.state),
    Column("SERVER", lambda r, _: Cell(r.server.server.name), lambda r: r.server.server.name),
    Column("GPU", lambda r, _: Cell(str(r.gpu.index)), lambda r: r.gpu.index, right=True),
    Column("MODEL", lambda r, _: Cell(short_model(r.gpu.name), "bold"), lambda r: r.gpu.name),
    Column("UTIL", _utilization_cell, lambda r: -(_utilization(r) or 0.0), live=True),
    Column(
        "MEMORY GRANTED",
        lambda r, glyphs: _memory_cell(r.gpu.memory_granted, r.gpu.capacity, glyphs),
        lambda r: -r.gpu.memory_granted,
    ),
    _size("FREE", lambda r: r.free, live=False),
    _size("USED", _measured(lambda t: t.memory_used)),
    _number("TEMP", _measured(lambda t: t.temperature_c), "C"),
    _number("POWER", _measured(lambda t: t.power_w), "W"),
    _number("ECC", _measured(lambda t: t.ecc_errors)),
    Column("CC", lambda r, _: Cell(r.gpu.compute_capability or NOT_KNOWN), lambda r: 0, wide=True),
    Column("PCI", lambda r, _: Cell(r.gpu.pci_bus_id or NOT_KNOWN), lambda r: 0, wide=True),
    Column("LABELS", lambda r, _: Cell(_labels(r.server)), lambda r: _labels(r.server), wide=True),
    Column("UUID", lambda r, _: Cell(r.gpu.id, "dim"), lambda r: r.gpu.id, wide=True),
    _known("OWNER", _owners),
    _figure("AGE", lambda r: r.held_s, duration_text),
    Column("FAULT", lambda r, _: _trouble_cell(r.gpu), lambda r: r.gpu.fault or r.gpu.drain),
)


LATENCY_BOUND_S = 0.2
"""A client that waits for the wire so much of each second is slow for that reason."""


def gpus_text(row: AnyLease) -> str:
    """Return how many GPUs of which model on which servers, or how much is asked for."""
    if isinstance(row, LeaseRow):
        places = row.places.items()
        return ", ".join(f"{count} x {model} on {name}" for (model, name), count in places)
    wish = row.source
    if wish.memory or wish.fraction < 1:
        part = size_text(wish.memory) if wish.memory else f"{wish.fraction:.0%}"
        return f"{wish.count} x {part}"
    return "1 whole GPU" if wish.count == 1 else f"{wish.count} whole GPUs"


def _wire(row: AnyLease) -> float | None:
    return row.rate.wire_s if row.rate is not None else None


def _wire_cell(row: AnyLease, _glyphs: Glyphs) -> Cell:
    wire_s = _wire(row)
    if wire_s is not None and wire_s > LATENCY_BOUND_S:
        return Cell(f"{wire_s:.2f} latency", "bold yellow")
    return Cell(_optional(wire_s, digits=2))


def _share_cell(row: AnyLease, _glyphs: Glyphs) -> Cell:
    """Return a lease's received and due share of GPU time; empty where it is alone.

    What it got counts only while others want theirs.
    """
    due, got = row.figures.share_due, row.figures.share_got
    if due is None:
        return Cell("")
    return Cell(f"{_optional(got, digits=2)} of {due:.2f}")


def _busy_cell(row: AnyLease, _glyphs: Glyphs) -> Cell:
    estimated = "~" if row.figures.busy_estimated and row.figures.busy is not None else ""
    return Cell(estimated + _optional(row.figures.busy, digits=2))


LEASE_COLUMNS: tuple[Column[AnyLease], ...] = (
    Column("STATE", lambda r, _: _state_cell(r.state), lambda r: r.state),
    Column("LEASE", lambda r, _: Cell(r.id, "bold"), lambda r: r.id),
    Column("USER", lambda r, _: Cell(r.source.user), lambda r: r.source.user),
    Column(
        "CLASS", lambda r, _: Cell(r.source.user_class), lambda r: r.source.user_class, seldom=True
    ),
    _figure("PRIORITY", lambda r: r.priority, str, seldom=True),
    Column("GPUS", lambda r, _: Cell(gpus_text(r)), gpus_text),
    _size("MEMORY", lambda r: r.memory or None, live=False),
    Column("SHARE", _share_cell, lambda r: -(r.figures.share_got or 0.0), right=True, seldom=True),
    _figure("AGE", lambda r: r.age_s, duration_text),
    _figure("FREE IN", lambda r: r.free_in_s, duration_text, seldom=True),
    _size("USED", lambda r: r.figures.memory_used),
    _size("UP/S", lambda r: r.rate.up_per_s if r.rate else None),
    _size("DOWN/S", lambda r: r.rate.down_per_s if r.rate else None),
    _number("CALLS/S", lambda r: r.rate.calls_per_s if r.rate else None),
    _number("WAITS/S", lambda r: r.rate.waits_per_s if r.rate else None),
    _figure("RTT", lambda r: r.figures.rtt_us, lambda us: f"{us / 1000:.2f}ms", live=True),
    Column("WIRE", _wire_cell, lambda r: -(_wire(r) or 0.0), live=True),
    Column("BUSY", _busy_cell, lambda r: -(r.figures.busy or 0.0), right=True, live=True),
    _figure("IDLE", lambda r: r.figures.idle_s, duration_text, live=True),
    Column("CLIENT", lambda r, _: Cell(r.source.client), lambda r: r.source.client, wide=True),
    Column("PROGRAM", lambda r, _: Cell(r.source.program), lambda r: r.source.program),
    Column("REASON", lambda r, _: Cell(r.reason), lambda r: r.reason),
)


# --- text -----------------------------------------------------------------------------------------


def chosen_columns(
    columns: Sequence[Column[R]], *, wide: bool = False, live: bool = False
) -> list[Column[R]]:
    """Return the columns to show."""
    return [c for c in columns if (wide or not c.wide) and (live or not c.live)]


def cells_of(columns: Sequence[Column[R]], rows: Iterable[R], glyphs: Glyphs) -> list[list[Cell]]:
    """Return the cells of every row."""
    return [[column.cell(row, glyphs) for column in columns] for row in rows]


def matches(cells: Sequence[Cell], text: str) -> bool:
    """Return whether every word of ``text`` occurs in some cell, ignoring case."""
    line = " ".join(cell.text for cell in cells).casefold()
    return all(word in line for word in text.casefold().split())
