"""The demonstration behind ``gpupool demo``: real servers in processes, and ordinary commands."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import trio

from gpupool.cli.lib.connect import run_async
from gpupool.cli.lib.join_process import start_join
from gpupool.pool.errors import GpupoolError
from gpupool.remoting.daemon.bootstrap import TOKENS_FILE
from gpupool.remoting.local.abandoned_folders import make_folder
from gpupool.remoting.local.connecting import connected
from gpupool.remoting.local.paths import program

NAMES = ("server-a", "server-b", "server-c")
START_S = 20.0
STEP_S = 60.0
EMULATE = "2:8G"
FAULTY = NAMES[1]
FOLDER_PREFIX = "gpupool-demo-"
FAULTS = """\
[[at]]
temperature = 48
power = 210

[[at]]
gpu = 1
temperature = 86
per_second = { "throttled.hw_thermal" = 0.6, pcie_replays = 2 }
"""
"""So that pages about health have a GPU that is too hot, and grants go on."""


@dataclass(slots=True)
class Server:
    """One running ``gpupool join``."""

    name: str
    process: subprocess.Popen[str]
    log: Path


class Demonstration:
    """Runs the steps of the demonstration, and prints each."""

    def __init__(self, *, keep: bool, color: bool, web: bool = False) -> None:
        self._keep = keep
        self._web = web
        self._color = color and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._folder, self._held = make_folder(Path(tempfile.gettempdir()), FOLDER_PREFIX)
        self._folder.chmod(0o711)  # workers have users of their own, and pass through here
        self._servers: dict[str, Server] = {}
        self._step = 0
        self._env = self._environment()

    def run(self) -> int:
        """Run the whole story; return the exit code."""
        started = time.monotonic()
        kept = False
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)
        try:
            self._tell_story()
            kept = self._keep
            took = time.monotonic() - started
            self._say(f"\nThat was all, in {took:.0f} s. On real machines it is the same commands;")
            self._say("leave out --emulate, and the GPUs are real. To play with a pool like it:")
            self._show(f"{program()} up")
            self._say("On a machine with GPUs, this creates a pool of them:")
            self._show(f"{program()} join")
            if self._web:
                self._show_in_browser()
            if kept:
                self._say_how_to_go_on()
            elif not self._web:
                self._say("To look at such a pool in the browser:")
                self._show(f"{program()} demo --web")
            return 0
        finally:
            if not kept:
                # A second one would leave the servers' files: this takes a few seconds at most.
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                self._clean_up()

    def _tell_story(self) -> None:
        self._head("Start a pool: three servers, each with two emulated GPUs of 8 GiB")
        self._say("A server of a pool is one process. The first creates the pool:")
        self._show(f"gpupool join --emulate {EMULATE}")
        first = self._start(NAMES[0], None)
        token = self._token_of(first)
        self._say("It made a token, which lets further servers in. It is read from stdin:")
        self._show(f"echo gpupool-... | gpupool join --emulate {EMULATE} --token -")
        for name in NAMES[1:]:
            self._start(name, token)
        self._wait_for(servers=3)
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

    def _say_how_to_go_on(self) -> None:
        self._say("\nThe pool goes on. In another terminal:")
        self._show(f"export GPUPOOL_CREDENTIALS={self._env['GPUPOOL_CREDENTIALS']}")
        self._show(f"{program()} top")
        self._show(f"{program()} web")
        pids = " ".join(str(server.process.pid) for server in self._servers.values())
        self._say("and at the end:")
        self._show(f"kill {pids}; rm -r {self._folder}")

    def _show_in_browser(self) -> None:
        """Show the pool in the browser until Ctrl-C; a program runs on it again and again."""
        again = f"while :; do python {shlex.quote(str(self._program()))}; sleep 1; done"
        self._say("\nThe same program runs on half a GPU again and again now, in the background:")
        self._show(f"gpupool run -p 0.5 -- sh -c {shlex.quote(again)}")
        self._say(f"The demo made a GPU of {FAULTY} overheat: see its page and that of health.")
        self._say("To use the pool in another terminal:")
        self._show(f"export GPUPOOL_CREDENTIALS={self._env['GPUPOOL_CREDENTIALS']}")
        self._say("The pool goes on until Ctrl-C, in the browser:")
        self._show("gpupool web")
        sys.stdout.flush()
        running = subprocess.Popen(
            self._argv("run", "-q", "-p", "0.5", "--", "sh", "-c", again),
            env=self._env,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            subprocess.run(self._argv("web"), env=self._env, cwd=self._folder, check=False)
        except KeyboardInterrupt:
            pass
        finally:
            running.terminate()
            running.wait()

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

    def _start(self, name: str, token: str | None) -> Server:
        log = self._folder / f"{name}.log"
        argv = self._argv(
            "join",
            "--emulate",
            EMULATE,
            "--listen",
            "127.0.0.1:0",
            "--name",
            name,
            "--pool-name",
            "demo",
            "--state-dir",
            str(self._folder / name),
            *self.faults_of(name),
        )
        with log.open("w") as errors:
            # In a session of its own: a Ctrl-C ends the story, which then ends its servers.
            # A pool that is kept outlives this process, and so must the lock of its folder.
            process = start_join(
                argv, token, env=self._env, cwd=self._folder, errors=errors, held=self._held
            )
        server = Server(name, process, log)
        self._servers[name] = server
        return server

    def faults_of(self, name: str) -> list[str]:
        """Return options that give one server's GPUs readings and errors, for the page."""
        if not self._web or name != FAULTY:
            return []
        path = self._folder / "faults.toml"
        path.write_text(FAULTS, encoding="utf-8")
        return ["--emulate-faults", str(path)]

    def _token_of(self, server: Server) -> str:
        """Return the server token that a new pool has made."""
        path, end = self._folder / server.name / TOKENS_FILE, time.monotonic() + START_S
        while time.monotonic() < end and server.process.poll() is None:
            text = path.read_text() if path.exists() else ""
            if found := re.search(r"echo (gpupool-\S+) \| gpupool join", text):
                return found[1]
            time.sleep(0.05)
        raise GpupoolError(f"{server.name} did not start", why=_last_line(server.log))

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
                hint=f"the servers' logs are in {self._folder}; --keep leaves them there",
            )

    def _status(self) -> dict[str, Any]:
        done = self._run("status", "--json")
        if done.returncode not in (0, 3):
            return {}
        pool: dict[str, Any] = json.loads(done.stdout)["pool"]
        return pool

    def _wait_for(self, *, servers: int) -> None:
        """Wait until so many servers vote and offer their GPUs."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            pool = self._status()
            up = [each for each in pool.get("servers", ()) if each["state"] == "idle"]
            if len(up) == servers == len(pool["raft"]["voters"]):
                return
            for server in self._servers.values():
                if server.process.poll() is not None:
                    raise GpupoolError(f"{server.name} ended", why=_last_line(server.log))
            time.sleep(0.1)
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
        server = self._servers.pop(name)
        self._show(f"kill -9 {server.process.pid}      # {name}")
        server.process.kill()
        server.process.wait()

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
        for server in self._servers.values():
            server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 5
        for server in self._servers.values():
            try:
                server.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)


def _end(number: int, _frame: object) -> None:
    """End the story as Ctrl-C does: by its cleaning up."""
    raise SystemExit(128 + number)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"


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
