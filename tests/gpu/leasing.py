"""A pool of one server on this machine, with its real GPU, and programs run on it by the CUDA door.

For ``cuda_pool_check.py`` and ``benchmarks/cuda_door.py``.
"""

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
    """What one run of one program gave."""

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


class RealPool:
    """``gpupool join`` in a folder of its own.

    Args:
        folder: an empty one, which others may enter.
        encryption: of data, "tls" or "off".
        remote: leave out the Unix socket, so that programs come by TCP as from another machine.
        bare: run programs where there is neither a GPU nor a driver, which takes root.
    """

    def __init__(
        self, folder: Path, *, encryption: str = "off", remote: bool = False, bare: bool = False
    ) -> None:
        self.prefix = [str(Path(__file__).with_name("without_gpu.sh"))] if bare else []
        self.folder = folder
        runtime = folder / (LONG_NAME if remote else "run")
        runtime.mkdir(parents=True)
        folder.chmod(0o711)
        path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self.env = os.environ | {
            "HOME": str(folder),
            "GPUPOOL_CREDENTIALS": str(folder / "operator.json"),
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
        }
        self.env.pop("XDG_RUNTIME_DIR", None)
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                [
                    *(*GPUPOOL, "join", "--listen", "127.0.0.1:0"),
                    *("--state-dir", str(folder / "state"), "--data-encryption", encryption),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env | {"RUNTIME_DIRECTORY": str(runtime)},
            )
        end = time.monotonic() + 90
        while self.command("gpus").returncode != 0:
            if time.monotonic() > end or self.server.poll() is not None:
                raise SystemExit("the server did not start:\n" + self.log.read_text())
            time.sleep(0.3)

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
        """End the server; harmless when it has ended."""
        self.server.send_signal(signal.SIGTERM)
        try:
            self.server.wait(30)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
