"""Changes the mounts of a warm worker from outside, once its lease is known.

The worker cannot do it: Landlock forbids a process to mount, and holds since before its first
thread. So a thread of this process enters the worker's mount namespace, and ends there.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

_CLONE_FS, _CLONE_NEWNS = 0x200, 0x0002_0000
_MS_BIND, _MNT_DETACH = 4096, 2
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _AT_FDCWD = 1, 4, -100
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def may_enter(pid: int) -> bool:
    """Return whether this process may enter the mounts of a worker: that takes CAP_SYS_PTRACE."""
    try:
        os.close(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def narrow(pid: int, hidden: Iterable[str], shared_memory: Path | None) -> None:
    """Take device nodes out of a worker's private ``/dev``, and give it its lease's memory.

    Blocks, for about a millisecond.

    Args:
        pid: of a worker with mounts of its own, which has not heard of any client.
        hidden: paths of nodes, which it may have.
        shared_memory: what it sees as ``/dev/shm``, a directory in there; None changes nothing.

    Raises:
        OSError: when something of it cannot be done; then it must not be used.
    """

    def work() -> None:
        for node in hidden:
            _hide(node)
        if shared_memory is not None:
            _bind(shared_memory, SHARED_MEMORY)

    _run_inside(pid, work)


def widen(pid: int, nodes: Iterable[str]) -> None:
    """Put device nodes of this process's ``/dev`` into a worker's private one.

    Blocks, for about a millisecond. Each node comes as a mount that is copied here and attached
    there (Linux 5.2): no mount of one namespace can be bound in another, and a node that was made
    there could not be opened, because the private ``/dev`` allows none of its own.

    Args:
        pid: of a worker with mounts of its own.
        nodes: paths below ``/dev``; what the worker has already stays.

    Raises:
        OSError: when something of it cannot be done; some nodes may be there then.
    """
    copies: dict[str, int] = {}
    try:
        for node in nodes:
            copies[node] = _copied(node)
        _run_inside(pid, lambda: [_attach(copy, Path(node)) for node, copy in copies.items()])
    finally:
        for copy in copies.values():
            os.close(copy)


def _run_inside(pid: int, work: Callable[[], object]) -> None:
    """Do something among the files of a worker, on a thread that ends there."""
    errors: list[OSError] = []

    def run() -> None:
        try:
            _enter(pid)
            work()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="worker-mounts")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _enter(pid: int) -> None:
    """Let this thread see the files of another process; all other threads stay where they are."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        own = os.stat("/proc/self/ns/mnt")
        if os.fstat(namespace).st_ino == own.st_ino:
            raise OSError(f"process {pid} has no mounts of its own")
        for result in (_libc().unshare(_CLONE_FS), _libc().setns(namespace, _CLONE_NEWNS)):
            if result != 0:
                raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(namespace)


def _bind(source: Path, target: Path) -> None:
    flags = ctypes.c_ulong(_MS_BIND)
    if _libc().mount(os.fsencode(source), os.fsencode(target), None, flags, None) != 0:
        raise OSError(ctypes.get_errno(), "mount", str(target))


def _copied(node: str) -> int:
    """Return a descriptor of a mount that shows a device node, and is nowhere yet."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    copy = _libc().syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(node), ctypes.c_uint(flags))
    if copy < 0:
        raise OSError(ctypes.get_errno(), "open_tree", node)
    return copy


def _attach(copy: int, place: Path) -> None:
    if place.exists():
        return
    place.parent.mkdir(mode=0o755, exist_ok=True)
    place.touch(mode=0)
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    if _libc().syscall(_MOVE_MOUNT, copy, b"", _AT_FDCWD, os.fsencode(place), flags) != 0:
        number = ctypes.get_errno()
        place.unlink()
        raise OSError(number, "move_mount", str(place))


def _hide(node: str) -> None:
    if not Path(node).exists():
        return
    if _libc().umount2(os.fsencode(node), _MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount", node)
    with contextlib.suppress(OSError):
        Path(node).unlink()
