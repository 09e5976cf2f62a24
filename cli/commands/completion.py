"""``gpupool completion``, and the names that complete without asking the network."""

import json
import os
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from gpupool.cli.lib.paths import cache_dir
from gpupool.pool.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
NAME_COUNT_MAX = 1000

HOW = {
    "bash": 'eval "$(gpupool completion bash)"    in ~/.bashrc',
    "zsh": 'eval "$(gpupool completion zsh)"    in ~/.zshrc',
    "fish": "gpupool completion fish | source    in ~/.config/fish/config.fish",
}


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
    """Return the server names of the last view that this user saw; never fails."""
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


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def command(ctx: click.Context, shell: str | None) -> None:
    r"""Print the completion script of a shell.

    \b
      eval "$(gpupool completion bash)"       in ~/.bashrc
      eval "$(gpupool completion zsh)"        in ~/.zshrc
      gpupool completion fish | source        in ~/.config/fish/config.fish
    """
    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    kind = get_completion_class(chosen) if chosen in SHELLS else None
    if kind is None:
        raise UsageError("which shell?", hint=f"gpupool completion {'|'.join(SHELLS)}")
    root = ctx.find_root().command
    click.echo(kind(root, {}, "gpupool", "_GPUPOOL_COMPLETE").source())
