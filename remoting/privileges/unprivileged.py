"""Makes this process an unprivileged user's for good, with few directories in its reach."""

import ctypes
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.remoting.host.spawn import closed_above
from gpupool.remoting.worker import namespaces, sandbox

_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP = 8, 24
_CHOWN, _SETGID, _SETUID, _NET_BIND = 0, 6, 7, 10
_LAST_CAPABILITY = 63
_CAPABILITIES_VERSION = 0x2008_0522

_RESOLVERS = (
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd"),
    *("/run/opengl-driver", "/var/lib/nvidia"),
)
"""Files that the C library reads for name lookups, and NVIDIA's library when it is loaded."""


@dataclass(frozen=True, slots=True)
class User:
    """The user that a server becomes."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()  # supplementary, only what GPU device nodes ask for


def may_change_user() -> bool:
    """Return whether this process may become somebody else, and give files to them."""
    status = Path("/proc/self/status").read_text()
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "0 0")
    has = int(line.split()[1], 16)
    return all(has >> each & 1 for each in (_CHOWN, _SETGID, _SETUID))


def bring_within_reach(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Let any user reach these directories although one above them is closed; return whether.

    This process gets mounts of its own, if that is needed. The directories have no links in them.
    """
    closed = [
        [str(path) for path in paths if closed_above(path) is not None]
        for paths in (readable, writable)
    ]
    return not any(closed) or namespaces.expose(*closed)


def become(user: User, *, low_ports: bool) -> None:
    """Become ``user``, without any privilege that could be had back.

    Must be called while the process has one thread.

    Args:
        user: whom to become.
        low_ports: whether to keep the right to listen below port 1024, and nothing else.

    Raises:
        PermissionError: when the change did not happen, or could be taken back.
    """
    for number in range(_LAST_CAPABILITY + 1):
        if number != _NET_BIND or not low_ports:
            _prctl(_PR_CAPBSET_DROP, number)
    if low_ports:
        _prctl(_PR_SET_KEEPCAPS, 1)
    sandbox.become(user.uid, user.gid, user.groups)
    kept = 1 << _NET_BIND if low_ports else 0
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    sets = struct.pack("=6I", kept, kept, 0, 0, 0, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, sets) != 0:
        raise PermissionError("the server could not give up its privileges")
    hide()


def hide() -> None:
    """Get no privileges from programs, and show this process to no other of its user."""
    _prctl(sandbox.PR_SET_NO_NEW_PRIVS, 1)
    sandbox.hide_memory()


def restrict_files(readable: Sequence[Path], writable: Sequence[Path]) -> bool:
    """Leave this process the system's files and these directories; return whether Landlock could.

    Must be called while the process has one thread.
    """
    holds = sandbox.restrict_files(
        (*_RESOLVERS, *map(str, readable)),
        tuple(map(str, writable)),
        network=False,
        abstract=False,
    )
    return "landlock" in holds


def _prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(argument), zero, zero, zero)
