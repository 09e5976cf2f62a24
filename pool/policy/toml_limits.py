"""The limits of a TOML document's shape, checked before a parser sees it.

A parser of TOML needs time and memory that grow with the square of a dotted key's length, and a
level of its stack for each nested array. One pass over the text, linear in its length, refuses
both. The pass follows strings and comments as TOML 1.0 does. It stops where a string does not end,
as every parser does.
"""

import re

KEY_PART_COUNT_MAX = 8
"""Parts of a dotted key or a table's name. The deepest one of a policy has 5."""

NESTING_MAX = 8
"""Arrays and inline tables inside each other. A policy needs two."""

_TOKEN = re.compile(r'"""|\'\'\'|["\'#.=,\n{}]|\[|\]')


def shape_problem(text: str) -> tuple[int, str] | None:
    """Return the line and the text of the first limit that ``text`` breaks, or None."""
    at, dots, depth = 0, 0, 0
    while (token := _TOKEN.search(text, at)) is not None:
        at = token.end()
        match token[0]:
            case ".":
                dots += 1
            case "#":
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
            case '"' | "'" | '"""' | "'''" as quote:
                end = _string_end(text, at, quote)
                if end is None:
                    return None
                at = end
            case "[" | "{":
                depth, dots = depth + 1, 0
            case "]" | "}":
                depth, dots = max(0, depth - 1), 0
            case _:  # the end of a key, a value, a line
                dots = 0
        if dots >= KEY_PART_COUNT_MAX:
            return _line(text, at), f"a key has at most {KEY_PART_COUNT_MAX} parts"
        if depth > NESTING_MAX:
            return _line(text, at), f"arrays and tables nest at most {NESTING_MAX} deep"
    return None


def _string_end(text: str, at: int, quote: str) -> int | None:
    """Return the place behind the string that begins at ``at``, or None when it does not end."""
    while True:
        found = text.find(quote, at)
        if found < 0:
            return None
        if quote[0] == '"' and _is_escaped(text, at, found):
            at = found + 1
            continue
        end = found + len(quote)
        # Up to two quotes may stand before the three that close a long string.
        while len(quote) == 3 and end < found + 5 and text.startswith(quote[0], end):
            end += 1
        return end


def _is_escaped(text: str, start: int, at: int) -> bool:
    """Return whether an odd number of backslashes stands before ``at``, since ``start``."""
    before = at
    while before > start and text[before - 1] == "\\":
        before -= 1
    return (at - before) % 2 == 1


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
