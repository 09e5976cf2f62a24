"""Magics for IPython: ``%load_ext gpupool``, then ``%%gpu -p 0.5`` at the top of a cell."""

import shlex
import subprocess
import sys
from typing import Any

from gpupool.remoting.local.files import lent_folder

FOLDER_PREFIX = "gpupool-cell-"


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
    command = [sys.executable, "-m", "gpupool.cli.main", "run", *options, "--"]
    with lent_folder(FOLDER_PREFIX) as folder:
        file = folder / "cell.py"
        file.write_text(cell, encoding="utf-8")
        with subprocess.Popen(
            [*command, sys.executable, "-u", str(file)],
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
    if process.returncode:
        sys.stdout.write(f"gpupool: the cell's program ended with {process.returncode}\n")


def register(shell: Any) -> None:
    """Give an IPython shell the magics."""
    shell.register_magic_function(gpu, "cell", "gpu")
