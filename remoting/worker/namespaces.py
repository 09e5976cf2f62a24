"""Namespaces of a worker: a network without interfaces, and mounts that show it little.

All of this needs CAP_SYS_ADMIN, and is done before Landlock, which forbids a process to mount.
What depends on the lease is done later from outside, by ``host.worker_mounts``.
"""

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gpupool.remoting.protocol import mps_folders

_CLONE_NEWNS, _CLONE_NEWNET = 0x0002_0000, 0x4000_0000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE = 4096, 8192, 16384, 1 << 18
_MNT_DETACH = 2

STANDARD_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_STANDARD_LINKS = (
    *(("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")),
    *(("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")),
)

FOLDERS = ("/run", "/tmp", "/var/run", "/var/tmp")  # noqa: S108
"""Where programs of a machine have Unix sockets, which many of them leave open to all users."""

_DRIVERS_FOLDERS = (
    *("/run/nvidia-persistenced", "/run/nvidia-fabricmanager", "/run/nvidia-topologyd"),
    *("/run/nvidia-mps", "/run/opengl-driver"),
)
_VARIABLES = (
    "CUDA_PATH",
    "CUDA_HOME",
    "LD_LIBRARY_PATH",
    "GPUPOOL_NCCL",
    "PATH",
)
"""Variables with the files that the driver's and NCCL's libraries open, separated by colons, and
with the folders of compilers: some systems have these in ``/run``."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def own_network() -> bool:
    """Give this thread, and those that it starts, a network that reaches nothing.

    Sockets that are there already, or come as descriptors, go on; so do Unix sockets with paths.
    """
    return _libc().unshare(_CLONE_NEWNET) == 0


def join_network(descriptor: int) -> None:
    """Give this thread, and those that it starts, the network of another worker of the lease.

    CUDA's processes find one another by Unix sockets without paths, which belong to a network.

    Raises:
        OSError: when it is not let.
    """
    if _libc().setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def private_devices(nodes: Sequence[str], staging: Path) -> bool:
    """Replace ``/dev``, for this process, by one with the standard devices and ``nodes``.

    Args:
        nodes: paths below ``/dev``; what is not there is left out.
        staging: does not exist, and may be made: an empty directory to build it in.

    Returns:
        Whether that worked; if not, ``/dev`` is what it was.
    """
    libc = _libc()
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    mounted = False
    try:
        # Nothing below may reach the machine's own mounts.
        mount(libc, None, "/", None, _MS_REC | _MS_PRIVATE)
        staging.mkdir()
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        mount(libc, "tmpfs", str(staging), "tmpfs", flags, "mode=0755,size=1m")
        mounted = True
        for node in (*STANDARD_DEVICES, *nodes):
            _show(libc, node, staging / Path(node).relative_to("/dev"))
        for name, target in _STANDARD_LINKS:
            (staging / name).symlink_to(target)
        if Path("/dev/shm").is_dir():  # noqa: S108
            (staging / "shm").mkdir()
            mount(libc, "/dev/shm", str(staging / "shm"), None, _MS_BIND)  # noqa: S108
        mount(libc, str(staging), "/dev", None, _MS_MOVE)
    except OSError:
        if mounted:
            libc.umount2(os.fsencode(staging), _MNT_DETACH)
        return False
    finally:
        with contextlib.suppress(OSError):
            staging.rmdir()
    return True


def _show(libc: ctypes.CDLL, node: str, place: Path) -> None:
    if not Path(node).exists():
        return
    place.parent.mkdir(mode=0o755, exist_ok=True)
    place.touch(mode=0)
    mount(libc, node, str(place), None, _MS_BIND)


def expose(directories: Sequence[str], writable: Sequence[str] = ()) -> bool:
    """Let any uid of this process reach ``directories`` although one above them is closed.

    In a mount namespace of its own, this process sees an empty directory in place of the closed
    one, and in it nothing but ``directories``, read-only. Needs CAP_SYS_ADMIN.

    Args:
        directories: absolute, without links, and below a closed one.
        writable: the same for those that are not to be read-only.

    Returns:
        Whether that worked; if not, every directory is where it was.
    """
    libc = _libc()
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    paths = sorted({*directories, *writable})  # what lies inside another comes after it
    covers = sorted({str(_closed_above(Path(path))) for path in paths})

    def bring_back(opened: Mapping[str, int]) -> None:
        for path, descriptor in opened.items():
            if not Path(path).is_dir():  # within another of them
                Path(path).mkdir(mode=0o755, parents=True)
            mount(libc, f"/proc/self/fd/{descriptor}", path, None, _MS_BIND | _MS_REC)
            access = 0 if path in writable else _MS_RDONLY
            mount(libc, None, path, None, _MS_BIND | _MS_REMOUNT | access | _MS_NOSUID)

    return _cover(libc, covers, _MS_NOSUID | _MS_NODEV, paths, bring_back)


def _cover(
    libc: ctypes.CDLL,
    covers: Collection[str],
    flags: int,
    paths: Iterable[str],
    bring_back: Callable[[Mapping[str, int]], None],
) -> bool:
    """Put an empty folder over each of ``covers``, and have ``bring_back`` show ``paths`` there.

    The mounts are this process's own already. ``bring_back`` gets a descriptor of each path, as it
    was before. Returns whether that worked; if not, every folder is what it was.
    """
    covered: list[str] = []
    opened: dict[str, int] = {}
    try:
        # Nothing below may reach the machine's own mounts.
        mount(libc, None, "/", None, _MS_REC | _MS_PRIVATE)
        for path in paths:
            opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
        for cover in covers:
            mount(libc, "tmpfs", cover, "tmpfs", flags, "mode=0755,size=1m")
            covered.append(cover)
        bring_back(opened)
    except OSError:
        for cover in covered:
            libc.umount2(os.fsencode(cover), _MNT_DETACH)
        return False
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    return True


def needed_paths(own: Iterable[str]) -> list[str]:
    """Return the paths that a worker uses, possibly below ``FOLDERS``: see ``hide_folders``.

    Args:
        own: its directory, and those of the installation.
    """
    named = [part for name in _VARIABLES for part in os.environ.get(name, "").split(os.pathsep)]
    named += (*mps_folders.named_folder(), *mps_folders.default_folder())
    python = (sys.prefix, sys.base_prefix, sys.executable, *sys.path)
    return [path for path in (*own, *_DRIVERS_FOLDERS, *named, *python) if os.path.isabs(path)]


def hide_folders(kept: Iterable[str], folders: Iterable[str] = FOLDERS) -> bool:
    """Show this process, and those that it starts, nothing but ``kept`` in some folders.

    It keeps them from connecting to Unix sockets with paths, which neither Landlock nor a filter
    of system calls can do. The rest of the folders is empty and read-only.

    Args:
        kept: absolute paths; those that are not there, or lie elsewhere, change nothing.
        folders: absolute paths; those that are not there are left out.

    Returns:
        Whether that worked; if not, every folder is what it was.
    """
    covers = {os.path.realpath(folder) for folder in folders if os.path.isdir(folder)}
    covers = {each for each in covers if not any(_lies_in(each, other) for other in covers)}
    paths = _below(covers, kept)
    if any(path in covers or _lies_in(cover, path) for path in kept for cover in covers):
        return False
    libc = _libc()
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC

    def bring_back(opened: Mapping[str, int]) -> None:
        for path, descriptor in opened.items():
            _bring_back(libc, path, descriptor)
        for cover in covers:
            mount(libc, None, cover, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | flags)

    return _cover(libc, covers, flags, paths, bring_back)


def _below(covers: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Return the paths that lie in one of ``covers``; a folder comes before its contents.

    A path may go through links: its name is to be there afterwards, and what it leads to as well.
    """
    found = {each for path in paths for each in (os.path.normpath(path), os.path.realpath(path))}
    return sorted(
        each
        for each in found
        if os.path.exists(each) and any(_lies_in(each, cover) for cover in covers)
    )


def _bring_back(libc: ctypes.CDLL, path: str, descriptor: int) -> None:
    place = Path(path)
    if place.exists():  # within another of them
        return
    # A service's umask would shut the worker out of what lies above its directory.
    before = os.umask(0o022)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            place.mkdir(mode=0o755, parents=True)
        else:
            place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            place.touch(mode=0o644)
    finally:
        os.umask(before)
    mount(libc, f"/proc/self/fd/{descriptor}", path, None, _MS_BIND | _MS_REC)


def _lies_in(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def mount(
    libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str = ""
) -> None:
    """Mount something, or raise OSError."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(data) or None) != 0:
        raise OSError(ctypes.get_errno(), "mount", target)


def _closed_above(path: Path) -> Path:
    return [part for part in path.parents if not part.stat().st_mode & stat.S_IXOTH][-1]
