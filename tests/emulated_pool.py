"""A pool of real servers with emulated GPUs, for measurements and pictures, not for tests."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import scripted_join

COMMAND = [sys.executable, "-m", "gpupool.cli.main"]
DEADLINE_S = 90.0


class EmulatedPool:
    """Servers ``gpu-1`` to ``gpu-N`` until the block ends, and programs that run on them."""

    def __init__(self, count: int, *, gpus: str = "4:80G", faults: Mapping[int, str] = {}) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpupool-emulated-"))
        self.folder.chmod(0o711)  # workers have users of their own, and pass through here
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env |= {
            "GPUPOOL_CREDENTIALS": str(self.folder / "operator.json"),
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "RUNTIME_DIRECTORY": str(self.folder),
            "TMPDIR": str(self.folder),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        }
        self._count, self._gpus, self._faults = count, gpus, faults
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "EmulatedPool":
        token = ""
        for number in range(1, self._count + 1):
            self._start(number, token)
            if not token:
                token = self._token()
        self._wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):  # programs first
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Run one command to its end, and return its output."""
        words, variables = [*COMMAND, *arguments], self.env | dict(env or {})
        return subprocess.run(
            words, env=variables, check=True, stdout=subprocess.PIPE
        ).stdout.decode()

    def spawn(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Run one command until the block ends."""
        self._spawn(
            [*COMMAND, *arguments], self.folder / "programs.log", self.env | dict(env or {})
        )

    def login(self, user: str) -> dict[str, str]:
        """Return variables with which commands are those of another user."""
        made = self.run("token", "create", "--user", user, "--json")
        env = {"GPUPOOL_CREDENTIALS": str(self.folder / f"{user}.json")}
        self.run("login", json.loads(made)["token"], env=env)
        return env

    def status(self) -> dict[str, Any]:
        """Return the pool as ``status --json`` has it."""
        done = subprocess.run(
            [*COMMAND, "status", "--json"], env=self.env, stdout=subprocess.PIPE, check=False
        )
        pool: dict[str, Any] = json.loads(done.stdout or b"{}").get("pool", {})
        return pool

    def _start(self, number: int, token: str) -> None:
        name = f"gpu-{number}"
        words = ["--emulate", self._gpus, "--listen", "127.0.0.1:0"]
        words += ["--name", name, "--state-dir", str(self.folder / name)]
        words += ["--token", token] if token else ["--pool-name", "lab"]
        command = [*COMMAND, "join"]
        if number in self._faults:
            path = self.folder / f"{name}.toml"
            path.write_text(self._faults[number])
            command = [*scripted_join.COMMAND, str(path)]
        self._spawn([*command, *words], self.folder / f"{name}.log", self.env)

    def _spawn(self, words: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        with log.open("ab") as out:
            process = subprocess.Popen(
                words, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self._processes.append(process)

    def _token(self) -> str:
        from gpupool.remoting.daemon.bootstrap import TOKENS_FILE

        path, end = self.folder / "gpu-1" / TOKENS_FILE, time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            text = path.read_text() if path.exists() else ""
            if found := re.search(r"echo (gpupool-\S+) \| gpupool join", text):
                return found[1]
            time.sleep(0.1)
        raise SystemExit((self.folder / "gpu-1.log").read_text())

    def _wait(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            servers = self.status().get("servers", ())
            if len([each for each in servers if each["state"] == "idle"]) == self._count:
                return
            time.sleep(0.3)
        raise SystemExit("the servers did not find each other")
