"""Decoder of terminal bytes into names of keys and mouse events. Pure."""

import re

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
MOUSE = re.compile(rb"\x1b\[<(\d{1,2});(\d{1,4});(\d{1,4})([Mm])")
"""xterm's SGR report: button, column and line from 1, pressed or let go."""

LEFT, WHEEL_UP, WHEEL_DOWN = 0, 64, 65
MOUSE_ON, MOUSE_OFF = "\x1b[?1000h\x1b[?1006h", "\x1b[?1006l\x1b[?1000l"


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
        elif report := MOUSE.match(data):
            keys.append(_mouse(report))
            data = data[report.end() :]
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


def _mouse(report: re.Match[bytes]) -> str:
    """Return ``wheelup``, ``wheeldown``, or ``click:COLUMN:LINE`` from 0."""
    button, column, line = (int(each) for each in report.groups()[:3])
    pressed = report[4] == b"M"
    if pressed and button in (WHEEL_UP, WHEEL_DOWN):
        return "wheelup" if button == WHEEL_UP else "wheeldown"
    if pressed and button == LEFT and column and line:
        return f"click:{column - 1}:{line - 1}"
    return "unknown"


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
