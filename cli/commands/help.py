"""``gpupool help``: the help of a command."""

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command: "gpupool help run"."""
    assert ctx.parent is not None
    context = ctx.parent
    for name in names:
        group = context.command
        found = group.get_command(context, name) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(f"No such command {name!r}", ctx)
        context = found.make_context(name, [], parent=context, resilient_parsing=True)
    click.echo(context.get_help())
