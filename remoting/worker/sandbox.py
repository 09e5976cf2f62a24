"""The sandbox of a worker: it gives up privileges, files and core dumps before it has a client.

Linux calls are made through ctypes, with their numbers from the kernel's headers
(``linux/prctl.h``, ``linux/landlock.h``, ``asm-generic/unistd.h``). Where the kernel lacks one, the
worker goes on without it, and does not claim it.
"""

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpupool.remoting.protocol import mps_folders

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

FILE_SIZE_MAX = 64 << 30
"""Far above any image or kernel; a file in memory counts as well, such as workers' shared
memory."""

DATA_FACTOR, DATA_SLACK = 3, 512 << 20
"""NumPy copies arrays to sort or transform them; the slack is for threads and buffers."""

DESCRIPTOR_COUNT_MAX = 4096
"""CUDA opens about 60 descriptors a GPU; a program of 16 GPUs stays far below."""

NICE = 10
"""Of workers in no control group with a weight: a tenth of the server's part of the processors."""

AUTOGROUP = Path("/proc/self/autogroup")
AUTOGROUP_TRIES, AUTOGROUP_PAUSE_S = 20, 0.1

PROCESS_COUNT_MAX = 2048
"""Processes and threads of one uid, which all workers of a lease share: 64 of them with 32 each, or
one with a thread for each of 2,000 that wait. CUDA starts some tens a GPU. Thousands of processes
that descend from one another wait for the same locks of the kernel: 8,192 took minutes to end."""

# The same numbers on every architecture, as all system calls added since 2019.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# CUDA names its threads by opening /proc/self/task/TID/comm with O_TRUNC; without that right
# cuInit fails with CUDA_ERROR_OPERATING_SYSTEM (seen on an H200, driver 580).
_USE = _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_SYSTEM_READABLE = (
    *(
        "/usr",
        "/lib",
        "/lib32",
        "/lib64",
        "/bin",
        "/sbin",
        "/etc",
        "/opt",
        "/sys",
        "/proc",
        "/nix/store",
    ),
    *("/run/nvidia-persistenced", "/run/nvidia-topologyd", "/run/opengl-driver"),
)

OOM_SCORE = Path("/proc/self/oom_score_adj")
OOM_SCORE_OF_SERVERS, OOM_SCORE_OF_WORKERS = -900, 500
"""When memory runs out, the kernel kills a worker, and not its server (proc(5))."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> bool:
    if sys.platform != "linux":
        return False
    zero = ctypes.c_ulong(0)
    return _libc().prctl(option, ctypes.c_ulong(argument), zero, zero, zero) == 0


def die_with_parent(parent_pid: int) -> None:
    """Tell the kernel to kill this process when the thread that started it ends.

    The setting is lost whenever the uid changes, so this is called again after that. A parent
    that died before the call is noticed by the changed parent id.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(3)


def lower_priority() -> bool:
    """Let the server have the processors first; return whether the kernel does.

    Where the kernel groups processes by session (``sched_autogroup_enabled``), it compares groups,
    and a nice value counts among the processes of one session alone (sched(7)). A worker has a
    session of its own, and is refused another by its filter of system calls.
    """
    try:
        os.nice(NICE)  # of this thread, and so of those that it starts
    except OSError:
        return False
    for _ in range(AUTOGROUP_TRIES):
        try:
            AUTOGROUP.write_text(str(NICE))
        except FileNotFoundError:
            return True  # This kernel has no such groups.
        except BlockingIOError:
            time.sleep(AUTOGROUP_PAUSE_S)  # The kernel takes ten a second of all ordinary users.
        except OSError:
            return False
        else:
            return True
    return False


def set_oom_score(score: int) -> None:
    """Set the OOM killer's score of this process and of its later children."""
    with contextlib.suppress(OSError):  # Less than before takes CAP_SYS_RESOURCE.
        OOM_SCORE.write_text(str(score))


