"""Pools of real servers with a library as GPUs, and ``gpupool run`` on them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from fake_cuda.build import build as build_driver
from tests import commands
from tests.commands import GPUPOOL
from tests.pools import Spawned, view_of, wrong_with

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DEADLINE_S = 90.0

SETTINGS = """import os
os.environ["FAKE_CUDA_SERVER"] = "{number}"
os.environ["FAKE_CUDA_DEVICES"] = "{devices}"
"""
"""Read when Python starts, by the server and by its workers, which inherit no such variables."""


NUMBERS = 256
"""How many servers on one machine the names of fake GPUs tell apart."""


def claimed_number() -> tuple[int, int]:
    """Return a server's number that no other test on this machine has, and the claim's descriptor.

    The number is a part of the names of the server's GPUs, and of all servers on a machine one
    offers a GPU. Tests run side by side, so each server claims its number as servers claim GPUs:
    by an abstract Unix socket.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for number in range(NUMBERS):
        with contextlib.suppress(OSError):
            claim.bind(f"\0gpupool-test-server-{number}")
            return number, claim.detach()
    claim.close()
    raise AssertionError(f"tests on this machine run {NUMBERS} servers at once")


class FakeGpuServer:
    """One server with GPUs that are a library; its data connections are TCP with TLS.

    Its socket for clients of the same host has too long a path, so that everything goes as to a
    remote server.
    """

    def __init__(self, folder: Path, name: str, devices: int, env: dict[str, str]) -> None:
        self.name = name
        self.number, claim = claimed_number()
        weakref.finalize(self, os.close, claim)
        self.folder = folder / self.name
        runtime = self.folder / ("so-long-a-name-that-no-socket-can-have-it-" * 3)[:110]
        for each in (runtime, bindings := self.folder / "bindings", driver := self.folder / "lib"):
            each.mkdir(parents=True)
        self.folder.chmod(0o711)  # workers have users of their own
        # Copies where workers may read: the compiler's cache may be closed to them.
        shutil.copytree(HERE / "ctypes_bindings", bindings, dirs_exist_ok=True)
        settings = SETTINGS.format(number=self.number, devices=devices)
        (bindings / "sitecustomize.py").write_text(settings)
        shutil.copy(build_driver(), driver / "libcuda.so.1")
        self.log = self.folder / "server.log"
        self._env = env | {
            "PYTHONPATH": os.pathsep.join(map(str, (bindings, driver, ROOT / "src"))),
            "LD_LIBRARY_PATH": str(driver),
            "RUNTIME_DIRECTORY": str(runtime),
        }
        self.listen = "127.0.0.1:0"
        self.prefix: list[str] = []
        """Words before the command, such as those that put it into a separate network."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start the server, or start it again."""
        words = ["join", "--name", self.name, "--state-dir", str(self.folder / "state"), *options]
        words += [] if (self.folder / "state").exists() else ["--listen", self.listen]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *GPUPOOL, *words],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill_workers(self, *, noticed_s: float = 0.0) -> None:
        """Kill all worker processes, the spare ones too; the server starts new ones.

        With ``noticed_s`` it returns once the server has noticed, or after as long: a session that
        comes before waits for a spare that has been killed while it started.
        """
        assert self.process is not None
        found, killed = [self.process.pid], list[int]()
        for (
            process
        ) in found:  # A server that root started has a privileged helper, whose children they are.
            for path in Path(f"/proc/{process}/task").glob("*/children"):
                with contextlib.suppress(OSError):  # a thread may end meanwhile
                    found += [int(pid) for pid in path.read_text().split()]
        for pid in found:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/comm").read_text() == "gpupool-worker\n":
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        end = time.monotonic() + noticed_s
        while time.monotonic() < end:
            said = self.log.read_text(errors="replace")
            if all(f"worker {pid} ended" in said for pid in killed):
                break
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server as a machine does that loses its power; harmless when it has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """End the server; harmless when it has ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)


class FakeGpuPool:
    """One pool of such servers.

    Args:
        folder: an empty one, which others may enter.
        servers: how many.
        devices: of each server.
    """

    def __init__(self, folder: Path, servers: int = 1, devices: int = 1) -> None:
        self.folder = folder
        folder.chmod(0o711)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env |= {
            "GPUPOOL_CREDENTIALS": str(folder / "operator.json"),
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT / "src"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.env.pop("XDG_RUNTIME_DIR", None)
        self._spawned = Spawned()
        self.servers = [
            FakeGpuServer(folder, "abcd"[at], devices, self.env) for at in range(servers)
        ]

    @property
    def server(self) -> FakeGpuServer:
        """Return the first server."""
        return self.servers[0]

    def start(self) -> None:
        """Start all servers, each when those before it serve, and wait until they grant."""
        for at, server in enumerate(self.servers):
            options: list[str] = []
            if at:
                done = self.command("token", "create", "--server", "--json")
                options = ["--token", json.loads(done.stdout)["token"]]
            server.start(*options)
            self.until(lambda count=at + 1: self.idle_servers() == count)

    def restart(self) -> None:
        """Start the first server again, and wait until it grants."""
        self.server.start()
        self.until(lambda: self.command("gpus").returncode == 0)

    def until(self, condition: Callable[[], bool]) -> None:
        """Look again and again until ``condition`` holds."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            for server in self.servers:
                ended = server.process is not None and server.process.poll() is not None
                assert not ended, server.log.read_text()
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "".join(s.log.read_text()[-3000:] for s in self.servers if s.log.exists())

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return commands.finish([*GPUPOOL, *words], env=self.env, timeout=100)

    def spawn(self, *words: str) -> "subprocess.Popen[str]":
        """Start one command; it ends with its test."""
        return self._spawned.start([*GPUPOOL, *words], self.env)

    def wrong(self) -> str:
        """End a test's processes, and return the pool's difference from its state before."""
        self._spawned.end()
        processes = {server.name: server.process for server in self.servers}
        return wrong_with(processes, self.env["GPUPOOL_CREDENTIALS"])

    def idle_servers(self) -> int:
        """Return how many servers could grant now."""
        try:
            pool = view_of(self.env["GPUPOOL_CREDENTIALS"])
        except Exception:  # noqa: BLE001 - as before there are servers; mostly it is in a group
            return 0
        return sum(server["state"] == "idle" for server in pool["servers"])

    def leases(self) -> list[str]:
        """Return the names of all leases."""
        done = self.command("leases", "--json")
        return [lease["name"] for lease in json.loads(done.stdout)["leases"]]

    def lease(self) -> str:
        """Return the name of the one lease."""
        (name,) = self.leases()
        return name

    def stop(self) -> None:
        """End all commands and servers."""
        self._spawned.end()
        for server in reversed(self.servers):
            server.stop()
