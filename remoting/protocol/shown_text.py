"""Texts of a server as a client may show them: nothing in them commands a terminal.

A server's texts reach terminals by many ways: tables, errors, notices, logs. So the client cleans
them where it decodes a message, and no command has to. Bytes are data, and stay as they are.
"""

import re
from collections.abc import Callable
from typing import cast

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain

Clean = Callable[[str], str]

# Controls of ASCII and ISO 6429, what ends a line, and what turns the direction of writing round.
_DIRECTIONS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_NO_LINES = re.compile(f"[\x00-\x1f\x7f-\x9f{_DIRECTIONS}]")
_LINES = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_DIRECTIONS}]|\r(?!\n)")


def clean_line(text: str) -> str:
    """Return a text that has one line, as it may be shown."""
    return text if text.isprintable() else _NO_LINES.sub("\N{REPLACEMENT CHARACTER}", text)


def clean_lines(text: str) -> str:
    """Return a text that may have several lines and tabs, as it may be shown."""
    return text if text.isprintable() else _LINES.sub("\N{REPLACEMENT CHARACTER}", text)


def clean_plain(value: Plain, clean: Clean) -> Plain:
    """Return plain values with each text cleaned; lists and maps are changed in place.

    A view of 1,000 servers has 50,000 texts and comes once a second, so texts are looked at in
    their lists and maps, without a call for each.

    Raises:
        RemoteProtocolError: for a key that is no printable text: no field has such a name.
    """
    if type(value) is str:
        return clean(value)
    if type(value) is list:
        items = cast("list[Plain]", value)
        for at, item in enumerate(items):
            if type(item) is str:
                if not item.isprintable():
                    items[at] = clean(item)
            elif type(item) is list or type(item) is dict:
                clean_plain(item, clean)
    elif type(value) is dict:
        fields = cast("dict[str, Plain]", value)
        for name, item in fields.items():
            if not name.isprintable():
                raise RemoteProtocolError("malformed message", why="a field with a strange name")
            if type(item) is str:
                if not item.isprintable():
                    fields[name] = clean(item)
            elif type(item) is list or type(item) is dict:
                clean_plain(item, clean)
    return value
