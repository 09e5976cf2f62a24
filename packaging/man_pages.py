"""Write man pages and completions, made of the help texts: ``man_pages.py FOLDER``.

One page for each command, because ``man gpupool-run`` is what people try first.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from reference import CODES

from gpupool.cli.main import COMMANDS, cli

FILES = {
    "gpupool.toml": "settings of the current folder",
    "~/.config/gpupool/config.toml": "settings of the user",
    "/etc/gpupool/config.toml": "settings of the machine",
    "~/.config/gpupool/credentials.json": "the login of the user",
    "/var/lib/gpupool": "identity, journal and snapshots of a server that systemd runs",
}
SHELLS = {
    "bash": "bash-completion/completions/gpupool",
    "zsh": "zsh/site-functions/_gpupool",
    "fish": "fish/vendor_completions.d/gpupool.fish",
}


def main() -> None:
    """Write ``share/man/man1`` and the shells' folders below the folder."""
    share = Path(sys.argv[1])
    pages = share / "man" / "man1"
    pages.mkdir(parents=True, exist_ok=True)
    root = click.Context(cli, info_name="gpupool")
    (pages / "gpupool.1").write_text(page(cli, "gpupool", root), encoding="utf-8")
    for name in COMMANDS:
        if command := cli.get_command(root, name):
            context = click.Context(command, info_name=name, parent=root)
            written = page(command, f"gpupool-{name}", context)
            (pages / f"gpupool-{name}.1").write_text(written, encoding="utf-8")
    for shell, path in SHELLS.items():
        argv = [sys.executable, "-m", "gpupool.cli.main", "completion", shell]
        script = subprocess.run(argv, check=True, capture_output=True).stdout
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_bytes(script)


def page(command: click.Command, name: str, context: click.Context) -> str:
    """Return the man page of one command, with its subcommands in it."""
    when = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
    short = COMMANDS[context.info_name or ""][1] if context.parent else "one pool of GPUs"
    lines = [
        f'.TH "{name.upper()}" "1" "{when}" "gpupool" "gpupool"',
        *(".SH NAME", rf"{name} \- {escaped(short.rstrip('.'))}"),
        *(".SH SYNOPSIS", escaped(usage(command, context))),
        *(".SH DESCRIPTION", *paragraphs(command.help or "")),
    ]
    if records := options(command, context):
        lines += [".SH OPTIONS", *tagged(records)]
    if isinstance(command, click.Group):
        lines += [".SH COMMANDS", *subcommands(command, context)]
    lines += [".SH EXIT STATUS", *tagged((str(int(code)), text) for code, text in CODES.items())]
    lines += [".SH FILES", *tagged(FILES.items())]
    if context.parent:
        lines += [".SH SEE ALSO", ".BR gpupool (1)"]
    return "\n".join(lines) + "\n"


def subcommands(group: click.Group, context: click.Context) -> Iterator[str]:
    """Yield a page's lines about the commands of a group."""
    for name in group.list_commands(context):
        if context.parent is None:
            yield from tagged([(f"gpupool-{name}(1)", COMMANDS[name][1])])
        elif child := group.get_command(context, name):
            inner = click.Context(child, info_name=name, parent=context)
            yield f'.SS "{escaped(usage(child, inner))}"'
            yield from paragraphs(child.help or "")
            yield from tagged(options(child, inner))


def usage(command: click.Command, context: click.Context) -> str:
    """Return the line after "Usage:"."""
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """Return the options with their texts."""
    found = (each.get_help_record(context) for each in command.get_params(context))
    return [record for record in found if record is not None]


def tagged(records: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield paragraphs with a hanging tag."""
    for tag, text in records:
        yield from (".TP", rf"\fB{escaped(tag)}\fR", escaped(" ".join(text.split())))


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; those that click marks keep their lines."""
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.lstrip().startswith("\b"):
            lines = part.strip().removeprefix("\b").strip("\n").splitlines()
            yield from (".PP", ".nf", *(escaped(line) for line in lines), ".fi")
        else:
            yield from (".PP", escaped(" ".join(part.split())))


def escaped(text: str) -> str:
    """Return text that roff prints as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    main()
