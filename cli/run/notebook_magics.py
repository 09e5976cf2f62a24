"""Magics for IPython: ``%load_ext gpupool``, then ``%%gpu -p 0.5`` at the top of a cell."""

import os
import shlex
import subprocess
import sys
import tempfile
from typing import Any


def gpu(line: str, cell: str) -> None:
    """Run a cell as a program on GPUs of the pool; ``line`` has options of ``gpupool run``.

    The program is a process of its own, with the Python of this notebook. It shares no variables
    with the notebook; its output is in the cell.
    """
    try:
        options = shlex.split(line)
    except ValueError as error:
        sys.stdout.write(f"gpupool: {line!r} cannot be read: {str(error).lower()}\n")
        return
    with tempfile.NamedTemporaryFile("w", suffix=".py", prefix="cell-", delete=False) as file:
        file.write(cell)
    command = [sys.executable, "-m", "gpupool.cli.main", "run", *options, "--"]
    try:
        with subprocess.Popen(
            [*command, sys.executable, "-u", file.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for text in process.stdout:
                sys.stdout.write(text)
                sys.stdout.flush()
    finally:
        os.unlink(file.name)
    if process.returncode:
        sys.stdout.write(f"gpupool: the cell's program ended with {process.returncode}\n")


def register(shell: Any) -> None:
    """Give an IPython shell the magics."""
    shell.register_magic_function(gpu, "cell", "gpu")
