"""docs/cli.md, made of the help texts: ``reference.py > docs/cli.md``."""

import os
from collections import Counter
from collections.abc import Iterator

import click

from gpupool.cli.main import COMMANDS, cli
from gpupool.pool.errors import ExitCode

WIDTH = 100
HEAD = """\
# The command line

This file is generated from the help texts (`make docs`), and checked by `tests/test_docs.py`.

Settings come from, the strongest first: flag, `GPUPOOL_<COMMAND>_<OPTION>`, `./gpupool.toml`,
`$XDG_CONFIG_HOME/gpupool/config.toml`, `/etc/gpupool/config.toml`, default. `gpupool config` shows
each with where it comes from. Messages of ours go to stderr; stdout is for results, and under
`run` it is the program's alone. `--json` prints one object with `"schema": 1`, to which fields are
only ever added; an error is `{"error": {"code", "message", "hint"}}`.

| exit code | meaning |
| --- | --- |
"""
CODES = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed, with the reason on stderr",
    ExitCode.USAGE: "wrong usage",
    ExitCode.UNHEALTHY: "`status`, `doctor`: the pool answers but is not healthy",
    ExitCode.NOT_NOW: "`run`: no GPU was free, and it was not to wait (any longer)",
    ExitCode.RUN_FAILED: "`run`: gpupool failed, not the program",
    ExitCode.NOT_EXECUTABLE: "`run`: the program cannot be executed",
    ExitCode.NOT_FOUND: "`run`: there is no such program",
}


SHARED_FROM = 4
"""Commands that have an option with the same words; from so many on, the page has it once."""
SHARED = """\
## Options of many commands

Every command has `-h`; each command below names its others.

"""

Record = tuple[str, str]
"""Names of an option, and its text."""


def reference() -> str:
    """Return docs/cli.md as it must be."""
    rows = [f"| {int(code)} | {text} |" for code, text in CODES.items()]
    rows.append("| 128 + n | ended by signal n, such as 130 for Ctrl-C |")
    root = _context(cli, "gpupool", None)
    commands = list(_commands(root))
    counts = Counter(record for context in commands for record in _records(context))
    shared = [record for record, count in counts.items() if count >= SHARED_FROM]
    listed = root.make_formatter()
    with listed.indentation():
        listed.write_dl(shared)
    parts = [HEAD + "\n".join(rows) + "\n", _section(root, []), SHARED + _block(listed)]
    return "\n".join((*parts, *(_section(context, shared) for context in commands)))


def _commands(above: click.Context) -> Iterator[click.Context]:
    """Yield a context for each command below another one, in the order of the help texts."""
    group = above.command
    if isinstance(group, click.Group):
        for name in COMMANDS if above.parent is None else group.list_commands(above):
            command = group.get_command(above, name)
            assert command is not None
            context = _context(command, name, above)
            yield context
            yield from _commands(context)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **{k: v for k, v in command.context_settings.items() if k == "help_option_names"},
    )


def _records(context: click.Context) -> Iterator[Record]:
    """Yield the options of a command that its help shows."""
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record and isinstance(parameter, click.Option):
            yield record


def _section(context: click.Context, shared: list[Record]) -> str:
    """Return the help of a command; options that the page has above are named alone."""
    command, formatter = context.command, context.make_formatter()
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    records = list(_records(context))
    if own := [record for record in records if record not in shared]:
        with formatter.section("Options"):
            formatter.write_dl(own)
    if isinstance(command, click.Group) and context.parent is None:  # those of others follow
        command.format_commands(context, formatter)
    command.format_epilog(context, formatter)
    others = [names for names, text in records if (names, text) in shared and "--help" not in names]
    also = ", ".join(f"`{names.split()[0].rstrip(',')}`" for names in others)
    return f"## {context.command_path}\n\n{_block(formatter)}" + (
        f"\nAlso: {also}.\n" if also else ""
    )


def _block(formatter: click.HelpFormatter) -> str:
    lines = (line.rstrip() for line in formatter.getvalue().rstrip().splitlines())
    return "```\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    click.echo(reference(), nl=False)
