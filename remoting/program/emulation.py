"""Emulated GPUs for one program of this machine, without a pool, a login or a server that stays.

``start`` starts the server of the sessions (``remoting/worker/emulated_sessions.py``), and returns
the environment in which the program and all of its children find it, and the drop-in ``cupy``. The
server ends with this process, which becomes the program, or is the test run itself.
"""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.host.kernel_cache import keep_newest
from gpupool.remoting.host.spawn import clean_environment, installation_paths, private_paths
from gpupool.remoting.local.files import cache_dir, make_private_dir
from gpupool.remoting.program.door_choice import (
    NotExecutableError,
    find_program,
    program_environment,
    with_tools,
)

PACKAGES = {"numpy": "NumPy", "scipy": "SciPy"}
STRICT = "GPUPOOL_STRICT"
AGENT = "GPUPOOL_AGENT"

SERVER = """\
import os, shutil, sys
if os.fork():
    os._exit(0)
if os.fork():
    os.wait()
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    os._exit(0)
from gpupool.remoting.worker.emulated_sessions import main
main(sys.argv[1])
"""
"""The program has no child that it does not know, and the confined server need not remove files."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """The GPUs that a program gets."""

    count: int
    memory: int  # bytes of each
    strict: bool = False
    verbose: int = 0


def check_packages() -> None:
    """Check that this Python has the packages by which emulated GPUs compute.

    Raises:
        GpupoolError: when it lacks a package.
    """
    if sys.platform != "linux":
        raise GpupoolError("no GPU can be emulated", why="it needs Linux")
    missing = [name for each, name in PACKAGES.items() if importlib.util.find_spec(each) is None]
    if missing:
        why = f"{sys.executable} has no {' and no '.join(missing)}"
        hint = f"{sys.executable} -m pip install 'gpupool[emulate]'"
        raise GpupoolError("no GPU can be emulated", why=why, hint=hint)


def start(emulation: Emulation, environment: Mapping[str, str]) -> dict[str, str]:
    """Start a server that ends with this process; return the environment of its programs.

    Raises:
        GpupoolError: when this Python lacks a package.
    """
    check_packages()
    assert sys.platform == "linux"
    folder, held = make_private_dir()
    try:
        kernels = cache_dir() / "kernels"
        kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_newest(kernels)
    except (OSError, RuntimeError):  # a home that is read-only, or none
        kernels = folder
    path = folder / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
        program = os.pidfd_open(os.getpid())
        settings = {
            "listener": listener.fileno(),
            "program": program,
            "folder": str(folder),
            "kernels": str(kernels),
            "readable": [str(each) for each in installation_paths()],
            "unreadable": [str(each) for each in private_paths()],
            "count": emulation.count,
            "memory": emulation.memory,
        }
        strict = {STRICT: "1"} if emulation.strict else {}
        flags = ("-P", "-W", "ignore::DeprecationWarning")  # of forks where BLAS has threads
        subprocess.run(
            [sys.executable, *flags, "-c", SERVER, json.dumps(settings), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if emulation.verbose else subprocess.DEVNULL,
            cwd="/",
            env=clean_environment(os.environ, folder) | strict,
            pass_fds=(listener.fileno(), held, program),
            start_new_session=True,
            check=True,
        )
    os.close(held)
    os.close(program)
    verbose = {"GPUPOOL_VERBOSE": str(emulation.verbose)} if emulation.verbose else {}
    extra = tuple((verbose | strict).items())
    return program_environment(
        environment, door="arrays", agent=str(path), lease="", servers=(), extra=extra
    )


def become(emulation: Emulation, arguments: Sequence[str]) -> NoReturn:
    """Start a server, and become the program: signals, terminal and exit code are its own.

    Raises:
        GpupoolError: when the program or a package is missing.
    """
    program = find_program(arguments[0], with_tools(os.environ.get("PATH", os.defpath)))
    environment = start(emulation, os.environ)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python has changed them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, list(arguments), environment)  # noqa: S606 - it is no shell's line
    except OSError as error:
        raise NotExecutableError(f"cannot run {arguments[0]!r}", why=str(error.strerror)) from error
