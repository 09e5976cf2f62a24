"""Upgrade a pool of three, server by server, under load: ``upgrade_pool.py [FROM [TO]]``.

FROM and TO are commits (default: HEAD, and HEAD as the version after it). Both are installed, three
servers of FROM start, and clients run one short program after the other. Each server is then
drained, stopped, started again as TO, and used again, as docs/upgrade.md says. Any program that
fails fails the upgrade.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FROM, NEXT = "HEAD", "next"
FORMATS = Path("pool", "model", "formats.py")
NAMES = ("one", "two", "three")
STEP_S = 120.0
PROGRAM = """
import time
import cupy, numpy
a = numpy.arange(160000.0).reshape(400, 400) / 1e5
b = cupy.asarray(a)
for _ in range(10):
    time.sleep(0.1)
    assert numpy.allclose(cupy.asnumpy(b @ b), a @ a)
"""


def install(commit: str, folder: Path) -> Path:
    """Install a commit, borrow its dependencies from this Python, and return its bin."""
    source = folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", FROM if commit == NEXT else commit],
        check=True,
        capture_output=True,
    )
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    if commit == NEXT:
        text = (source / FORMATS).read_text(encoding="utf-8")
        later = re.sub(r"(?m)^VERSION = (\d+)$", lambda m: f"VERSION = {int(m[1]) + 1}", text)
        assert later != text
        (source / FORMATS).write_text(later, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    binaries = folder / "venv" / "bin"
    pip = (str(binaries / "python"), "-m", "pip", "install", "--quiet", "--no-deps")
    # The array door needs no native library.
    subprocess.run([*pip, str(source)], check=True, env={**os.environ, "CC": "/bin/false"})
    site = next((folder / "venv" / "lib").glob("python3*/site-packages"))
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "borrowed.pth").write_text(borrowed + "\n", encoding="utf-8")
    return binaries


@dataclass(slots=True)
class Load:
    """Clients that run one program after the other until they are told to stop."""

    bin: Path
    env: dict[str, str]
    program: Path
    stop: threading.Event = field(default_factory=threading.Event)
    done: int = 0
    longest_s: float = 0.0
    failures: list[str] = field(default_factory=list[str])
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def start(self, clients: int) -> None:
        """Start the clients."""
        for _ in range(clients):
            thread = threading.Thread(target=self._go_on)
            thread.start()
            self.threads.append(thread)

    def end(self) -> None:
        """Let each client finish its program."""
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _go_on(self) -> None:
        run = ("run", "-p", "0.25", "--wait", "60s", "--door", "arrays", "--")
        argv = [str(self.bin / "gpupool"), *run, str(self.bin / "python"), str(self.program)]
        while not self.stop.is_set():
            began = time.monotonic()
            done = subprocess.run(argv, env=self.env, text=True, capture_output=True, check=False)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if done.returncode:
                self.failures.append(f"rc {done.returncode}: {done.stderr[-800:]}")
            else:
                self.done += 1


class Upgrade:
    """The pool, and the steps of its upgrade."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o711)
        self.old, self.new = folder / "old", folder / "new"
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "PYTHON"))}
        login = {"GPUPOOL_CREDENTIALS": str(folder / "credentials.json")}
        self.env = {**clean, **login, "HOME": str(folder), "TMPDIR": str(folder)}

    def gpupool(self, binaries: Path, *argv: str) -> dict[str, Any]:
        """Run a command and return its JSON."""
        done = subprocess.run(
            [str(binaries / "gpupool"), *argv], env=self.env, text=True, capture_output=True
        )
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            return {"stderr": done.stderr, "returncode": done.returncode}

    def must(self, binaries: Path, *argv: str) -> None:
        """Run a command that must succeed."""
        done = subprocess.run(
            [str(binaries / "gpupool"), *argv], env=self.env, text=True, capture_output=True
        )
        if done.returncode:
            raise SystemExit(f"gpupool {' '.join(argv)}: {done.stderr}")

    def start(self, binaries: Path, name: str, *argv: str) -> None:
        """Start a server in the background."""
        place = ("--state-dir", str(self.folder / name), "--name", name)
        where = () if (self.folder / name).exists() else ("--listen", "127.0.0.1:0")
        command = [str(binaries / "gpupool"), "join", "--emulate", "1:4G", *place, *where, *argv]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.servers[name] = subprocess.Popen(
                command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def wait_for(self, binaries: Path, names: tuple[str, ...], state: str = "idle") -> None:
        """Wait until these servers are up, and used as the state says, or report the status."""
        end = time.monotonic() + STEP_S
        found: dict[str, Any] = {}
        while time.monotonic() < end:
            found = self.gpupool(binaries, "status", "--json")
            servers = {each["name"]: each for each in found.get("pool", {}).get("servers", ())}
            if all(self._is(servers.get(name), state) for name in names):
                return
            time.sleep(0.2)
        raise SystemExit(f"no {state} {names} after {STEP_S:.0f} s: {json.dumps(found)[:3000]}")

    @staticmethod
    def _is(server: dict[str, Any] | None, state: str) -> bool:
        if server is None:
            return False
        if state == "drained":
            return server["state"] == "drain" and not server["lease_count"]
        return server["state"] in ("idle", "mix", "full")

    def run(self, old: str, new: str) -> str:
        """Run the whole upgrade; return its outcome in a sentence."""
        old_bin, new_bin = install(old, self.old), install(new, self.new)
        program = self.folder / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        self.start(old_bin, NAMES[0])
        self.wait_for(old_bin, NAMES[:1])
        for name in NAMES[1:]:
            token = self.gpupool(old_bin, "token", "create", "--server", "--json")["token"]
            self.start(old_bin, name, "--token", token)
            self.wait_for(old_bin, (name,))
        loads = [Load(old_bin, self.env, program), Load(new_bin, self.env, program)]
        loads[0].start(2)
        began = time.monotonic()
        try:
            for name in NAMES:
                self.replace(old_bin, new_bin, name)
            self.wait_for(new_bin, NAMES)
            loads[1].start(1)  # clients are updated after the servers
            while not loads[1].done and not loads[1].failures:
                time.sleep(0.1)
        finally:
            for load in loads:
                load.end()
        took = time.monotonic() - began
        if failures := [text for load in loads for text in load.failures]:
            raise SystemExit("\n".join(failures[:3]))
        longest = max(load.longest_s for load in loads)
        return (
            f"{old} to {new}: three servers in {took:.0f} s, {loads[0].done} runs of old clients"
            f" and {loads[1].done} of new ones ran, none failed, the longest took {longest:.1f} s"
        )

    def replace(self, old_bin: Path, new_bin: Path, name: str) -> None:
        """Drain one server, stop it, start it as the new version, and use it again."""
        self.must(old_bin, "drain", name, "--reason", "upgrade")
        self.wait_for(old_bin, (name,), "drained")
        server = self.servers[name]
        server.send_signal(signal.SIGTERM)
        if server.wait(STEP_S):
            raise SystemExit(f"{name} ended with {server.returncode}")
        self.start(new_bin, name)
        self.wait_for(old_bin, (name,), "drained")
        self.must(old_bin, "undrain", name)
        self.wait_for(old_bin, (name,))
        sys.stdout.write(f"{name} is upgraded\n")
        sys.stdout.flush()

    def end(self) -> None:
        """End all servers."""
        for server in self.servers.values():
            if server.poll() is None:
                server.terminate()
        for server in self.servers.values():
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def main() -> None:
    """Upgrade a pool in a temporary folder."""
    old, new = (*sys.argv[1:], *(FROM, NEXT)[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory(prefix="gpupool-upgrade-") as folder:
        upgrade = Upgrade(Path(folder))
        try:
            sys.stdout.write(upgrade.run(old, new) + "\n")
        finally:
            upgrade.end()


if __name__ == "__main__":
    main()
