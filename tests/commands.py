"""Starts commands of ``gpupool`` as users do, each as a separate process.

A start of Python that imports what a command needs takes three times as long as most commands do,
and tests start hundreds of them. So one process imports it all, and each command is a fork of it
(``command_forks.py``), which is otherwise as a new process is: its words, environment, folder, open
files and signals are its own. It is a child of the tests' process.

A command starts as any program does where a fork would not be the same: with variables of its own
for Python, the loader or the locale, below a terminal of its own, or when coverage is measured.
Those tests are also what notices a command that imports too little.
"""

import atexit
import contextlib
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

GPUPOOL = [sys.executable, "-m", "gpupool.cli.main"]
SOURCES = str(Path(__file__).parents[1] / "src")
FORKS = Path(__file__).with_name("command_forks.py")
AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "COVERAGE_")
"""Names of variables that only a new process reads begin with these."""

PR_SET_CHILD_SUBREAPER = 36
FILE = int | IO[Any] | None


class Forks:
    """The process that has imported all, once there is one."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()  # of a request and its answer
        self._environment = dict(os.environ)

    def can(self, words: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether a fork is the same as a new process."""
        if sys.platform != "linux" or list(words[: len(GPUPOOL)]) != GPUPOOL:
            return False
        wanted, has = _at_start(environment), _at_start(self._environment)
        measured = any(name.startswith("COVERAGE_") for name in {*wanted, *has})
        return not measured and wanted == has

    def fork(self, request: dict[str, object], files: list[int]) -> int:
        """Fork a process of that request, and return its number."""
        with self._lock:
            if self._sock is None:
                self._sock = self._started()
            prctl = ctypes.CDLL(None, use_errno=True).prctl
            # What the command's own processes leave behind is adopted as always, by process 1.
            assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
            try:
                socket.send_fds(self._sock, [json.dumps(request).encode()], files)
                return int(self._sock.recv(32))
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, str(FORKS), str(theirs.fileno())],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that only a new process reads; the fork's source path is left out."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_START) and (name, value) != ("PYTHONPATH", SOURCES)
    }


FORKS_OF_THIS = Forks()


class Command(subprocess.Popen[Any]):
    """A ``Popen`` with a fork of the preloaded process."""

    def _execute_child(self, *given: Any) -> None:
        begin = getattr(subprocess.Popen, "_execute_child")  # noqa: B009
        values = inspect.signature(begin).bind(self, *given).arguments
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        with contextlib.ExitStack() as stack:
            close = getattr(self, "_close_pipe_fds")  # noqa: B009
            stack.callback(close, *(values[name] for name in pipes))
            files = [values[name] for name in ("p2cread", "c2pwrite", "errwrite")]
            request: dict[str, object] = {
                "words": list(values["args"])[len(GPUPOOL) :],
                "environment": dict(values["env"]),
                "folder": str(values["cwd"] or os.getcwd()),
                "session": bool(values["start_new_session"]),
            }
            asked = [at if file == -1 else file for at, file in enumerate(files)]
            self.pid = FORKS_OF_THIS.fork(request, asked)
            self._child_created = True


def start(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: FILE = subprocess.DEVNULL,
    stdout: FILE = subprocess.PIPE,
    stderr: FILE = subprocess.PIPE,
    text: bool = True,
    start_new_session: bool = False,
) -> "subprocess.Popen[Any]":
    """Start a command of gpupool; the words begin with those of ``GPUPOOL``."""
    kind = Command if FORKS_OF_THIS.can(words, env) else subprocess.Popen[Any]
    return kind(
        list(words),
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=text,
        start_new_session=start_new_session,
    )


def finish(
    words: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end without a terminal, and return its output."""
    with start(words, env=env, cwd=cwd) as process:
        out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)
