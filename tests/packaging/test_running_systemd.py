"""The systemd units run a pool: on a separate systemd, with emulated GPUs, as root, in 90 s.

It has its own mounts, processes and network, on a copy of this machine's root that is thrown away
(``boot_systemd.sh``), with cgroups v1 or v2. It needs a kernel with seccomp and Landlock.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.packaging.conftest import ROOT, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts and namespaces"),
    pytest.mark.skipif(not Path("/lib/systemd/systemd").exists(), reason="needs systemd"),
    pytest.mark.skipif(
        not any(
            Path("/sys/fs/cgroup", name).exists() for name in ("systemd", "cgroup.controllers")
        ),
        reason="needs control groups",
    ),
]

BOOT = Path(__file__).with_name("boot_systemd.sh")
EMULATED = """[Service]
ExecStart=
ExecStart=/opt/gpupool/bin/gpupool join --log-format json --emulate 2:8G
"""
TRIAL = """[Unit]
Requires=basic.target gpupool.service
After=basic.target
AllowIsolate=yes
"""
PROGRAM = """
import cupy
a = cupy.arange(1000.0)
print(float((a * a).sum()), cupy.cuda.runtime.getDeviceCount())
"""
USE = """
export HOME=/root/trial PATH=/opt/gpupool/bin:$PATH; mkdir -p $HOME
until test -s /var/lib/gpupool/new-tokens.txt; do sleep 0.1; done
grep -A1 "As an operator" /var/lib/gpupool/new-tokens.txt | tail -1 | sh
gpupool run -n 1 -p 0.5 -- /opt/gpupool/bin/python /opt/program.py
gpupool doctor
systemctl kill --signal KILL --kill-who main gpupool
until gpupool status > /dev/null 2>&1; do sleep 0.2; done
gpupool run -n 2 -- /opt/gpupool/bin/python /opt/program.py
systemctl stop gpupool
while pgrep -f ^/opt/gpupool > /dev/null; do sleep 0.1; done
echo all ended
systemctl start gpupool
gpupool status | head -1
"""


@pytest.fixture
def boot_root(tmp_path: Path) -> Iterator[Path]:
    """Give a copy of this machine's root with gpupool in /opt, its units, and a target."""
    folder = tmp_path / "boot"
    folder.mkdir()
    run(BOOT, folder, "root")
    root = folder / "root"
    try:
        run("git", "clone", "--quiet", ROOT, root / "opt/source")
        shutil.rmtree(root / "opt/gpupool", ignore_errors=True)
        for step in (
            "/usr/bin/python3 -m venv /opt/gpupool",
            "/opt/gpupool/bin/python -m pip install --quiet '/opt/source[emulate]'",
            "id gpupool || useradd --system gpupool",
        ):
            run("unshare", "--mount", "chroot", root, "sh", "-c", f"mount -t proc p /proc; {step}")
        units = root / "etc/systemd/system"
        for path in (ROOT / "packaging").glob("gpupool*.s*"):
            shutil.copy(path, units)
        (units / "gpupool.service.d").mkdir()
        (units / "gpupool.service.d/emulated.conf").write_text(EMULATED)
        (units / "trial.target").write_text(TRIAL)
        (root / "opt/program.py").write_text(PROGRAM)
        yield folder
    finally:
        run("umount", "--lazy", root)
        run("umount", "--lazy", folder)


def test_the_units_run_a_pool(boot_root: Path) -> None:
    boot = subprocess.Popen([BOOT, boot_root, "boot"], stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not (first := children(boot.pid)) or name_of(first[0]) != "systemd":
            assert boot.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        inside = ["nsenter", "--target", str(first[0]), "--all", "--root", "--wd"]
        done = subprocess.run(
            [*inside, "timeout", "100", "bash", "-xc", USE],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        log = subprocess.run(
            [*inside, "journalctl", "--no-pager"], capture_output=True, text=True, check=False
        ).stdout
        assert "332833500.0 1" in done.stdout, done.stdout + done.stderr + log[-5000:]
        assert "332833500.0 2" in done.stdout, done.stdout + done.stderr + log[-5000:]
        assert "all ended" in done.stdout, done.stdout + done.stderr
        assert "quorum 1/1" in done.stdout, done.stdout
        assert "something went wrong" not in log, log[-5000:]
        for kept in ("system calls", "Landlock"):  # the units let workers confine themselves
            assert kept not in done.stdout, done.stdout
    finally:
        for pid in children(boot.pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)  # with all of its processes
        boot.wait(30)


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name_of(pid: int) -> str:
    """Return the name of a process; none of one that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
