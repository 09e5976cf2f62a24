"""The demonstration behind ``gpupool demo``: real servers in processes, and ordinary commands."""

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
import trio

from gpupool.cli.lib.background_pool import BackgroundPool
from gpupool.cli.lib.output import run_async
from gpupool.pool.errors import GpupoolError
from gpupool.pool.view import PoolView
from gpupool.remoting.local.files import make_folder, program
from gpupool.remoting.local.logins import connected

SERVERS = 3
START_S = 20.0
STEP_S = 60.0
EMULATE = "2:8G"
FOLDER_PREFIX = "gpupool-demo-"


class Demonstration:
    """Runs the steps of the demonstration, and prints each."""

    def __init__(self) -> None:
        self._color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._folder, self._held = make_folder(Path(tempfile.gettempdir()), FOLDER_PREFIX)
        self._folder.chmod(0o711)  # workers have users of their own, and pass through here
        self._step = 0
        self._env = self._environment()
        self._pool = BackgroundPool(self._folder, "demo", env=self._env, held=self._held)

    def run(self) -> int:
        """Run the whole story; return the exit code."""
        started = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)
        try:
            self._tell_story()
            took = time.monotonic() - started
            self._say(f"\nThat was all, in {took:.0f} s. On real machines it is the same commands;")
            self._say("leave out --emulate, and the GPUs are real. To play with a pool like it,")
            self._say("and to look at it in the browser:")
            self._show(f"{program()} up")
            self._show(f"{program()} web")
            self._say("On a machine with GPUs, this creates a pool of them:")
            self._show(f"{program()} join")
            return 0
        finally:
            # A second one would leave the servers' files: this takes a few seconds at most.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            self._clean_up()

    def _tell_story(self) -> None:
        self._head("Start a pool: three servers, each with two emulated GPUs of 8 GiB")
        self._say("A server of a pool is one process. The first creates the pool:")
        self._show(f"gpupool join --emulate {EMULATE}")
        self._say("It makes a token, which lets further servers in. It is read from stdin:")
        self._show(f"echo gpupool-... | gpupool join --emulate {EMULATE} --token -")
        arguments = ["--emulate", EMULATE]
        self._pool.start(SERVERS, arguments, lambda login: run_async(partial(_view_of, login)))
        run_async(self._wait_for_votes)
        self._say("Creating a pool logs its user in. The pool now:")
        self._command("status")

        self._head("Run a program on two half GPUs")
        example = self._program()
        self._say(f"{example.name} is plain CuPy, and knows nothing of gpupool. Its import of cupy")
        self._say("finds the drop-in, which needs no CUDA, and the arrays live on the server:")
        # On a GPU server CuPy itself may be installed, and would use that server's own GPU.
        door = ["--door", "arrays"] if importlib.util.find_spec("cupy") else []
        run = ["run", "-n", "2", "-p", "0.5", *door, "--", "python", str(example)]
        self._command(*run)

        self._head("Kill the leader, without a warning")
        took_s = run_async(self._lose_the_leader)
        self._say(f"The others have a new leader after {took_s * 1000:.0f} ms.")
        self._say("The same program again:")
        self._command(*run)
        self._say("The pool now (exit code 3 says that a server is missing):")
        self._command("status", expected=(0, 3))

    # --- telling -------------------------------------------------------------------------------

    def _head(self, text: str) -> None:
        self._step += 1
        click.echo()
        click.echo(self._style(f"{self._step}. {text}", bold=True))

    def _say(self, text: str) -> None:
        click.echo(text)

    def _show(self, command: str) -> None:
        click.echo(self._style(f"  $ {command}", fg="cyan"))

    def _style(self, text: str, *, bold: bool = False, fg: str | None = None) -> str:
        return click.style(text, bold=bold, fg=fg) if self._color else text

    # --- processes -----------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        """Return an environment in which nothing of the user's own pool is used or changed."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        env["GPUPOOL_CREDENTIALS"] = str(self._folder / "credentials.json")
        env["XDG_CONFIG_HOME"] = str(self._folder / "config")
        env["XDG_CACHE_HOME"] = str(self._folder / "cache")
        # Sockets and the workers' files as well, since a killed server cannot remove its own.
        env["RUNTIME_DIRECTORY"] = env["TMPDIR"] = str(self._folder)
        # The program's Python is the one that has NumPy for certain: ours.
        env["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", "")))
        return env

    def _argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "gpupool.cli.main", *arguments]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._argv(*arguments),
            env=self._env,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )

    def _command(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> None:
        """Show a command and its output."""
        shown = [Path(a).name if a.endswith(".py") else a for a in arguments]
        self._show(shlex.join(["gpupool", *shown]))
        sys.stdout.flush()
        done = self._run(*arguments)
        for line in (done.stderr + done.stdout).splitlines():
            click.echo(f"  {line}" if line else "")
        if done.returncode not in expected:
            raise GpupoolError(
                "the demonstration failed",
                why=f"gpupool {arguments[0]} ended with {done.returncode}",
                hint='"gpupool up" starts the same servers, and keeps their logs',
            )

    async def _wait_for_votes(self) -> None:
        """Wait until all servers vote: the pool goes on without one of them then."""
        with trio.move_on_after(START_S):
            while len((await _view_of(self._env["GPUPOOL_CREDENTIALS"])).raft.voters) < SERVERS:  # noqa: ASYNC110
                await trio.sleep(0.1)
            return
        raise GpupoolError("the servers did not find each other", why=f"in {START_S:.0f} s")

    async def _lose_the_leader(self) -> float:
        """Kill the leader, and return after how many seconds there is another."""
        async with connected(self._env["GPUPOOL_CREDENTIALS"]) as pool:
            leader = (await pool.view()).raft.leader
            self._say(f"{leader} leads the pool and keeps its books. The hard way:")
            self._kill(leader)
            killed_at = trio.current_time()
            while trio.current_time() - killed_at < START_S:
                with suppress(GpupoolError):
                    raft = (await pool.view()).raft
                    if raft.quorum and raft.leader not in ("", leader):
                        return trio.current_time() - killed_at
                await trio.sleep(0.02)
        raise GpupoolError("the pool has no new leader", why=f"after {START_S:.0f} s")

    def _kill(self, name: str) -> None:
        pid = next(each.pid for each in self._pool.living() if each.name == name)
        self._show(f"kill -9 {pid}      # {name}")
        os.kill(pid, signal.SIGKILL)

    def _program(self) -> Path:
        """Return the example program: the repository's, or the installed copy."""
        for folder in (Path(__file__).resolve().parents[2] / "examples", self._folder):
            for name in ("kmeans.py", "solver.py"):
                if (folder / name).is_file():
                    return folder / name
        path = self._folder / "solver.py"
        path.write_text(FALLBACK_PROGRAM, encoding="utf-8")
        return path

    def _clean_up(self) -> None:
        self._pool.stop(remove=True)
        os.close(self._held)


async def _view_of(login: str) -> PoolView:
    async with connected(login) as pool:
        return await pool.view()


def _end(number: int, _frame: object) -> None:
    """End the story as Ctrl-C does: by its cleaning up."""
    raise SystemExit(128 + number)


FALLBACK_PROGRAM = '''\
"""Solve a linear system on each GPU, and check the result with NumPy."""

import cupy as cp
import numpy as np

rng = np.random.default_rng(7)
for gpu in range(cp.cuda.runtime.getDeviceCount()):
    with cp.cuda.Device(gpu):
        free, total = cp.cuda.runtime.memGetInfo()
        a, b = rng.random((300, 300)), rng.random(300)
        x = cp.linalg.solve(cp.asarray(a), cp.asarray(b))
        residual = float(np.abs(a @ cp.asnumpy(x) - b).max())
        assert residual < 1e-8, residual
        print(f"GPU {gpu}: {total / 2**30:.1f} GiB, solved 300 equations, residual {residual:.1e}")
'''
