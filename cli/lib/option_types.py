"""The types of click's options: each parses by a function, and refuses with its sentence."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import click
from click.shell_completion import CompletionItem

from gpupool.pool.errors import UsageError
from gpupool.pool.values import (
    parse_count,
    parse_duration,
    parse_emulation,
    parse_filter,
    parse_fraction,
    parse_label,
    parse_name,
    parse_pair,
    parse_partition,
    parse_share,
    parse_size,
)
from gpupool.remoting.protocol.addresses import Address, parse_address, parse_listen

T = TypeVar("T")


class Parsed(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """A click type made of a function that raises ValueError with a sentence."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return the parsed value; a value that was parsed before passes through."""
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            return value
        try:
            return self._parse(str(value).strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FilterType(Parsed):
    """A filter. Its keys complete; in a variable, filters are separated by semicolons."""

    envvar_list_splitter: ClassVar[str | None] = ";"

    def __init__(self) -> None:
        super().__init__("filter", parse_filter)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the keys that begin with ``incomplete``."""
        from gpupool.pool.scheduling.filters import KEYS, LABELS

        return [CompletionItem(key) for key in (*KEYS, LABELS) if key.startswith(incomplete)]


def _address_by(parse: Callable[[str], Address]) -> Callable[[str], Address]:
    def parsed(text: str) -> Address:
        try:
            return parse(text)
        except UsageError as error:
            raise ValueError(f"{error.what}: {error.hint}") from error

    return parsed


COUNT = Parsed("count", parse_count)
FRACTION = Parsed("fraction", parse_fraction)
SHARE = Parsed("fraction", parse_share)
SIZE_TYPE = Parsed("size", parse_size)
PARTITION = Parsed("size", parse_partition)
LABEL = Parsed("name=value", parse_label)
FILTER = FilterType()
DURATION = Parsed("duration", parse_duration)
LISTEN = Parsed("host:port", _address_by(parse_listen))
ADDRESS = Parsed("host:port", _address_by(parse_address))
EMULATION = Parsed("n[:mem]", parse_emulation)
PAIR = Parsed("name=value", parse_pair)
NAME_TYPE = Parsed("name", parse_name)
