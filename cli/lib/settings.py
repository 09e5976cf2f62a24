"""Settings of commands, with their origin.

Flag > GPUPOOL_* > ./gpupool.toml > user's file > /etc > default.

A settings file has one table per command, and in it the command's long options without dashes:
``[run]`` with ``count = 2``. click itself ranks flag, environment and ``default_map``; this module
makes that map out of the files and remembers which file each value came from.
"""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from gpupool.pool.errors import UsageError
from gpupool.pool.model.state import Filter
from gpupool.pool.scheduling.filters import filter_text
from gpupool.pool.values import duration_text
from gpupool.remoting.local.files import config_files

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


NOT_SETTINGS = {"help", "version", "json", "verbose", "token", "operator-token", "lease", "all"}
"""Options for one action; a token is a secret and is never shown."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of one command as it holds here."""

    name: str  # "run.count"
    value: Any
    origin: str  # "default", "$GPUPOOL_RUN_COUNT", or a file


def long_name(param: click.Parameter) -> str:
    """Return the longest option name without its dashes."""
    names = [opt.lstrip("-") for opt in param.opts if opt.startswith("--")]
    return max(names, key=len, default=param.name or "")


def settable(command: click.Command) -> list[click.Option]:
    """Return the options of ``command`` that a settings file may set."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [option for option in options if long_name(option) not in NOT_SETTINGS]


def default_map(group: click.Group, ctx: click.Context, names: Sequence[str]) -> dict[str, Any]:
    """Return click's map of defaults for the commands ``names``, read from the settings files."""
    files = read_files(config_files())
    check_sections(files, group.list_commands(ctx))
    result: dict[str, Any] = {}
    for name in names:
        command = group.get_command(ctx, name)
        if command is not None:
            result[name] = _command_map(files, (name,), command, ctx)
    return result


def _command_map(
    files: Sequence[ConfigFile],
    section: tuple[str, ...],
    command: click.Command,
    ctx: click.Context,
) -> dict[str, Any]:
    options = {long_name(option): option for option in settable(command)}
    children: list[str] = command.list_commands(ctx) if isinstance(command, click.Group) else []
    found = options_of(files, section, [*options, *children])
    result = _values(options, found)
    if isinstance(command, click.Group):
        for child in children:
            nested = command.get_command(ctx, child)
            if nested is not None:
                result[child] = _command_map(files, (*section, child), nested, ctx)
    return result


def _values(
    options: Mapping[str, click.Option], found: Mapping[str, ConfigValue]
) -> dict[str, Any]:
    """Return the values in files by parameter; a repeatable option's single value is a list."""
    values: dict[str, Any] = {}
    for name, each in found.items():
        if (option := options.get(name)) is not None:
            value = cast(Any, each.value)
            is_alone = option.multiple and not isinstance(value, list)
            values[option.name or name] = [value] if is_alone else value
    return values


def current_settings(group: click.Group, ctx: click.Context) -> Iterator[Setting]:
    """Yield every setting of every command with its origin."""
    files = read_files(config_files())
    check_sections(files, group.list_commands(ctx))
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is not None:
            yield from _settings_of(files, (name,), command, ctx)


def _settings_of(
    files: Sequence[ConfigFile],
    section: tuple[str, ...],
    command: click.Command,
    ctx: click.Context,
) -> Iterator[Setting]:
    children: list[str] = command.list_commands(ctx) if isinstance(command, click.Group) else []
    options = settable(command)
    found = options_of(files, section, [*(long_name(o) for o in options), *children])
    context = command.make_context(
        section[-1],
        [],
        parent=ctx,
        resilient_parsing=True,
        default_map=_values({long_name(option): option for option in options}, found),
        auto_envvar_prefix="_".join(("GPUPOOL", *section)).upper(),
    )
    for option in options:
        name = option.name or ""
        origin = _origin(context, option, found)
        yield Setting(".".join((*section, long_name(option))), context.params.get(name), origin)
    if isinstance(command, click.Group):
        for child in children:
            nested = command.get_command(ctx, child)
            if nested is not None:
                yield from _settings_of(files, (*section, child), nested, ctx)


def _origin(context: click.Context, option: click.Option, found: dict[str, ConfigValue]) -> str:
    source = context.get_parameter_source(option.name or "")
    if source is ParameterSource.ENVIRONMENT:
        names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        automatic = f"{context.auto_envvar_prefix}_{(option.name or '').upper()}"
        return f"${names[0] if names else automatic}"
    if source is ParameterSource.DEFAULT_MAP:
        return str(found[long_name(option)].path)
    return "default"


def value_text(name: str, value: Any) -> str:
    """Return a setting's value as people read it."""
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    durations = ("timeout", "wait", "expires", "time")
    if isinstance(value, float) and re.split(r"[.-]", name)[-1] in durations:
        return duration_text(value)
    if isinstance(value, Filter):
        return filter_text(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Filter):
        return "; ".join(value_text(name, each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple):
        return " ".join(str(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)
