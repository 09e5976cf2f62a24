"""Settings of commands: which options files may set, and the value and origin of each of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import click
from click.core import ParameterSource

from gpupool.cli.lib.config_files import (
    ConfigFile,
    ConfigValue,
    check_sections,
    options_of,
    read_files,
)
from gpupool.pool.model.state import Filter
from gpupool.pool.scheduling.filters import filter_text
from gpupool.pool.values import duration_text
from gpupool.remoting.local.files import config_files

NOT_SETTINGS = {"help", "version", "json", "verbose", "token", "operator-token", "lease", "all"}
"""Options that say what to do once; a token is a secret and is never shown."""


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
    """Return what files say, by parameter; of an option that is repeatable, one value is a list."""
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
