"""Commands that run programs on GPUs: ``run`` and ``shell``; ``door`` shows the array door."""

import json
import os
import pwd
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from gpupool.cli.lib.options import (
    PAIR,
    Parsed,
    forbid_requests,
    json_option,
    pool_options,
    request_options,
)
from gpupool.cli.lib.output import invocation, print_json
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.model.ids import LeaseId, lease_name
from gpupool.pool.values import parse_lease
from gpupool.remoting.program.door_choice import dropin_dir
from gpupool.remoting.program.lease_source import Wanted

MARK = "(gpu $GPUPOOL_LEASE) "

BASH = f"""
[[ -f ~/.bashrc ]] && . ~/.bashrc
_gpupool_mark() {{ case $PS1 in "(gpu "*) ;; *) PS1="{MARK}$PS1" ;; esac; }}
PROMPT_COMMAND="${{PROMPT_COMMAND:+$PROMPT_COMMAND; }}_gpupool_mark"
"""
"""The mark is set before each prompt, because themes rebuild the prompt each time."""

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


@click.command(
    context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] [--]"
)
@request_options
@click.option(
    "--lease",
    type=Parsed("lease", parse_lease),
    help='Use this lease, which "gpupool alloc" holds, and ask for nothing.',
)
@click.option(
    "--lazy", is_flag=True, help="Ask for GPUs when the program first uses one; wait there."
)
@click.option(
    "--door",
    type=click.Choice(["auto", "arrays", "cuda"]),
    default="auto",
    show_default=True,
    help="How the program reaches its GPUs; arrays: a drop-in cupy, even where CuPy is installed; "
    "cuda: any CUDA program.",
)
@click.option("--env", type=PAIR, multiple=True, help="Variable for the program; repeatable.")
@click.option("--dry-run", is_flag=True, help="Show the choice of GPUs, and run nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors alone.")
@pool_options
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def run(
    ctx: click.Context,
    wanted: Wanted,
    credentials: str | None,
    program: tuple[str, ...],
    lease: int | None,
    lazy: bool,
    door: str,
    env: tuple[tuple[str, str], ...],
    dry_run: bool,
    quiet: bool,
) -> int:
    r"""Run PROGRAM on GPUs of the pool, for as long as it runs.

    \b
      gpupool run -- python train.py                  one whole GPU
      gpupool run -n 2 -p 0.5 -- python train.py      half of each of two GPUs
      gpupool run -m 20G --wait 10m -- python t.py    20 GiB of one; wait at most 10 minutes
      gpupool run --filter 'gpu.name=H200,H100' -- python train.py
      gpupool run --lease 7f3a -- python train.py     on GPUs held by "gpupool alloc"

    Everything behind PROGRAM belongs to it. stdin, stdout and the terminal are the program's own,
    signals reach it, and its exit code is passed on. 75: no GPU was free, and --no-wait or --wait
    applied; 125: gpupool failed; 126: PROGRAM cannot be executed; 127: it was not found.
    """
    from gpupool.cli.lib.output import run_async
    from gpupool.remoting.program.program_run import RunOptions, dry_run_of, run_program

    options = RunOptions(
        arguments=program,
        wanted=wanted,
        door=door,
        env=env,
        quiet=quiet,
        verbose=invocation().verbose,
        credentials=credentials,
        lease=lease_name(LeaseId(lease)) if lease else "",
        lazy=lazy and not lease,
    )
    if lease:
        forbid_requests(ctx, "--lease")
    if dry_run:
        if lease:
            raise UsageError("--dry-run is for a request", hint="leave out --lease")
        return run_async(partial(dry_run_of, options, click.echo))
    ending = run_async(partial(run_program, options))
    if ending.signal:
        from gpupool.remoting.local.terminal import die_of

        die_of(ending.signal)
    return ending.code


@click.command()
@request_options
@click.option(
    "--door",
    type=click.Choice(["auto", "arrays", "cuda"]),
    default="auto",
    show_default=True,
    help='How programs reach the GPUs; see "gpupool help run".',
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors alone.")
@pool_options
def shell(wanted: Wanted, credentials: str | None, door: str, quiet: bool) -> int:
    r"""Start a shell, yours by $SHELL, that has GPUs until it exits.

    \b
      gpupool shell                    one whole GPU
      gpupool shell -n 2 -p 0.5        half of each of two GPUs

    Every program that is started in it uses them; they share the memory. The prompt shows the
    lease, and so does $GPUPOOL_LEASE.
    """
    from gpupool.cli.lib.output import run_async
    from gpupool.remoting.program.program_run import RunOptions, run_program

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
        from gpupool.remoting.local.terminal import die_of

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
    from gpupool.remoting.local.files import private_dir

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


@click.command()
@click.option("--missing", is_flag=True, help="List what CuPy has and the drop-in lacks.")
@json_option
def door(missing: bool, as_json: bool) -> None:
    """Show the folder of the drop-in cupy, or with --missing the CuPy API that it lacks.

    These are names, and after them modules, parameters of functions and types of ufuncs.
    """
    folder = dropin_dir()
    if not (folder / "cupy").is_dir():
        raise GpupoolError("this installation has no drop-in cupy", why=f"no {folder / 'cupy'}")
    if not missing:
        if as_json:
            print_json(door="arrays", path=str(folder))
        else:
            click.echo(folder)
        return
    found = json.loads((folder.parent / "missing_names.json").read_text(encoding="utf-8"))
    if as_json:
        print_json(**found)
        return
    for name in (*found["missing"], *found["gaps"]):
        click.echo(name)