def limit_resources(*, own_uid: bool) -> None:
    """Forbid core dumps, which would hold the client's data; bound descriptors and files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = FILE_SIZE_MAX if hard == resource.RLIM_INFINITY else min(FILE_SIZE_MAX, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = (
        DESCRIPTOR_COUNT_MAX if hard == resource.RLIM_INFINITY else min(DESCRIPTOR_COUNT_MAX, hard)
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if own_uid:
        # The limit counts every process of the uid, so it only makes sense for a uid of our own.
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESS_COUNT_MAX, PROCESS_COUNT_MAX))
        return
    _soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY:  # A quarter is left to whoever has the same uid.
        resource.setrlimit(resource.RLIMIT_NPROC, (hard * 3 // 4, hard * 3 // 4))


def limit_data(partition: int) -> None:
    """Bound the memory of this process, for a session with its arrays in that memory.

    Some calls make large results of small arguments, and the size is known only afterwards. A
    session with CUDA has no such bound, because CUDA reserves far more addresses than it uses.

    Args:
        partition: bytes of the session's partitions.
    """
    status = Path("/proc/self/status").read_text()
    has = next((line for line in status.splitlines() if line.startswith("VmData:")), None)
    if has is None:
        return
    most = int(has.split()[1]) * 1024 + DATA_FACTOR * partition + DATA_SLACK
    _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def keep_descendants() -> bool:
    """Stay an ancestor of all processes that come from this one, also when a parent has ended.

    The host tells a dead worker's processes from those of the lease's other workers by that.
    """
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> bool:
    """Make setuid programs and file capabilities powerless; return whether the kernel agreed."""
    _prctl(PR_SET_NAME, _name_address(b"gpupool-worker"))
    return _prctl(PR_SET_NO_NEW_PRIVS, 1)


_name_kept: list[object] = []


def _name_address(name: bytes) -> int:
    buffer = ctypes.create_string_buffer(name[:15])
    _name_kept[:] = [buffer]
    return ctypes.addressof(buffer)


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Change to another user for good, in every thread (glibc does that for setresuid).

    Raises:
        PermissionError: when the change did not happen, or could be taken back.
    """
    os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    with contextlib.suppress(PermissionError):
        os.setresuid(0, 0, 0)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise PermissionError("the worker could not give up its privileges")


def drop_capabilities() -> bool:
    """Drop all capabilities of root but the right to read files, which imports may need.

    A worker that could not get a uid of its own calls this while it has one thread: it holds for
    the calling thread and those that it starts later. After ``forbid_new_privileges`` no program
    that it starts gets a capability back.
    """
    version = 0x2008_0522  # _LINUX_CAPABILITY_VERSION_3 of linux/capability.h: two words each
    header = struct.pack("=Ii", version, 0)
    if sys.platform != "linux":
        return False
    # CAP_DAC_READ_SEARCH, or nothing where a service manager has taken it away.
    sets = (struct.pack("=6I", kept, kept, 0, 0, 0, 0) for kept in (1 << 2, 0))
    return any(_libc().capset(header, data) == 0 for data in sets)


