"""Settings with their origin: flag > GPUPOOL_* > ./gpupool.toml > user's file > /etc > default.

A settings file has one table per command, and in it the command's long options without dashes:
``[run]`` with ``count = 2``. click itself ranks flag, environment and ``default_map``; this module
makes that map out of the files and remembers which file each value came from.
"""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpupool.pool.errors import UsageError

FILE_SIZE_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One settings file as it was read."""

    path: Path
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The value of one option and the file it came from."""

    value: object
    path: Path


def read_files(paths: Iterable[Path]) -> tuple[ConfigFile, ...]:
    """Return the settings files that exist, in the order of ``paths``.

    Raises:
        UsageError: when one cannot be read or is not TOML.
    """
    files: list[ConfigFile] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                data = file.read(FILE_SIZE_MAX + 1)
        except OSError as error:
            if not os.path.lexists(path):
                continue  # or in a folder that is closed to us, such as a service's home
            raise UsageError(
                f"cannot read settings from {path}", why=str(error.strerror)
            ) from error
        files.append(ConfigFile(path, parse(data, path)))
    return tuple(files)


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """Return the tables of one settings file.

    Raises:
        UsageError: when it is too large or not TOML.
    """
    import tomllib  # 17 ms, and most machines have no settings file

    if len(data) > FILE_SIZE_MAX:
        raise UsageError(f"the settings file {path} is too large", why="more than 1 MiB")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the settings file {path} is not valid TOML", why=str(error)) from error


def check_sections(files: Sequence[ConfigFile], commands: Sequence[str]) -> None:
    """Refuse a table that belongs to no command.

    Raises:
        UsageError: with the nearest command as the suggestion.
    """
    for file in files:
        for section, values in file.values.items():
            if section not in commands:
                raise _unknown(section, commands, f"{file.path} has an unknown setting")
            if not isinstance(values, dict):
                raise UsageError(
                    f"{file.path} has an unknown setting",
                    why=f"{section!r} is a command, so it must be a table",
                    hint=f"write [{section}] and its options below it",
                )


def options_of(
    files: Sequence[ConfigFile], section: Sequence[str], known: Sequence[str]
) -> dict[str, ConfigValue]:
    """Return the files' values for the command ``section``, by option name without dashes.

    Args:
        files: the strongest first.
        section: the command and, for a nested one, its subcommand.
        known: long option names of the command, and names of its subcommands.

    Raises:
        UsageError: for a name that the command does not have.
    """
    found: dict[str, ConfigValue] = {}
    for file in files:
        table: object = file.values
        for part in section:
            table = cast("dict[str, object]", table).get(part, {})
            if not isinstance(table, dict):
                raise UsageError(f"{file.path}: {'.'.join(section)} must be a table")
        for key, value in cast("dict[str, object]", table).items():
            name = key.replace("_", "-")
            if name not in known:
                where = f"{file.path} has an unknown setting in [{'.'.join(section)}]"
                raise _unknown(key, known, where)
            if not isinstance(value, dict):
                found.setdefault(name, ConfigValue(value, file.path))
    return found


def _unknown(name: str, known: Sequence[str], where: str) -> UsageError:
    near = difflib.get_close_matches(name.replace("_", "-"), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(sorted(known))}"
    return UsageError(where, why=repr(name), hint=hint)
