"""A newcomer with a bare Debian types the commands of the README and the start page, no others.

The root has only what the pages ask for. Servers run on terminals of their own, as the pages say,
and the commands for the others are those that the first server prints. What differs from the
newcomer's machines is in variables of the environment: GPUs are emulated, and the three servers of
one machine need names, ports and folders of their own.
"""

import contextlib
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.packaging.conftest import ROOT
from tests.page_blocks import blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SUITE = "bookworm"
ASKED_FOR = "python3,python3-venv,pipx,gcc,libc6-dev,make"
"""Packages that the pages ask for; gcc of minbase has no headers."""

SOURCE = "/srv/gpupool"
FOLDED = "/path/to/this/folder"
SECONDS_MAX = 120.0
"""Seconds to the first result on a pool of three, without downloads."""

README = [block for block in blocks_of(ROOT / "README.md") if block.kind == "followed"]
START = list(blocks_of(ROOT / "docs" / "start.md"))


class Machine:
    """A root in which commands run with separate mounts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._servers: list[subprocess.Popen[str]] = []

    def argv(self, script: str, **variables: str) -> list[str]:
        """Return the words that run a script of bash in the root."""
        root = shlex.quote(str(self.root))
        mounts = (
            f"mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev; "
            f'mount -t tmpfs tmpfs {root}/tmp; exec "$@"'
        )
        passed = {k: v for k, v in os.environ.items() if k.startswith("PIP_") and "FIND" not in k}
        env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
            **passed,
            **variables,
        }
        inside = ["chroot", str(self.root), "env", "-i", *(f"{k}={v}" for k, v in env.items())]
        inside += ["bash", "-eu", "-o", "pipefail", "-c", f"cd {SOURCE}\n{script}"]
        return [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            mounts,
            "-",
            *inside,
        ]

    def run(self, script: str, **variables: str) -> str:
        """Run lines to their end, and return their output."""
        argv = self.argv(script, **variables)
        done = subprocess.run(
            argv, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=900, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def serve(self, command: str, name: str, port: int) -> Path:
        """Start a server on a separate terminal, and return the file of its output."""
        shown = self.root / "srv" / f"{name}.out"
        variables = {
            "GPUPOOL_JOIN_EMULATE": "2:8G",
            "GPUPOOL_JOIN_NAME": name,
            "GPUPOOL_JOIN_LISTEN": f"127.0.0.1:{port}",
            "GPUPOOL_JOIN_STATE_DIR": f"/srv/{name}",
        }
        script = f"script --quiet --flush --command {shlex.quote(command)} /srv/{name}.out"
        self._servers.append(
            subprocess.Popen(
                self.argv(script, **variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )
        return shown

    def end(self) -> None:
        """End the servers."""
        for server in self._servers:
            server.kill()
            server.wait()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Make a bare Debian with the folder of gpupool in it."""
    if os.geteuid() != 0 or not os.access("/usr/sbin/debootstrap", os.X_OK):
        pytest.skip("a system's root needs root and debootstrap")
    root = tmp_path_factory.mktemp("newcomer") / SUITE
    argv = ["debootstrap", "--variant=minbase", f"--include={ASKED_FOR}", SUITE, str(root)]
    made = subprocess.run(argv, text=True, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no {SUITE}: {(made.stdout + made.stderr)[-300:]}")
    for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(Path("/", name).read_bytes())
    (root / SOURCE[1:]).mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", str(root / SOURCE[1:])], input=archive.stdout, check=True)
    found = Machine(root)
    yield found
    found.end()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody has: its network is the root's, too."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def wait_for(shown: Path, pattern: str) -> str:
    """Wait until a terminal shows this, and return its text."""
    end = time.monotonic() + 120
    text = ""
    while not re.search(pattern, text):
        assert time.monotonic() < end, text[-3000:]
        time.sleep(0.1)
        text = shown.read_text(errors="replace").replace("\r", "") if shown.exists() else ""
    return text


def test_the_demo_ends_with_commands_that_work(machine: Machine) -> None:
    demo = README[0].script.splitlines()[0]
    assert demo.startswith("make demo ")
    said = machine.run(demo)
    assert "labels equal to NumPy's" in said
    assert "quorum 2/3" in said
    shown = re.findall(r"(?m)^  \$ (\.venv/bin/gpupool up)$", said)
    assert len(shown) == 1
    down = shown[0].replace(" up", " down")
    assert "A pool of 3 servers runs" in machine.run(f"{shown[0]}\n{down}")


def test_five_commands_of_the_start_page_lead_to_a_result(machine: Machine) -> None:
    install, play = START[1].script, START[2].script
    commands = [line for line in install.splitlines() + play.splitlines() if line.strip()]
    at = next(n for n, line in enumerate(commands) if line.startswith("gpupool run"))
    assert at + 1 <= 5, commands
    # What is downloaded is in pip's cache the second time.
    machine.run(install)
    machine.run("rm -r ~/gpupool-venv")
    begun = time.monotonic()
    first = "\n".join(commands[: at + 1])
    said = machine.run(first + "\ngpupool down")
    taken = time.monotonic() - begun
    print(f"{at + 1} commands, {taken:.0f} s to the first result and down again")
    assert "labels equal to NumPy's: 100" in said
    assert taken < SECONDS_MAX


def test_the_readme_leads_to_three_servers_and_a_client(machine: Machine) -> None:
    place, install = (line.split("  #")[0].strip() for line in README[1].script.splitlines())
    assert START[3].script == f"{place}\n{install.replace(FOLDED, '.')}\n"
    machine.run(f"{place}\n{install.replace(FOLDED, SOURCE).replace('[cuda12]', '[emulate]')}")
    lines = [line.split("  #")[0].strip() for line in README[2].script.splitlines()]
    first, others, login, use, invite = lines
    ports = free_ports(3)
    shown = machine.serve(first, "one", ports[0])
    said = wait_for(shown, r"gpupool login -")
    joins = re.findall(r"(?m)^ +(echo gpupool-\S+ \| gpupool join --token -)", said)
    logins = re.findall(r"(?m)^ +(echo gpupool-\S+ \| gpupool login -)", said)
    assert re.sub(r"gpupool-\S+", "gpupool-...", joins[0]) == others
    assert re.sub(r"gpupool-\S+", "gpupool-...", logins[0]) == login
    assert "this server keeps the privileges of root" not in said
    for name, port in zip(("two", "three"), ports[1:], strict=True):
        wait_for(machine.serve(joins[0], name, port), f"{name} is listening on ")
    program = use.replace("train.py", "examples/kmeans.py")
    user = {"HOME": "/srv/user", "GPUPOOL_JOIN_STATE_DIR": "/srv/none"}
    whole = "until gpupool status | grep 'quorum 3/3'; do sleep 0.5; done"
    machine.run(f"timeout 120 bash -c {shlex.quote(whole)}")
    # The user's programs have an environment of their own.
    machine.run("python3 -m venv /srv/work; /srv/work/bin/pip install --quiet numpy")
    path = "export PATH=/srv/work/bin:$PATH"
    said = machine.run(f"mkdir -p /srv/user\n{path}\n{logins[0]}\n{program}", **user)
    assert "labels equal to NumPy's: 100" in said
    assert "gpupool-" in machine.run(invite)


def test_uv_installs_it_and_runs_programs(machine: Machine) -> None:
    page = ROOT / "docs" / "frameworks" / "environments.md"
    install, use = next(each for each in blocks_of(page) if each.kind == "followed").script.split(
        "\n"
    )[:2]
    mine = {"HOME": "/srv/uv", "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}
    machine.run("python3 -m venv /opt/uv\n/opt/uv/bin/pip install --quiet uv", **mine)
    path = "export PATH=/opt/uv/bin:$PATH"
    first = START[0].script
    assert install.replace("/path/to/gpupool", ".") == first.splitlines()[0]
    assert "labels equal to NumPy's: 100" in machine.run(f"{path}\n{first}", **mine)
    work = machine.root / "srv" / "work-uv"
    work.mkdir()
    (work / "train.py").write_text((ROOT / "examples" / "kmeans.py").read_text())
    path += ":~/.local/bin"
    said = machine.run(f"{path}\ngpupool up\ncd /srv/work-uv\n{use}\ngpupool down", **mine)
    assert "labels equal to NumPy's: 100" in said
