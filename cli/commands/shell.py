"""``gpupool shell``: a shell that has GPUs until it exits."""

import os
import pwd
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.output import invocation
from gpupool.cli.run.request_options import Wanted, request_options
from gpupool.pool.errors import UsageError

MARK = "(gpu $GPUPOOL_LEASE) "

BASH = f"""
[[ -f ~/.bashrc ]] && . ~/.bashrc
_gpupool_mark() {{ case $PS1 in "(gpu "*) ;; *) PS1="{MARK}$PS1" ;; esac; }}
PROMPT_COMMAND="${{PROMPT_COMMAND:+$PROMPT_COMMAND; }}_gpupool_mark"
"""
"""Before each prompt, because themes make the prompt anew each time."""

ZSH = f"""
ZDOTDIR=${{GPUPOOL_ZDOTDIR:-$HOME}}
unset GPUPOOL_ZDOTDIR
_gpupool_mark() {{ [[ $PROMPT == "(gpu "* ]] || PROMPT="{MARK}$PROMPT" }}
autoload -Uz add-zsh-hook && add-zsh-hook precmd _gpupool_mark
[[ -f $ZDOTDIR/.zshenv ]] && source $ZDOTDIR/.zshenv
"""

FISH = (
    "if functions -q fish_prompt; functions -c fish_prompt _gpupool_prompt; "
    "else; function _gpupool_prompt; echo -n '> '; end; end; "
    'function fish_prompt; echo -n "(gpu $GPUPOOL_LEASE) "; _gpupool_prompt; end'
)


@click.command()
@request_options
@click.option(
    "--door",
    type=click.Choice(["auto", "arrays", "cuda"]),
    default="auto",
    show_default=True,
    help='How programs reach the GPUs; see "gpupool help run".',
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of our own but errors.")
@pool_options
def command(wanted: Wanted, credentials: str | None, door: str, quiet: bool) -> int:
    r"""Start a shell, yours by $SHELL, that has GPUs until it exits.

    \b
      gpupool shell                    one whole GPU
      gpupool shell -n 2 -p 0.5        half of each of two GPUs

    Every program that is started in it uses them; they share the memory. The prompt shows the
    lease, and so does $GPUPOOL_LEASE.
    """
    from gpupool.cli.lib.connect import run_async
    from gpupool.cli.run.program_run import RunOptions, run_program

    if os.environ.get("GPUPOOL_AGENT") and os.environ.get("GPUPOOL_LEASE"):
        raise UsageError(
            f"this shell has GPUs already, by lease {os.environ['GPUPOOL_LEASE']}",
            hint='leave it first, or give further ones to one program with "gpupool run"',
        )
    with marked_shell(user_shell()) as (arguments, env):
        options = RunOptions(
            arguments=tuple(arguments),
            wanted=wanted,
            door=door,
            env=tuple(env.items()),
            quiet=quiet,
            verbose=invocation().verbose,
            credentials=credentials,
            death_signal=signal.SIGHUP,  # interactive shells ignore SIGTERM
        )
        ending = run_async(partial(run_program, options))
    if ending.signal:
        from gpupool.cli.lib.exits import die_of

        die_of(ending.signal)
    return ending.code


def user_shell() -> str:
    """Return the user's shell: $SHELL, else the account's, else a POSIX one."""
    for candidate in (os.environ.get("SHELL", ""), _account_shell(), "/bin/sh"):
        if candidate and shutil.which(candidate):
            return candidate
    raise UsageError("no shell was found", hint="set SHELL")


def _account_shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return ""


@contextmanager
def marked_shell(shell: str) -> Generator[tuple[list[str], dict[str, str]]]:
    """Yield the arguments and variables with which ``shell`` shows the lease in its prompt.

    The user's own start-up files are read as ever. Shells that are not known start unmarked.
    """
    from gpupool.cli.run.agent import private_dir

    name = os.path.basename(shell)
    with private_dir() as folder:
        if name == "bash":
            (folder / "bashrc").write_text(BASH)
            yield [shell, "--rcfile", str(folder / "bashrc")], {}
        elif name == "zsh":
            (folder / ".zshenv").write_text(ZSH)
            own = os.environ.get("ZDOTDIR") or str(Path.home())
            yield [shell], {"ZDOTDIR": str(folder), "GPUPOOL_ZDOTDIR": own}
        elif name == "fish":
            yield [shell, "--init-command", FISH], {}
        elif name in ("sh", "dash", "ash", "ksh"):
            yield [shell], {"PS1": f"{MARK}$ "}
        else:
            yield [shell], {}
