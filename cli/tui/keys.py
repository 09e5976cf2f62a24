"""Keys of the live view: names to actions, and the help made of the same table."""

from dataclasses import dataclass, replace
from enum import Enum

PANELS = ("servers", "gpus", "leases")
FIGURES = ("busy", "sm", "memory", "power", "temperature")
"""Metrics for the sparklines of GPUs, by the history's names."""

INTERVALS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
FILTER_LENGTH_MAX = 60
PAGE = 10
WHEEL = 3
MOVES = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "pageup": -PAGE,
    "pagedown": PAGE,
    "wheelup": -WHEEL,
    "wheeldown": WHEEL,
}
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
SPANS_S = (15 * MINUTE_S, HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S, 30 * DAY_S)
"""Time spans of a detail's charts."""

TREES = ("user", "client")
"""Keys by which the tree groups leases and requests."""

Chosen = tuple[str, str]
"""Subject of a detail: server, gpu, lease or waiting, and its id."""


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
    DETAIL = "detail"
    TREE = "tree"
    USAGE = "usage"
    DRAIN = "drain"  # the reason is being typed
    UNDRAIN = "undrain"  # y or n


OVERLAYS = (Mode.HELP, Mode.JSON, Mode.HEALTH, Mode.DETAIL, Mode.TREE, Mode.USAGE)


@dataclass(frozen=True, slots=True)
class Key:
    """One line of the key table."""

    keys: tuple[str, ...]
    does: str
    footer: str = ""  # how the footer calls it; empty when it is not there
    write: bool = False  # changes the pool: off under --readonly
    lesser: bool = False  # not in the footer of a narrow screen


KEYS: tuple[Key, ...] = (
    Key(("q", "ctrl-c"), "quit", "quit"),
    Key(("?", "h"), "this help", "help"),
    Key(("up", "k", "down", "j"), "move"),
    Key(("pageup", "pagedown", "home", "end"), "move far"),
    Key(("enter",), "this server, GPU or lease alone, with charts", "detail"),
    Key(("[", "]"), "there: charts of less time, of more (15 min to 30 days)"),
    Key(("right", "left"), "the GPUs of a server, the leases of a GPU; back"),
    Key(("esc",), "back; clears a filter"),
    Key(("1", "2", "3", "tab"), "servers, GPUs, leases", "panel", lesser=True),
    Key(("/",), "filter by words", "filter"),
    Key(("s", "S"), "sort by the next column; reverse", "sort", lesser=True),
    Key(("e",), "only what is wrong"),
    Key(("w",), "wide columns"),
    Key(("g",), "what GPUs' lines show: busy, SM activity, memory, power, temperature", "graph"),
    Key(("p",), "pause", "pause", lesser=True),
    Key(("+", "-"), "slower, faster"),
    Key(
        ("d", "u"),
        "drain, undrain the chosen server (asks first)",
        "drain",
        write=True,
        lesser=True,
    ),
    Key(("t",), "a tree: users, their leases, the sessions of these; t again: by client", "tree"),
    Key(("H",), "what is wrong with the pool, as gpupool health says it", "health"),
    Key(("U",), "who used what in the last 7 days, as gpupool usage says it", "usage"),
    Key(("y",), "this row as JSON"),
    Key(("m",), "the mouse: a click chooses and opens, the wheel moves; off and on"),
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
    detail: Chosen = ("", "")
    tree_by: str = TREES[0]
    span_index: int = 0
    mouse: bool = True
    message: str = ""

    @property
    def span_s(self) -> int:
        """Return the seconds that the charts of a detail show."""
        return SPANS_S[self.span_index]

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
    """The sizes of the shown lists, to limit the cursor."""

    rows: tuple[int, int, int]
    columns: tuple[int, int, int]
    chosen: Chosen | None = None  # the row under the cursor


def press(ui: UiState, key: str, extent: Extent) -> tuple[UiState, Action | None]:
    """Return the state after ``key``, and the action that the shell must carry out."""
    ui = replace(ui, message="")
    if key == "ctrl-c":
        return ui, Action.QUIT
    if ui.mode is Mode.FILTER:
        return _press_filter(ui, key), None
    if ui.mode in (Mode.DRAIN, Mode.UNDRAIN):
        return _press_prompt(ui, key)
    if ui.mode in OVERLAYS:
        return _press_overlay(ui, key)
    if key == "q":
        return ui, Action.QUIT
    return _browse(ui, key, extent), None


def _press_overlay(ui: UiState, key: str) -> tuple[UiState, Action | None]:
    if key in MOVES:
        return replace(ui, scroll=max(0, ui.scroll + MOVES[key])), None
    if key in ("[", "]") and ui.mode is Mode.DETAIL:
        index = ui.span_index + (1 if key == "]" else -1)
        return replace(ui, span_index=min(len(SPANS_S) - 1, max(0, index))), None
    if key == "t" and ui.mode is Mode.TREE:
        other = TREES[1 - TREES.index(ui.tree_by)]
        return replace(ui, tree_by=other, scroll=0), None
    if key.startswith("row:"):
        return ui, None  # a click into a text
    return replace(ui, mode=Mode.BROWSE, scroll=0), Action.QUIT if key == "q" else None


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
        case "enter" if extent.chosen is not None:
            return replace(ui, mode=Mode.DETAIL, detail=extent.chosen)
        case "right":
            return replace(ui, panel=PANELS[min(ui.panel_index + 1, 2)], all_servers=False)
        case "left":
            return replace(ui, panel=PANELS[max(ui.panel_index - 1, 0)], all_servers=False)
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
        case _ if key.startswith("row:"):
            return _click(ui, key, extent)
        case _:
            return _toggle(ui, key)


def _click(ui: UiState, key: str, extent: Extent) -> UiState:
    """Choose the row of ``row:PANEL:NUMBER``; open it where it is chosen already."""
    panel, row = (int(each) for each in key.split(":")[1:])
    if (panel, row) == (ui.panel_index, ui.cursor) and extent.chosen is not None:
        return replace(ui, mode=Mode.DETAIL, detail=extent.chosen)
    return _select(replace(ui, panel=PANELS[panel]), min(row, max(0, extent.rows[panel] - 1)))


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
        case "H" | "t" | "U":
            overlay = {"H": Mode.HEALTH, "t": Mode.TREE, "U": Mode.USAGE}[key]
            return replace(ui, mode=overlay)
        case "m":
            return replace(ui, mouse=not ui.mouse, message=f"mouse {'off' if ui.mouse else 'on'}")
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
