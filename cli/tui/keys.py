"""Keys of the live view: bytes to names, names to actions, and the help made of the same table."""

from dataclasses import dataclass, replace
from enum import Enum

PANELS = ("servers", "gpus", "leases")
FIGURES = ("busy", "sm", "memory", "power", "temperature")
"""What the sparklines of GPUs can show: the history's names."""

INTERVALS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
FILTER_LENGTH_MAX = 60
PAGE = 10
MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -PAGE, "pagedown": PAGE}


class Action(Enum):
    """An action outside the screen, which ``live_view`` carries out; the rest is in ``UiState``."""

    QUIT = "quit"
    DRAIN = "drain"
    UNDRAIN = "undrain"


class Mode(Enum):
    """Where keys go: the lists, a prompt, or an overlay."""

    BROWSE = "browse"
    HELP = "help"
    FILTER = "filter"
    JSON = "json"
    HEALTH = "health"
    DRAIN = "drain"  # the reason is being typed
    UNDRAIN = "undrain"  # y or n


@dataclass(frozen=True, slots=True)
class Key:
    """One line of the key table."""

    keys: tuple[str, ...]
    does: str
    footer: str = ""  # how the footer calls it; empty when it is not there
    write: bool = False  # changes the pool: off under --readonly


KEYS: tuple[Key, ...] = (
    Key(("q", "ctrl-c"), "quit", "quit"),
    Key(("?", "h"), "this help", "help"),
    Key(("up", "k", "down", "j"), "move"),
    Key(("pageup", "pagedown", "home", "end"), "move far"),
    Key(("enter",), "open: the GPUs of a server, the leases of a GPU"),
    Key(("esc",), "back; clears a filter"),
    Key(("1", "2", "3", "tab"), "servers, GPUs, leases", "panel"),
    Key(("/",), "filter by words", "filter"),
    Key(("s", "S"), "sort by the next column; reverse", "sort"),
    Key(("e",), "only what is wrong"),
    Key(("w",), "wide columns"),
    Key(("g",), "what GPUs' lines show: busy, SM activity, memory, power, temperature", "graph"),
    Key(("p",), "pause", "pause"),
    Key(("+", "-"), "slower, faster"),
    Key(("d", "u"), "drain, undrain the chosen server (asks first)", "drain", write=True),
    Key(("H",), "what is wrong with the pool, as gpupool health says it", "health"),
    Key(("y",), "this row as JSON"),
)


@dataclass(frozen=True, slots=True)
class UiState:
    """All that the user has chosen; changed only by ``press``."""

    panel: str = "servers"
    selected: tuple[int, int, int] = (0, 0, 0)
    mode: Mode = Mode.BROWSE
    filter: str = ""
    sort: tuple[int, int, int] = (-1, -1, -1)  # column of each panel; -1: as the pool lists them
    reverse: bool = False
    only_wrong: bool = False
    wide: bool = False
    paused: bool = False
    interval_index: int = 1
    readonly: bool = False
    typed: str = ""  # the reason of a drain, so far
    scroll: int = 0  # lines of the help or the JSON above the screen
    all_servers: bool = False  # the GPU panel shows every server's
    figure: str = FIGURES[0]
    message: str = ""

    @property
    def panel_index(self) -> int:
        """Return the number of the chosen panel, from 0."""
        return PANELS.index(self.panel)

    @property
    def cursor(self) -> int:
        """Return the chosen row of the chosen panel."""
        return self.selected[self.panel_index]

    @property
    def interval_s(self) -> float:
        """Return the seconds between two updates."""
        return INTERVALS_S[self.interval_index]


@dataclass(frozen=True, slots=True)
class Extent:
    """The sizes of the shown lists, within which the cursor stays."""

    rows: tuple[int, int, int]
    columns: tuple[int, int, int]


def press(ui: UiState, key: str, extent: Extent) -> tuple[UiState, Action | None]:
    """Return the state after ``key``, and the action that the shell must carry out."""
    ui = replace(ui, message="")
    if key == "ctrl-c":
        return ui, Action.QUIT
    if ui.mode is Mode.FILTER:
        return _press_filter(ui, key), None
    if ui.mode in (Mode.DRAIN, Mode.UNDRAIN):
        return _press_prompt(ui, key)
    if ui.mode in (Mode.HELP, Mode.JSON, Mode.HEALTH):
        if key in MOVES:
            return replace(ui, scroll=max(0, ui.scroll + MOVES[key])), None
        return replace(ui, mode=Mode.BROWSE, scroll=0), Action.QUIT if key == "q" else None
    if key == "q":
        return ui, Action.QUIT
    return _browse(ui, key, extent), None


def _browse(ui: UiState, key: str, extent: Extent) -> UiState:
    last = max(0, extent.rows[ui.panel_index] - 1)
    if key in MOVES:
        return _select(ui, min(last, max(0, ui.cursor + MOVES[key])))
    match key:
        case "home":
            return _select(ui, 0)
        case "end":
            return _select(ui, last)
        case "1" | "2" | "3":
            return replace(ui, panel=PANELS[int(key) - 1], all_servers=False)
        case "tab":
            return replace(ui, panel=PANELS[(ui.panel_index + 1) % len(PANELS)])
        case "enter":
            return replace(ui, panel=PANELS[min(ui.panel_index + 1, 2)], all_servers=False)
        case "esc":
            return replace(ui, filter="") if ui.filter else replace(ui, panel=PANELS[0])
        case "?" | "h":
            return replace(ui, mode=Mode.HELP)
        case "/":
            return replace(ui, mode=Mode.FILTER)
        case "s":
            return _next_sort(ui, extent)
        case "S":
            return replace(ui, reverse=not ui.reverse)
        case _:
            return _toggle(ui, key)


