"""The ``gpupool`` command: the table of commands, and the exit code of each run.

Only click is imported here. A command's module is imported when that command is used, which
keeps ``gpupool --help`` and completion below 100 ms.
"""

import errno
import importlib
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn, cast

import click

from gpupool.cli.lib.output import Invocation, report
from gpupool.pool.errors import ExitCode, GpupoolError, StorageError, UsageError
from gpupool.remoting.local.files import config_files
from gpupool.remoting.local.terminal import say

# Name, place and short help of every command, the most used first. The place is the module below
# cli/commands, and the function in it.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run:run", "Run a program on GPUs of the pool."),
    "alloc": ("hold:alloc", "Hold GPUs for several programs, until they are released."),
    "release": ("hold:release", "Give a held lease back."),
    "emulate": ("emulate:command", "Run a program of CuPy on emulated GPUs, without a pool."),
    "shell": ("run:shell", "Start a shell that has GPUs until it exits."),
    "jupyter": ("jupyter:command", "Install a Jupyter kernel that runs on GPUs of the pool."),
    "status": ("view:status", "Show servers, GPUs, leases and the health of the pool."),
    "top": ("view:top", "Watch the pool live."),
    "health": ("monitoring.health:command", "Show the health findings of the pool."),
    "web": ("monitoring.web", "Show the pool in the browser: live, usage, health."),
    "alerts": ("monitoring.alerts", "Try the alerts that a server sends."),
    "gpus": ("view:gpus", "List every GPU with its free memory."),
    "usage": ("monitoring.usage", "Show GPU-hours by user, class, server and more."),
    "history": ("monitoring.history", "Chart the metrics of GPUs, servers, leases and users."),
    "leases": ("view:leases", "List leases and waiting requests."),
    "join": ("join:command", "Share this machine's GPUs: create a pool, or join one."),
    "leave": ("admin:leave", "Remove a server from the pool for good."),
    "token": ("token", "Create, list and revoke tokens."),
    "login": ("login", "Store a token, so that this user can use the pool."),
    "logout": ("logout", "Forget the stored token."),
    "use": ("logins.use:command", "Show your logins to several pools, and change between them."),
    "whoami": ("logins.whoami:command", "Show your user, role and the end of your login."),
    "policy": ("policy", "Show, check and change the limits of users and classes."),
    "drain": ("admin:drain", "Stop granting on a server or a GPU; what runs goes on."),
    "undrain": ("admin:undrain", "Grant on a drained server or GPU again."),
    "label": ("admin:label", "Set or show the labels of a server."),
    "kill": ("admin:kill", "End a lease now."),
    "suspend": ("admin:suspend", "Suspend a lease and free its GPUs; its program waits."),
    "resume": ("admin:resume", "Let a suspended lease go on."),
    "move": ("moves:move", "Move a lease to other GPUs, or to another server."),
    "clock": ("clock", "Show the pool's time against the servers' clocks, and mend it."),
    "ca": ("ca", "Show the pool's CA, and exchange it for another one."),
    "audit": ("audit", "Show administrative acts, with user and time."),
    "backup": ("backup:backup", "Write policy, tokens, labels and audit to a file."),
    "restore": ("backup:restore", "Restore a backup into a new pool."),
    "door": ("run:door", "Show the functions that the array door covers."),
    "doctor": ("doctor:command", "Check the path from here to the pool."),
    "rejoin": ("rejoin:command", "Make a server that has forgotten something a new member."),
    "recover": ("recover:command", "Go on alone, after most servers were lost for good."),
    "analyze": (
        "monitoring.analyze:command",
        "See how GPUs are used, and how many a pool would need.",
    ),
    "config": ("about:config", "Show every setting and where it comes from."),
    "completion": ("about:completion", "Print the completion script of a shell."),
    "up": ("local.background:up", "Start a pool here in the background, to play with."),
    "down": ("local.background:down", "End the pool that up started."),
    "demo": ("about:demo", "See it all work on this machine, without any GPU."),
    "simulate": ("simulate:command", "Prove the pool's rules under faults, in virtual time."),
    "version": ("about:version", "Print the version."),
    "help": ("about:help_command", "Show the help of a command."),
}

WORDS = {
    **dict.fromkeys(("ps", "queue", "squeue", "jobs", "ls", "list"), "leases"),
    **dict.fromkeys(("nodes", "sinfo", "servers", "describe", "info"), "status"),
    **dict.fromkeys(("submit", "sbatch", "srun", "exec", "launch"), "run"),
    **dict.fromkeys(("salloc", "hold"), "alloc"),
    **dict.fromkeys(("cancel", "scancel", "stop", "end", "rm", "delete"), "kill"),
    **dict.fromkeys(("quota", "quotas", "limits"), "policy"),
    **dict.fromkeys(("cordon", "maintenance"), "drain"),
    **dict.fromkeys(("uncordon", "activate"), "undrain"),
    "nvidia-smi": "gpus",
    "sacct": "usage",
    "sreport": "usage",
    "htop": "top",
    "nvtop": "top",
    "ssh": "shell",
    "bash": "shell",
    "start": "up",
    "init": "join",
    "users": "token",
}
"""Commands by the words that other tools have for them."""

