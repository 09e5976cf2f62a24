"""One real server of a run: its process, its state directory, and an older copy of that."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import trio

OLD_COPY = "its state directory is an old copy"
"""The message of a server that its peers have refused."""

_EXPORTER = b"gpupool.monitoring.exporter"


class RealServer:
    """A server by its key; its name changes each time that it becomes a new member."""

    def __init__(self, key: str, state_dir: Path) -> None:
        """Choose a free port for it."""
        self.key = key
        self.state_dir = state_dir
        self.old = state_dir.parents[1] / f"{key}.old"
        """A copy of the state directory, made while the server was killed."""
        self.port = _free_port()
        self.advertised = 0
        self.token = ""
        self.filled_at = 0
        """How much it had logged when its disk was filled, 0 while nobody has filled it."""
        self.generation = 1
        self.process: subprocess.Popen[bytes] | None = None
        self._log = state_dir.parents[2] / f"{key}.log"

    @property
    def name(self) -> str:
        """The name that the pool knows it by."""
        return self.key if self.generation == 1 else f"{self.key}-{self.generation}"

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def status(self) -> int | None:
        """How its newest process ended."""
        return self.process.poll() if self.process is not None else None

    @property
    def log_size(self) -> int:
        """How many bytes it has logged."""
        return self._log.stat().st_size

    def said(self, since: int = 0) -> str:
        """Return the server's log from byte ``since`` on, without line ends."""
        return " ".join(self._log.read_bytes()[since:].decode(errors="replace").split())

    def start(self, folder: Path, env: Mapping[str, str], *, emulate: str) -> None:
        """Start its process; a process before it must have ended."""
        argv = [sys.executable, "-m", "gpupool.cli.main", "join"]
        argv += ["--emulate", emulate, "--listen", f"127.0.0.1:{self.port}"]
        argv += ["--advertise", f"127.0.0.1:{self.advertised}", "--name", self.name]
        argv += ["--pool-name", "chaos", "--state-dir", str(self.state_dir)]
        argv += ["--drain-timeout", "1s"]
        argv += ["--token", self.token] if self.token else []
        with self._log.open("ab") as file:
            self.process = subprocess.Popen(
                argv,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    async def kill(self) -> None:
        """Kill its process, and wait for its exporter, which ends by itself and writes so long."""
        if self.process is not None and self.alive:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        with trio.move_on_after(10.0):
            while self._is_observed():  # noqa: ASYNC110 - the exporter is no child of ours
                await trio.sleep(0.1)

    def copy(self) -> None:
        """Copy the state directory; the server must not run."""
        shutil.rmtree(self.old, ignore_errors=True)
        shutil.copytree(self.state_dir, self.old, symlinks=True)

    def put_back(self) -> None:
        """Replace the state directory by the copy, which is gone then; the server must not run."""
        shutil.rmtree(self.state_dir)
        shutil.copytree(self.old, self.state_dir, symlinks=True)
        shutil.rmtree(self.old)

    def _is_observed(self) -> bool:
        wanted = os.fsencode(self.state_dir.resolve() / "monitoring")
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if _EXPORTER in words and wanted in words:
                return True
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
