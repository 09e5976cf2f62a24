"""docs/cli.md, made of the help texts: ``python -m gpupool.cli.reference > docs/cli.md``."""

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
    parts = [HEAD + "\n".join(rows) + "\n", _section(root, []), SHARED + _listed(shared)]
    parts += [_section(context, shared) for context in commands]
    return "\n".join(parts)


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


def _listed(shared: list[Record]) -> str:
    formatter = click.HelpFormatter(width=WIDTH, max_width=WIDTH)
    with formatter.indentation():
        formatter.write_dl(shared)
    return f"\n```\n{_trimmed(formatter.getvalue())}\n```\n"


def _section(context: click.Context, shared: list[Record]) -> str:
    """Return the help of a command; what the page says elsewhere is named and not repeated."""
    has = [record for record in _records(context) if record in shared]
    text = _trimmed(_help_without(context, has))
    if context.parent is not None:  # its commands follow
        text = text.partition("\n\nCommands:\n")[0]
    names = [f"`{names.split()[0].rstrip(',')}`" for names, _ in has if "--help" not in names]
    also = f"\nAlso: {', '.join(names)}.\n" if names else ""
    return f"## {context.command_path}\n\n```\n{text}\n```\n{also}"


def _help_without(context: click.Context, records: list[Record]) -> str:
    """Return a help text without some options, which are shown again afterwards."""
    parameters = [
        each
        for each in context.command.get_params(context)
        if isinstance(each, click.Option) and each.get_help_record(context) in records
    ]
    for each in parameters:
        each.hidden = True
    try:
        return context.get_help()
    finally:
        for each in parameters:
            each.hidden = False


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    click.echo(reference(), nl=False)