def _toggle(ui: UiState, key: str) -> UiState:
    match key:
        case "e":
            return replace(ui, only_wrong=not ui.only_wrong, selected=(0, 0, 0))
        case "w":
            return replace(ui, wide=not ui.wide, sort=(-1, -1, -1))
        case "g":
            return _next_figure(ui)
        case "p":
            return replace(ui, paused=not ui.paused)
        case "+":
            index = min(ui.interval_index + 1, len(INTERVALS_S) - 1)
            return replace(ui, interval_index=index, message=f"every {INTERVALS_S[index]:g} s")
        case "-":
            index = max(ui.interval_index - 1, 0)
            return replace(ui, interval_index=index, message=f"every {INTERVALS_S[index]:g} s")
        case "H":
            return replace(ui, mode=Mode.HEALTH)
        case "y":
            return replace(ui, mode=Mode.JSON)
        case "d" | "u" if ui.readonly:
            return replace(ui, message="--readonly: nothing is changed here")
        case "d":
            return replace(ui, mode=Mode.DRAIN, typed="")
        case "u":
            return replace(ui, mode=Mode.UNDRAIN)
        case _:
            return ui


def _next_figure(ui: UiState) -> UiState:
    figure = FIGURES[(FIGURES.index(ui.figure) + 1) % len(FIGURES)]
    return replace(ui, figure=figure, message=f"GPUs: {figure}")


def _select(ui: UiState, row: int) -> UiState:
    selected = list(ui.selected)
    selected[ui.panel_index] = row
    if ui.panel == "servers":
        selected[1] = 0  # the GPUs below are another server's now
    return replace(ui, selected=(selected[0], selected[1], selected[2]))


def _next_sort(ui: UiState, extent: Extent) -> UiState:
    sort = list(ui.sort)
    at = ui.panel_index
    sort[at] = sort[at] + 1 if sort[at] + 1 < extent.columns[at] else -1
    return replace(ui, sort=(sort[0], sort[1], sort[2]))


def _press_filter(ui: UiState, key: str) -> UiState:
    if key == "esc":
        return replace(ui, mode=Mode.BROWSE, filter="")
    if key == "enter":
        return replace(ui, mode=Mode.BROWSE)
    return replace(ui, filter=_edit(ui.filter, key), selected=(0, 0, 0))


def _press_prompt(ui: UiState, key: str) -> tuple[UiState, Action | None]:
    done = replace(ui, mode=Mode.BROWSE)
    if ui.mode is Mode.UNDRAIN:
        return done, Action.UNDRAIN if key in ("y", "Y") else None
    if key == "esc":
        return done, None
    if key == "enter":
        if not ui.typed.strip():
            return replace(ui, message="a drain needs a reason"), None
        return done, Action.DRAIN
    return replace(ui, typed=_edit(ui.typed, key)), None


def _edit(text: str, key: str) -> str:
    if key == "backspace":
        return text[:-1]
    if key == "ctrl-u":
        return ""
    if len(key) == 1 and key.isprintable() and len(text) < FILTER_LENGTH_MAX:
        return text + key
    return text


# --- bytes of a terminal to names of keys ---------------------------------------------------------

SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x15": "ctrl-u",
    b"\x03": "ctrl-c",
}
PENDING_MAX = 16


def decode_keys(data: bytes, *, more: bool = False) -> tuple[list[str], bytes]:
    """Return the names of the keys in ``data``, and the bytes of an unfinished one.

    Args:
        data: the bytes that the last call left over, then the new ones from the terminal.
        more: whether the rest of an escape sequence may still come; if not, ESC is a key.
    """
    keys: list[str] = []
    while data:
        sequence = next((s for s in SEQUENCES if data.startswith(s)), b"")
        if sequence:
            keys.append(SEQUENCES[sequence])
            data = data[len(sequence) :]
        elif data[0] == 0x1B:
            key, data = _escape(data, more)
            if not key:
                return keys, data
            keys.append(key)
        else:
            key, data = _character(data, more)
            if key is None:
                return keys, data
            if key:
                keys.append(key)
    return [key for key in keys if key != "unknown"], b""


def _escape(data: bytes, more: bool) -> tuple[str, bytes]:
    """Take one ESC, or an unknown sequence that begins with it, off ``data``."""
    if len(data) == 1 or data[1:2] not in (b"[", b"O"):
        if len(data) == 1 and more:
            return "", data
        return "esc", data[1:]
    for index, byte in enumerate(data[2:PENDING_MAX], start=2):
        if 0x40 <= byte <= 0x7E:
            return "unknown", data[index + 1 :]
    if more and len(data) < PENDING_MAX:
        return "", data
    return "esc", data[1:]


def _character(data: bytes, more: bool) -> tuple[str | None, bytes]:
    """Take one UTF-8 character off ``data``; None when it is not complete."""
    for size in range(1, 5):
        try:
            text = data[:size].decode()
        except UnicodeDecodeError:
            continue
        return (text if text.isprintable() else ""), data[size:]
    if more and len(data) < 4:
        return None, data
    return "", data[1:]
