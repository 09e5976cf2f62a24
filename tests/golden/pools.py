"""Real servers of one machine, from state directories that may have been recorded long ago."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from tests import commands
from tests.commands import GPUPOOL

from gpupool.pool.errors import first_error
from gpupool.pool.model.plain import to_plain
from gpupool.pool.view import PoolView
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.local.logins import connected

DEADLINE_S = 60.0
View = dict[str, Any]


def environment(folder: Path, credentials: str = "operator.json") -> dict[str, str]:
    """Return the variables of commands that touch nothing outside ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL_")}
    kept.pop("XDG_RUNTIME_DIR", None)
    return kept | {
        "GPUPOOL_CREDENTIALS": str(folder / credentials),
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder),
        "RUNTIME_DIRECTORY": str(folder),
        "USER": "op",
        "LOGNAME": "op",
    }


class Server:
    """One ``gpupool join`` with two emulated GPUs of 8 GiB."""

    def __init__(self, name: str, folder: Path, program: Sequence[str] = tuple(GPUPOOL)) -> None:
        self.name = name
        self._program = program
        self.state_dir = folder / name
        self._env = environment(folder)
        self._log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Start it on a free port."""
        argv = [*self._program, "join", "--emulate", "2:8G", "--name", self.name, *arguments]
        argv += ["--state-dir", str(self.state_dir), "--listen", "127.0.0.1:0"]
        with self._log.open("ab") as log:
            self.process = commands.start(
                [*argv, "--log-format", "json"],
                env=self._env,
                stdout=log,
                stderr=log,
                text=False,
            )

    def wait(self) -> None:
        """Wait until it says that it listens."""
        assert self.process is not None
        end = time.monotonic() + DEADLINE_S
        while "is listening" not in self.log():
            assert self.process.poll() is None, self.log()[-2000:]
            assert time.monotonic() < end, self.log()[-2000:]
            time.sleep(0.02)

    def log(self) -> str:
        return self._log.read_text()

    def address(self) -> str:
        """Return where it listens, as it keeps it for its next start."""
        found: str = json.loads((self.state_dir / "identity.json").read_text())["listen"]
        return found

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(DEADLINE_S)


def command(
    env: Mapping[str, str], *arguments: str, expect: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    done = commands.finish([*GPUPOOL, *arguments], env=env, timeout=DEADLINE_S)
    assert done.returncode == expect, done
    return done


def look(credentials: Path) -> View:
    """Return the pool's view as of ``status --json``."""

    async def view(pool: Pool) -> PoolView:
        return await pool.view()

    seen: View = json.loads(json.dumps(to_plain(ask(credentials, view))))
    return seen


def ask(credentials: Path, question: Callable[[Pool], Any]) -> Any:
    """Return the answer of a pool to one question; an error comes without a group around it."""

    async def main() -> Any:
        async with connected(str(credentials)) as pool:
            return await question(pool)

    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        raise first_error(group) from group


def wait_until(credentials: Path, condition: Callable[[View], object]) -> View:
    """Look again and again until ``condition`` holds for the view."""
    end = time.monotonic() + DEADLINE_S
    while not condition(seen := look(credentials)):
        assert time.monotonic() < end, json.dumps(seen)[:4000]
        time.sleep(0.05)
    return seen
