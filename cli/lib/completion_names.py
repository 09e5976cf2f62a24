"""Names that the shell completes without asking the network: those of the view shown last."""

import json
import os
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from gpupool.remoting.local.files import cache_dir

NAME_COUNT_MAX = 1000


class ServerNameType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """A server's name; completes from the names seen last."""

    name = "server"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the known server names that begin with ``incomplete``."""
        return [CompletionItem(n) for n in remembered_servers() if n.startswith(incomplete)]


SERVER_NAME = ServerNameType()


def remembered_servers() -> list[str]:
    """Return the server names of the latest view that this user got; never fails."""
    try:
        names: object = json.loads((cache_dir() / "servers.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def remember_servers(names: Iterable[str]) -> None:
    """Keep server names for completion; a cache that cannot be written is no loss."""
    folder = cache_dir()
    fresh = folder / f"servers.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(json.dumps(sorted(names)[:NAME_COUNT_MAX]), encoding="utf-8")
        fresh.replace(folder / "servers.json")
    except OSError:
        return
