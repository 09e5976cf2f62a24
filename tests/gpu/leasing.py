"""A pool of one server on this machine, with its real GPU, and programs run on it by the CUDA door.

For ``cuda_pool_check.py`` and ``benchmarks/cuda_door.py``.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPUPOOL = [sys.executable, "-m", "gpupool.cli.main"]
LONG_NAME = ("too-long-for-the-path-of-a-socket-" * 4)[:110]


@dataclass
class Outcome:
    """The outcome of one run of one program."""

    code: int
    seconds: float
    results: dict[str, str]
    output: str


def results_of(text: str) -> dict[str, str]:
    """Return the ``RESULT name value`` lines of a program's output."""
    return dict(re.findall(r"^RESULT (\S+) (.+)$", text, re.MULTILINE))


def run(command: list[str], limit: float, log: Path, env: dict[str, str]) -> Outcome:
    """Run a program; its output goes to a file, so that nothing is lost when it hangs."""
    start = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            # Python programs show where they hang; then everything of this run ends.
            os.killpg(process.pid, signal.SIGABRT)
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 124
    text = log.read_text(errors="replace")
    return Outcome(code, time.monotonic() - start, results_of(text), text)


class RealServer:
    """One ``gpupool join`` in a separate folder.

    Args:
        folder: an empty one, which others may enter.
        options: more words for ``gpupool join``.
        env: of the server.
        remote: leave out the Unix socket, so that programs come by TCP as from another machine.
    """

    def __init__(
        self, folder: Path, *options: str, env: dict[str, str], remote: bool = False
    ) -> None:
        runtime = folder / (LONG_NAME if remote else "run")
        runtime.mkdir(parents=True)
        folder.chmod(0o711)
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(*GPUPOOL, "join", "--listen", "127.0.0.1:0"),
                    *("--state-dir", str(folder / "state"), *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env | {"RUNTIME_DIRECTORY": str(runtime)},
            )

    def check(self) -> None:
        """End this program if the server has ended."""
        if self.process.poll() is not None:
            raise SystemExit("a server ended:\n" + self.log.read_text())

    def stop(self) -> None:
        """End the server; harmless when it has ended."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RealPool:
    """A pool on this machine, of one server unless ``join`` adds others.

    Args:
        folder: an empty one, which others may enter.
        encryption: of data, "tls" or "off".
        remote: leave out Unix sockets, so that programs come by TCP as from another machine.
        bare: run programs where there is neither a GPU nor a driver, which takes root.
        options: of the first server's ``gpupool join``.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        encryption: str = "off",
        remote: bool = False,
        bare: bool = False,
    ) -> None:
        self.prefix = [str(Path(__file__).with_name("without_gpu.sh"))] if bare else []
        self.folder = folder
        self.remote = remote
        path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self.env = os.environ | {
            "HOME": str(folder),
            "GPUPOOL_CREDENTIALS": str(folder / "operator.json"),
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
        }
        self.env.pop("XDG_RUNTIME_DIR", None)
        words = ("--data-encryption", encryption, *options)
        first = RealServer(folder, *words, env=self.env, remote=remote)
        self.servers = [first]
        self.server, self.log = first.process, first.log
        self._until_idle(1)

    def join(self, name: str, *options: str) -> RealServer:
        """Add a server, and wait until it grants."""
        answer = self.command("token", "create", "--server", "--json").stdout
        words = ("--name", name, "--token", json.loads(answer)["token"], *options)
        made = RealServer(self.folder / name, *words, env=self.env, remote=self.remote)
        self.servers.append(made)
        self._until_idle(len(self.servers))
        return made

    def _until_idle(self, count: int) -> None:
        end = time.monotonic() + 90
        while self._idle() < count:
            for server in self.servers:
                server.check()
            if time.monotonic() > end:
                raise SystemExit("the server did not start:\n" + self.log.read_text())
            time.sleep(0.3)

    def _idle(self) -> int:
        done = self.command("status", "--json")
        if done.returncode not in (0, 3):
            return 0
        return sum(s["state"] == "idle" for s in json.loads(done.stdout)["pool"]["servers"])

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one gpupool command."""
        return subprocess.run(
            [*GPUPOOL, *words],
            capture_output=True,
            text=True,
            check=False,
            env=self.env,
            timeout=60,
        )

    def words(self, program: list[str], *options: str) -> list[str]:
        """Return the command that runs a program on this pool."""
        return [*self.prefix, *GPUPOOL, "run", "-v", "--door", "cuda", *options, "--", *program]

    def run(self, program: list[str], *options: str, limit: float, name: str) -> Outcome:
        """Run a program on this pool."""
        return run(self.words(program, *options), limit, self.folder / f"{name}.log", self.env)

    def stop(self) -> None:
        """End all servers; harmless when they have ended."""
        for server in reversed(self.servers):
            server.stop()