def hide_memory() -> bool:
    """Keep other processes of the same user from reading this one (ptrace, /proc/PID/mem)."""
    return _prctl(PR_SET_DUMPABLE, 0)


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 where it has none."""
    if sys.platform != "linux":
        return 0
    nothing = ctypes.c_size_t(0)
    found = _libc().syscall(_LANDLOCK_CREATE_RULESET, None, nothing, ctypes.c_uint32(1))
    return max(0, found)


def restrict_files(
    readable: Sequence[str],
    writable: Sequence[str],
    devices: Sequence[str] | None = None,
    *,
    network: bool = True,
    abstract: bool = True,
    connects: bool = False,
    ports: Sequence[int] = (),
    private: Iterable[str] = (),
    cuda: bool = True,
) -> tuple[str, ...]:
    """Leave this process the operating system and the given paths only, by Landlock.

    Must be called while the process has one thread: it holds for that and those that it starts.

    Args:
        readable: directories beside the operating system's.
        writable: directories that are the process's own.
        devices: the device nodes that it may use; None: all of ``/dev``.
        network: whether it is to be kept from listening and connecting by TCP.
        connects: whether it may connect all the same.
        ports: first and last of the TCP ports on which it may listen and connect all the same.
        abstract: whether it is to be kept from others' Unix sockets that have no path.
        private: paths below readable ones that are not to be read.
        cuda: whether it writes what CUDA does, in ``/dev/shm`` and about itself.

    Returns:
        Which restrictions hold; none where the kernel has no Landlock.
    """
    version = landlock_version()
    if version < 1:
        return ()
    libc = _libc()
    network, abstract = network and version >= 4, abstract and version >= 6
    handled = _handled_rights(version)
    tcp = (_BIND_TCP | (0 if connects else _CONNECT_TCP)) if network else 0
    scoped = _SCOPE_SIGNAL | (_SCOPE_ABSTRACT_SOCKET if abstract else 0) if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", handled, tcp, scoped)[:size]
    ruleset = libc.syscall(
        _LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return ()
    try:
        own = (*writable, "/dev/shm") if cuda else writable  # noqa: S108
        for paths, rights in (
            (without((*_SYSTEM_READABLE, *readable), private), _READ),
            (("/dev",) if devices is None else devices, _USE),
            (_written_by_cuda() if cuda else (), _USE),
            (("/dev",), _READ_DIR),
            (own, handled),
        ):
            for path in paths:
                _allow(libc, ruleset, path, rights & handled)
        if network and ports:
            _allow_ports(libc, ruleset, *ports)
        if libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) != 0:
            return ()
    finally:
        os.close(ruleset)
    holds = (
        ("landlock", True),
        ("no-tcp", network and not connects and not ports),
        ("few-tcp-ports", network and bool(ports)),
        ("no-abstract-sockets", abstract),
        ("own-signals", version >= 6),
    )
    return tuple(name for name, held in holds if held)


def _written_by_cuda() -> tuple[str, ...]:
    """In the first of them a process could take back its own priority, and its memory's."""
    return ("/proc/self", "/run/nvidia-mps", *mps_folders.default_folder())


def without(paths: Iterable[str], private: Iterable[str]) -> Iterator[str]:
    """Yield paths, or their entries outside of private paths; links among these are skipped."""
    hidden = {os.path.realpath(path) for path in private}
    for real in map(os.path.realpath, paths):
        if not any(f"{each}/".startswith(os.path.join(real, "")) for each in hidden):
            yield real
        elif real not in hidden:
            with contextlib.suppress(OSError), os.scandir(real) as entries:
                yield from without((each.path for each in entries if not each.is_symlink()), hidden)


def _handled_rights(version: int) -> int:
    rights = (1 << 13) - 1
    if version >= 2:
        rights |= 1 << 13  # rename and link across directories
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEV
    return rights


def _allow_ports(libc: ctypes.CDLL, ruleset: int, first: int, last: int) -> None:
    """Allow ports, and port 0, for which the kernel chooses one in its ephemeral range."""
    kind, none = ctypes.c_uint32(_RULE_NET_PORT), ctypes.c_uint32(0)
    for port in (0, *range(first, last + 1)):
        rule = struct.pack("=QQ", _BIND_TCP | (_CONNECT_TCP if port else 0), port)
        libc.syscall(_LANDLOCK_ADD_RULE, ruleset, kind, rule, none)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # A path that does not exist needs no rule.
    try:
        if not Path(path).is_dir():
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        libc.syscall(_LANDLOCK_ADD_RULE, ruleset, ctypes.c_uint32(_RULE_PATH_BENEATH), rule, 0)
    finally:
        os.close(descriptor)
