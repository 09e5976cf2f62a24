"""A disk that is really full: the server says so, waits for room, and loses nothing it answered."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
AS_ROOT = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
UNSHARE = ["unshare", "--mount", *AS_ROOT]

# Runs inside namespaces of its own, where a small file system can be mounted.
SCRIPT = """
import json, os, signal, subprocess, sys
folder, state = sys.argv[1], sys.argv[1] + "/disk/state"
gpupool = [sys.executable, "-m", "gpupool.cli.main"]
# Ahead of the journal's end is room for hundreds of commits otherwise.
few = "import gpupool.consensus.storage.disk as d; d.AHEAD_BYTES = 4096; "
few = [sys.executable, "-c", few + "from gpupool.cli.main import main; main()"]
join = [*few, "join", "--emulate", "1:8G", "--name", "a", "--state-dir", state]
said = {}

def mount(size):
    argv = ["mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", folder + "/disk"]
    subprocess.run(argv, check=True)

def fill_up(step):
    with open(folder + "/disk/fill", "ab", buffering=0) as fill:
        try:
            while True:
                fill.write(bytes(step))
        except OSError:
            pass

def run(*arguments):
    done = subprocess.run([*gpupool, *arguments], capture_output=True, text=True, timeout=60)
    return [done.returncode, done.stdout, done.stderr]

def start(*arguments):
    log = open(folder + "/log", "a+")
    server = subprocess.Popen([*join, *arguments], stdout=subprocess.DEVNULL, stderr=log)
    while True:
        log.seek(0)
        text = log.read()
        if text.count("is listening") > said.get("starts", 0):
            said["starts"] = text.count("is listening")
            return server
        assert server.poll() is None, text

mount("1m")
done = subprocess.run([*join, "--listen", "127.0.0.1:0"], capture_output=True, text=True)
said["too small"] = [done.returncode, done.stdout, done.stderr]
subprocess.run(["umount", folder + "/disk"], check=True)
mount("80m")
server = start("--listen", "127.0.0.1:0")
said["before"] = run("token", "create", "--user", "before", "--json")
# The server gives up its reserve first; another program takes that at once.
os.unlink(state + "/consensus/reserve")
fill_up(1 << 12)
answered = 0
for number in range(100):
    if run("drain", "a", "--reason", str(number) + "x" * 150)[0]:
        break
    answered = number + 1
said["answered"] = answered
said["asked"] = run("run", "-p", "0.1", "--no-wait", "--", "true")
said["status"] = run("status")
said["alive"] = server.poll() is None
os.unlink(folder + "/disk/fill")
while run("drain", "a", "--reason", "again")[0]:
    assert server.poll() is None, open(folder + "/log").read()
said["log"] = open(folder + "/log").read()
server.send_signal(signal.SIGTERM)
said["server"] = server.wait(60)
fill_up(1 << 16)
done = subprocess.run(join, capture_output=True, text=True)
said["still full"] = [done.returncode, done.stdout, done.stderr]
os.unlink(folder + "/disk/fill")
server = start()
said["tokens"] = run("token", "list")
said["audit"] = run("audit", "--json")
server.send_signal(signal.SIGTERM)
said["end"] = server.wait(30)
print(json.dumps(said))
"""


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    made.chmod(0o711)  # The server of a test by root is another user.
    (made / "disk").mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(folder: Path) -> None:
    if not can_mount():
        pytest.skip("needs namespaces of its own for a small file system")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    env |= {"GPUPOOL_CREDENTIALS": str(folder / "operator.json"), "HOME": str(folder)}
    env |= {"PYTHONPATH": str(ROOT / "src"), "RUNTIME_DIRECTORY": str(folder)}
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", SCRIPT, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    for name in ("too small", "still full"):
        code, _, text = said[name]
        assert code == 1
        assert "no space left on device" in text
        assert "free at least 64 MiB" in text
    assert said["alive"]
    assert said["server"] == 0
    assert "the journal cannot be written: No space left on device" in said["log"]
    assert "the disk has room again" in said["log"]
    assert said["answered"] < 100
    assert said["asked"][0] not in (0, 1), said["asked"]
    assert "the disk of the state directory is full" in said["asked"][2], said["asked"]
    assert "the disk of the state directory is full" in "".join(said["status"][1:])
    assert "something went wrong" not in said["log"]
    # Everything that was answered is there after the restart, whatever was refused.
    assert "before" in said["tokens"][1]
    acts = json.loads(said["audit"][1])["acts"]
    reasons = {act["text"] for act in acts if act["kind"] == "drained"}
    assert {f"{number}{'x' * 150}" for number in range(said["answered"])} <= reasons
    assert said["end"] == 0
