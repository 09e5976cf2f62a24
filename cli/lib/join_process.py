"""A process of ``gpupool join`` that a command of ours starts, with its token over a pipe.

All users of a machine see the arguments of its processes, so a token is never among them.
"""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO


def start_join(
    argv: Sequence[str],
    token: str | None,
    *,
    env: Mapping[str, str],
    cwd: Path | str,
    errors: IO[str],
    held: int | None = None,
) -> "subprocess.Popen[str]":
    """Start a server in a session of its own; one with a token joins the pool of that token.

    Args:
        argv: the command, without a token.
        token: what the server reads from its standard input; None for a new pool.
        env: its environment.
        cwd: its folder.
        errors: what it says.
        held: a descriptor to inherit, which holds a folder locked for as long as the server lives.
    """
    process = subprocess.Popen(
        [*argv, *(["--token", "-"] if token else [])],
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE if token else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a new pool prints its tokens there
        stderr=errors,
        text=True,
        start_new_session=True,
        pass_fds=() if held is None else (held,),
    )
    if process.stdin is not None and token:
        # The pipe has room for a token. One that has ended says why in its log.
        with suppress(BrokenPipeError):
            process.stdin.write(token)
            process.stdin.close()
    return process
