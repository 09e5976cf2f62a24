"""``gpupool top`` in a terminal, on a real pool; the terminal is as before, however it ends."""

import signal
import sys
from typing import Any

import pytest

from gpupool.cli.tui.terminal_keys import MOUSE_OFF, MOUSE_ON

TOP = [sys.executable, "-m", "gpupool.cli.main", "top"]
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"


def restored(terminal: Any, modes: list[object]) -> bool:
    text = terminal.text
    return (
        text.rindex(LEAVE_SCREEN) > text.rindex(ENTER_SCREEN)
        and SHOW_CURSOR in text
        and terminal.modes() == modes
    )


def opened(live_pool: Any, terminal: Any, *arguments: str) -> list[object]:
    """Start the view, wait for its first whole frame, and return the modes from before."""
    modes: list[object] = terminal.modes()
    terminal.spawn([*TOP, *arguments], env=live_pool.env | {"TERM": "xterm-256color"})
    terminal.read_until("gpupool lab", "quorum 3/3", "1 Servers (3)", "q quit")
    assert terminal.modes() != modes  # single keys are read
    return modes


@pytest.mark.parametrize(
    ("key", "code"), [(b"q", 0), (b"\x03", -signal.SIGINT)], ids=["q", "Ctrl-C"]
)
def test_leaving_by_a_key(live_pool: Any, terminal: Any, key: bytes, code: int) -> None:
    modes = opened(live_pool, terminal)
    terminal.type(key)
    assert terminal.wait() == code
    assert restored(terminal, modes)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)]
)
def test_leaving_by_a_signal(live_pool: Any, terminal: Any, number: int) -> None:
    modes = opened(live_pool, terminal)
    terminal.process.send_signal(number)
    assert terminal.wait() == -number
    assert restored(terminal, modes)


def test_help_panels_filter_and_json(live_pool: Any, terminal: Any) -> None:
    opened(live_pool, terminal)
    terminal.type(b"?")
    terminal.read_until("only what is wrong")
    terminal.type(b"x")
    terminal.text = ""
    terminal.type(b"2\x1b[B")
    terminal.read_until("2 GPUs of")
    port: str = live_pool.view()["servers"][1]["address"].rpartition(":")[2]
    terminal.type(f"1/:{port}\r".encode())
    terminal.read_until("1 Servers (1 of 3)")
    terminal.type(b"y")
    terminal.read_until('"server": {')
    terminal.text = ""
    terminal.type(b"\x1b[6~")
    terminal.read_until("arrows scroll")
    terminal.resize(600, 80)  # all of it at once
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.read_until('"telemetry": {')
    terminal.type(b"q")
    assert terminal.wait() == 0


def test_a_new_size_is_used(live_pool: Any, terminal: Any) -> None:
    opened(live_pool, terminal)
    terminal.resize(12, 50)
    terminal.process.send_signal(signal.SIGWINCH)  # what the terminal does; it is ours, not its
    widths: list[int] = []
    while not widths or widths[-1] > 50:
        assert len(widths) < 20, widths
        terminal.text = ""
        terminal.read_until("q quit")
        last = terminal.plain.replace("\r", "").split("\n")[-11:]
        widths.append(max(len(line) for line in last))
    terminal.type(b"q")
    assert terminal.wait() == 0


def test_drain_from_the_screen(live_pool: Any, terminal: Any) -> None:
    opened(live_pool, terminal)
    assert live_pool.view()["servers"][1]["name"] == "b"
    terminal.type(b"jdnew fan\r")
    terminal.read_until("b is drained")
    terminal.read_until("drain  b")
    assert "new fan" in terminal.plain
    terminal.text = ""
    terminal.type(b"uy")
    terminal.read_until("b takes leases again")
    terminal.type(b"q")
    assert terminal.wait() == 0
    states = [s["state"] for s in live_pool.view()["servers"] if s["name"] == "b"]
    assert states == ["idle"]


def test_readonly_ascii_without_colours(live_pool: Any, terminal: Any) -> None:
    live_pool.env["NO_COLOR"] = "1"
    try:
        opened(live_pool, terminal, "--readonly", "--ascii")
    finally:
        del live_pool.env["NO_COLOR"]
    terminal.type(b"d")
    terminal.read_until("--readonly")
    terminal.text = ""
    terminal.type(b"g")
    terminal.read_until("SM ACTIVITY")
    terminal.type(b"q")
    assert terminal.wait() == 0
    assert terminal.plain.isascii()
    assert "\x1b[32m" not in terminal.text
    assert "\x1b[31m" not in terminal.text


@pytest.mark.long
def test_details_tree_and_usage(live_pool: Any, terminal: Any) -> None:
    opened(live_pool, terminal)
    terminal.type(b"\r")
    terminal.read_until("Server a", "Last 15 minutes", "GPUs (2)", "Findings and advice", "mean ")
    terminal.type(b"]")
    terminal.read_until("Last hour")
    terminal.type(b"\x1b")
    terminal.type(b"\x1b[<0;5;8M\x1b[<0;5;8m")  # the third server; then it is opened
    terminal.type(b"\x1b[<0;5;8M")
    terminal.read_until("Server c")
    terminal.type(b"xt")
    terminal.read_until("Users: ")
    terminal.type(b"xU")
    terminal.read_until("Usage of the last 7 days", "GPU-HOURS", "held while nothing ran")
    terminal.type(b"q")
    assert terminal.wait() == 0
    assert terminal.text.rindex(MOUSE_OFF) > terminal.text.rindex(MOUSE_ON)


def test_a_terminal_that_moves_no_cursor_gets_the_plain_table(
    live_pool: Any, terminal: Any
) -> None:
    terminal.spawn(TOP, env=live_pool.env | {"TERM": "dumb"})
    assert terminal.wait() == 0
    assert "127.0.0.1:" in terminal.text
    assert "\x1b[?" not in terminal.text
