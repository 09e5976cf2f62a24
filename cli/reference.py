"""docs/cli.md, made of the help texts: ``python -m gpupool.cli.reference > docs/cli.md``."""

import os
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


def reference() -> str:
    """Return docs/cli.md as it must be."""
    rows = [f"| {int(code)} | {text} |" for code, text in CODES.items()]
    rows.append("| 128 + n | ended by signal n, such as 130 for Ctrl-C |")
    parts = [HEAD + "\n".join(rows) + "\n"]
    root = _context(cli, "gpupool", None)
    parts.append(_section("gpupool", root))
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        parts.extend(_sections(command, name, root))
    return "\n".join(parts)


def _sections(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = _context(command, name, parent)
    yield _section(context.command_path, context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            nested = command.get_command(context, child)
            assert nested is not None
            yield from _sections(nested, child, context)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **{k: v for k, v in command.context_settings.items() if k == "help_option_names"},
    )


def _section(title: str, context: click.Context) -> str:
    text = "\n".join(line.rstrip() for line in context.get_help().splitlines())
    return f"## {title}\n\n```\n{text}\n```\n"


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    click.echo(reference(), nl=False)