ELSEWHERE = {
    "logs": "a program's output is where it was started",
    **dict.fromkeys(("--gpus", "--gpu", "-g", "-G", "--gres", "--num-gpus"), "here it is -n"),
    **dict.fromkeys(("--nodelist", "--node", "--nodes", "--host"), "here it is --server"),
    **dict.fromkeys(("--constraint", "--selector", "-C", "-l"), "here it is --filter"),
    **dict.fromkeys(("--time", "-t"), 'use "gpupool run -- timeout 1h PROGRAM"'),
    **dict.fromkeys(("--detach", "-d"), 'use "nohup gpupool run -- PROGRAM &", or tmux'),
    **dict.fromkeys(("--ttl", "--lifetime", "--duration"), "here it is --expires"),
    "-V": "here it is --version",
    "--role": "here it is --viewer, --operator or --server; a user's token needs none",
}
"""Hints for other words of other tools."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

EXAMPLES = """\b
Examples:
  gpupool demo                                    see it work, without any GPU
  gpupool join                                    on the first GPU server
  gpupool join --token -                          on every other one; reads a token
  gpupool run -n 2 -p 0.5 -- python train.py      two half GPUs, from anywhere
  gpupool top                                     watch the pool"""


class Commands(click.Group):
    """A group that imports a command when it is used, and reads its settings from files."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name][0].partition(":")
        found = importlib.import_module(f"gpupool.cli.commands.{module}")
        command = cast(click.Command, getattr(found, function or "command"))
        return _finished(command, f"GPUPOOL_{cmd_name}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands from the table above, so that none has to be imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, suggest one for a typo, and give it the settings files' values."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            known = WORDS.get(args[0])
            message = f"No such command {args[0]!r}. Here it is {known!r}." if known else None
            alike = () if known or args[0] in ELSEWHERE else COMMANDS
            raise click.exceptions.NoSuchCommand(args[0], message, alike, ctx)
        found = super().resolve_command(ctx, args)
        if not ctx.resilient_parsing and any(map(os.path.isfile, config_files())):
            from gpupool.cli.lib.settings import default_map

            ctx.default_map = default_map(self, ctx, [args[0]])
        return found


def _finished(command: click.Command, prefix: str) -> click.Command:
    """Return ``command`` with fixed marks in its help, and with environment variables.

    A docstring with a backslash is a raw one, in which click's mark of examples is two characters.
    click makes the variable of an option from its parameter, which may be called otherwise.
    """
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for option in command.params:
        if isinstance(option, click.Option) and option.envvar is None:
            name = max(option.opts, key=len).lstrip("-")
            option.envvar = f"{prefix}_{name}".upper().replace("-", "_")
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            _finished(each, f"{prefix}_{name}")
    return command


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog="Every option can be set by GPUPOOL_<COMMAND>_<OPTION> or in gpupool.toml; see "
    '"gpupool config".',
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "GPUPOOL",
        "max_content_width": 100,
    },
    help=f"One pool of the GPUs of many servers.\n\n{EXAMPLES}",
)
@click.version_option(package_name="gpupool", message="gpupool %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Print the help when no command is given."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; the entry point of the installed program."""
    _open_missing_streams()
    _replace_unencodable()
    words = sys.argv[1:] if args is None else list(args)
    code = run(words)
    if args is None and words[:1] in (["run"], ["shell"]):
        from gpupool.remoting.local.terminal import leave

        leave(code)
    sys.exit(code)


def _open_missing_streams() -> None:
    """Let standard input and outputs that are closed be /dev/null.

    The next file or connection would take the free number, and a program of ours would write to it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number
            os.set_inheritable(null, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _replace_unencodable() -> None:
    """Let characters that an output's encoding lacks be question marks, as in a Latin-1 locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def run(args: list[str]) -> int:
    """Run the command line and return its exit code."""
    invocation = Invocation(command=next((a for a in args if a in COMMANDS), ""))
    code = 0
    try:
        code = _run(args, invocation)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed it, as "| head" does.
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _drop_output()
        return code or _cannot_write(error, invocation)
    return code


def _drop_output() -> None:
    """Send the rest of the output to /dev/null: Python would fail to flush it at its exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _cannot_write(error: OSError, invocation: Invocation) -> int:
    wrong = StorageError("cannot write the output", why=(error.strerror or "").lower())
    report(wrong, as_json=False)
    return _exit_code(wrong, invocation.command)


def _run(args: list[str], invocation: Invocation) -> int:
    try:
        result = cli.main(args, prog_name="gpupool", standalone_mode=False, obj=invocation)
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return ExitCode.USAGE
    except click.UsageError as error:
        # click does not say whose option lacks its value.
        command = f"gpupool {invocation.command}".rstrip()
        context = error.ctx.command_path if error.ctx is not None else command
        message = _without_wild_guesses(error).format_message().rstrip(".")
        what = message[:1].lower() + message[1:]
        # click names an argument as its usage does: '[FILE]', '[LEASE]...'.
        what = re.sub(r"'\[(\w+)\](?:\.\.\.)?'", r"'\1'", what)
        shows = "shows all commands" if _is_of_commands(error) else "shows what can be written"
        hint = _elsewhere(error) or f'"{context} --help" {shows}'
        wrong = UsageError(what, why=_origin(error), hint=hint)
        report(wrong, as_json=invocation.json)
        return wrong.exit_code
    except click.Abort:
        return 128 + signal.SIGINT
    except KeyboardInterrupt:
        from gpupool.remoting.local.terminal import die_of

        die_of(signal.SIGINT)
    except GpupoolError as error:
        report(error, as_json=invocation.json)
        return _exit_code(error, invocation.command)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno not in DISK_ERRORS or error.filename is not None:
            return _internal_error(error, invocation)
        # Files of ours are written with errors of their own; this is what we print.
        return _cannot_write(error, invocation)
    except Exception as error:  # noqa: BLE001  the last line of defence: a sentence, not a trace
        return _internal_error(error, invocation)
    return int(result) if isinstance(result, int) else ExitCode.DONE


def _is_of_commands(error: click.UsageError) -> bool:
    group = error.ctx is not None and isinstance(error.ctx.command, click.Group)
    return group and isinstance(error, click.exceptions.NoSuchCommand)


def _elsewhere(error: click.UsageError) -> str:
    if isinstance(error, click.exceptions.NoSuchOption):
        hint = ELSEWHERE.get(error.option_name, "")
        command = error.ctx.command if error.ctx else None
        known = {each for param in command.params for each in param.opts} if command else set[str]()
        named = set(re.findall(r"(?<!\S)--?[a-z]+", hint))
        # A hint that names an option holds for commands that have it; any other one is about `run`.
        return hint if (named <= known if named else command and command.name == "run") else ""
    if isinstance(error, click.exceptions.NoSuchCommand):
        return ELSEWHERE.get(error.command_name, "")
    return ""


def _without_wild_guesses(error: click.UsageError) -> click.UsageError:
    """Return the error without suggestions that only the dashes and a few letters make alike."""
    if isinstance(error, click.exceptions.NoSuchOption) and error.possibilities:
        from difflib import get_close_matches

        wanted = error.option_name.lstrip("-")
        close = [
            each for each in error.possibilities if get_close_matches(wanted, [each.lstrip("-")])
        ]
        return click.exceptions.NoSuchOption(error.option_name, None, close, error.ctx)
    return error


def _origin(error: click.UsageError) -> str:
    """Return where a wrong value comes from that is not on the command line, else nothing."""
    if not isinstance(error, click.BadParameter) or error.ctx is None or error.param is None:
        return ""
    match error.ctx.get_parameter_source(error.param.name or ""):
        case click.core.ParameterSource.ENVIRONMENT:
            return f"it comes from ${error.param.envvar}"
        case click.core.ParameterSource.DEFAULT_MAP:
            files = ", ".join(str(path) for path in config_files() if os.path.isfile(path))
            return f"it comes from a settings file: {files}"
        case _:
            return ""


def _exit_code(error: GpupoolError, command: str) -> int:
    """Return the exit code of ``error``; under ``run`` ours must differ from any program's."""
    passed = (ExitCode.USAGE, ExitCode.NOT_NOW, ExitCode.NOT_FOUND, ExitCode.NOT_EXECUTABLE)
    if command in ("run", "shell", "emulate") and error.exit_code not in passed:
        return ExitCode.RUN_FAILED
    return error.exit_code


def _internal_error(error: Exception, invocation: Invocation) -> int:
    if invocation.verbose >= 2:
        say("".join(traceback.format_exception(error)).rstrip())
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    text = " ".join(str(cause).split())[:300]
    failure = GpupoolError(
        "something went wrong inside gpupool",
        why=f"{type(cause).__name__}: {text}",
        hint="-vv shows where; please report it",
    )
    report(failure, as_json=invocation.json)
    return _exit_code(failure, invocation.command)


if __name__ == "__main__":
    main()
