"""The line of each key in a TOML document, which ``tomllib`` does not report.

The document has been parsed before. Headings and keys that begin a line are found, dotted and
quoted ones too; what stands inside of an array or an inline table has the line of its key. A path
is the keys down to a value, with an index in arrays of tables: ``("window", 0, "class", "x")``.
"""

import re
import tomllib

Path = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_NAME = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_LINE = re.compile(rf"[ \t]*(?:(\[\[?)[ \t]*({_NAME})[ \t]*\]|({_NAME})[ \t]*=)")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every table and key of a valid document."""
    lines: dict[Path, int] = {}
    arrays: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.split("\n"), 1):
        if (found := _LINE.match(line)) is None:
            continue
        bracket, heading, key = found.groups()
        if bracket:
            *parents, last = _parts(heading)
            table = _resolve(parents, arrays)
            if bracket == "[[":
                arrays[*table, last] = arrays.get((*table, last), -1) + 1
            table = _resolve([last], arrays, table)
        path = table if bracket else (*table, *_parts(key))
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _parts(name: str) -> list[str]:
    """Return the parts of a dotted key."""
    words: list[str] = re.findall(_PART, name)
    return [str(tomllib.loads(f"k={each}")["k"]) if each[0] in "\"'" else each for each in words]


def _resolve(keys: list[str], arrays: dict[Path, int], path: Path = ()) -> Path:
    """Return the path of a table's name: each array in it stands for its last element."""
    for key in keys:
        path = (*path, key)
        if path in arrays:
            path = (*path, arrays[path])
    return path
