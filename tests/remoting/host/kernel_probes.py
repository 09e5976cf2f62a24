"""Rights of a process under this kernel, probed without any code of the workers' confinement.

A property that a worker does not claim is skipped by its test only where the kernel cannot give it.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest

ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")

_NETWORK = """
import ctypes, sys
sys.exit(ctypes.CDLL(None).unshare(0x40000000) != 0)
"""

_MOUNTS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
def mount(source, target, kind, flags):
    return libc.mount(source, target, kind, ctypes.c_ulong(flags), None) == 0
ok = libc.unshare(0x20000) == 0 and mount(None, b"/", None, 16384 | 1 << 18)
sys.exit(not (ok and mount(b"tmpfs", b"/dev", b"tmpfs", 0) and os.listdir("/dev") == []))
"""

_ENTERS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
ready, go_on = os.pipe(), os.pipe()
pid = os.fork()
if not pid:
    ok = libc.unshare(0x20000) == 0
    os.write(ready[1], b"1" if ok else b"0")
    os.read(go_on[0], 1)
    os._exit(0)
ok = os.read(ready[0], 1) == b"1"
if ok:
    file = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    ok = libc.setns(file, 0x20000) == 0
os.write(go_on[1], b"1")
os.waitpid(pid, 0)
sys.exit(not ok)
"""


_ATTACHES = """
import ctypes, socket, struct
keep = struct.pack("=HBBI", 6, 0, 0, 0xFFFFFFFF)
code = ctypes.create_string_buffer(keep, 8)
filter = struct.pack("=H6xQ", 1, ctypes.addressof(code))
socket.socket().setsockopt(socket.SOL_SOCKET, 26, filter)
"""


def _runs(code: str) -> bool:
    done = subprocess.run([sys.executable, "-ISc", code], capture_output=True, check=False)
    return done.returncode == 0


def landlock_version() -> int:
    import ctypes

    return max(0, ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def filters() -> bool:
    """Return whether the kernel has system call filters, on a machine with known call numbers."""
    return ACTIONS.exists() and platform.machine() in {"x86_64", "aarch64"}


def mounts_from_outside() -> bool:
    """Return whether this process can change the mounts of another."""
    return _runs(_MOUNTS) and _runs(_ENTERS)


def lowers_priority() -> bool:
    return _runs("import os; os.nice(1)")


PROBES: dict[str, Callable[[], bool]] = {
    "no-network": lambda: _runs(_NETWORK),
    "no-tcp": lambda: landlock_version() >= 4,
    "held-connections": lambda: _runs(_ATTACHES) or os.geteuid() == 0,
    "lease-addresses": lambda: os.geteuid() == 0 and "user_notif" in ACTIONS.read_text(),
    "low-priority": lowers_priority,
    "private-folders": lambda: _runs(_MOUNTS),
    "private-devices": mounts_from_outside,
    "private-shared-memory": (
        lambda: (
            "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
            and os.path.isdir("/dev/shm")
            and mounts_from_outside()
        )
    ),
}


def must_claim(
    name: str,
    claimed: Collection[str],
    reasons: Iterable[str] = (),
    *,
    can: Callable[[], bool] | None = None,
) -> None:
    """Fail where a worker lacks a property that this kernel can give; skip where it cannot.

    Args:
        name: of the property.
        claimed: by the worker.
        reasons: what the server says of that.
        can: asks the kernel; None: as in ``PROBES``.
    """
    if name in claimed:
        return
    why = f"no {name} here: " + "; ".join(reasons)
    if (can or PROBES[name])():
        pytest.fail("this kernel can, and yet there is " + why)
    pytest.skip(why)
