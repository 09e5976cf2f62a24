"""Commands about this program: ``help``, ``version``, ``completion``, ``config`` and ``demo``."""

import os

import click
from click.shell_completion import get_completion_class

from gpupool import __version__
from gpupool.cli.lib.options import json_option, verbose_option
from gpupool.cli.lib.output import print_json
from gpupool.cli.lib.settings import current_settings, value_text
from gpupool.pool.errors import UsageError
from gpupool.pool.model.plain import to_plain

SHELLS = ("bash", "zsh", "fish")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command: "gpupool help run"."""
    assert ctx.parent is not None
    context = ctx.parent
    for name in names:
        group = context.command
        found = group.get_command(context, name) if isinstance(group, click.Group) else None
        if found is None:
            known = group.list_commands(context) if isinstance(group, click.Group) else []
            raise click.exceptions.NoSuchCommand(name, possibilities=known, ctx=context)
        context = found.make_context(name, [], parent=context, resilient_parsing=True)
    click.echo(context.get_help())


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json(version=__version__)
    else:
        click.echo(f"gpupool {__version__}")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
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


@click.command()
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    r"""Show every setting, its value, and where the value comes from.

    The order is: flag, environment, ./gpupool.toml, $XDG_CONFIG_HOME/gpupool/config.toml,
    /etc/gpupool/config.toml, default. A file has one table per command, such as

    \b
      [run]
      wait = "10m"
    """
    parent = ctx.parent
    assert parent is not None and isinstance(parent.command, click.Group)
    settings = list(current_settings(parent.command, parent))
    if as_json:
        print_json(settings=[to_plain(each) for each in settings])
        return
    width = max(len(each.name) for each in settings)
    texts = [value_text(each.name, each.value) for each in settings]
    value_width = min(40, max(len(text) for text in texts))
    for each, text in zip(settings, texts, strict=True):
        click.echo(f"{each.name:{width}}  {text:{value_width}}  {each.origin}")


@click.command()
@verbose_option
def demo() -> int:
    """See it all work on this machine, without any GPU, in half a minute.

    Three servers with emulated GPUs start on loopback, with everything they write in a temporary
    folder. A program runs on two half GPUs, the leading server is killed, and the same program
    runs again. At the end everything is removed; "gpupool up" starts a pool to play with.
    """
    from gpupool.cli.lib.demonstration import Demonstration
    from gpupool.remoting.daemon.join_options import need_numpy

    need_numpy()
    return Demonstration().run()
