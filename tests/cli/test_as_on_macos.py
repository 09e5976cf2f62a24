"""The client on a machine without Linux-only features, as on macOS.

Not macOS: the same kernel, in processes from which the names are taken that Python lacks there.
"""

import os
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import LivePool

pytestmark = pytest.mark.long  # CI runs the client on macOS itself, too

# Python runs this at its start, in `gpupool` and in the program. What is imported first is what
# chooses by the real platform for good reason: trio's event loop, and C modules behind names.
AS_ON_MACOS = """
import os, select, signal, socket, ssl, subprocess, sys, trio, trio.socket

for module, names in {
    os: "pidfd_open posix_fallocate memfd_create setresuid setresgid getresuid getresgid O_PATH"
        " sched_setaffinity sched_getaffinity prctl eventfd splice getrandom MFD_CLOEXEC",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT",
    socket: "TCP_KEEPIDLE TCP_USER_TIMEOUT SO_PEERCRED SO_BINDTODEVICE AF_NETLINK AF_PACKET"
            " MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL SO_DOMAIN SO_PROTOCOL",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
open(os.environ["SEEN_BY"], "a").write(sys.argv[0] + "\\n")
"""

PROGRAM = """
import sys
import cupy

a = cupy.arange(1_000_000, dtype=cupy.float32)
assert float((a * 2).sum() / a.sum()) == 2.0
assert (a.get()[-3:] == [999997, 999998, 999999]).all()
print("good on", sys.platform, cupy.cuda.runtime.getDeviceCount())
raise SystemExit(7)
"""


def test_run_without_what_only_linux_has(live_pool: LivePool, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AS_ON_MACOS)
    seen = tmp_path / "seen"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "SEEN_BY": str(seen)}
    program = [sys.executable, "-c", PROGRAM]
    done = live_pool.run("run", "-n", "2", "-p", "0.5", "--", *program, env=env)
    assert (done.returncode, done.stdout) == (7, "good on darwin 2\n"), done.stderr
    assert set(seen.read_text().split()) == {"-m", "-c"}, "gpupool and the program"
    status = live_pool.run("status", env=env)
    assert status.returncode == 0, status.stderr
    assert "quorum" in status.stdout
