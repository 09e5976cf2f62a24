"""Gives a state directory to the server's new user, except for the privileged helper's part.

A directory may be that of a server that ran as root, or root may have written there since, by
``gpupool recover`` for one. Nothing here follows a link, and nothing is trusted because of where it
lies: a server that was taken over may have put it there.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from gpupool.remoting.host import kernel_cache, orphan_reaper
from gpupool.remoting.host.remove_tree import remove_tree

HELPER = "keeper"
"""The privileged helper's own part of a state directory: root's, and closed to the server."""

_MOVED = (
    kernel_cache.DIRECTORY_NAME,
    kernel_cache.IMAGE_DIRECTORY_NAME,
    orphan_reaper.FILE_NAME,
)
"""Names that lay in the state directory itself when the server was root."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEPTH_MAX = 8


def own_part(state: int) -> int:
    """Return a descriptor of the helper's part of a state directory, made if it is missing.

    Args:
        state: descriptor of the state directory.

    Raises:
        OSError: when it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(HELPER, 0o700, dir_fd=state)
    part = _open_own(state)
    if part < 0:
        # Somebody else's, or none: what is in there is not used.
        aside = f"{HELPER}-{secrets.token_hex(4)}"
        os.rename(HELPER, aside, src_dir_fd=state, dst_dir_fd=state)
        remove_tree(Path(f"/proc/self/fd/{state}/{aside}"))
        os.mkdir(HELPER, 0o700, dir_fd=state)
        part = _open_own(state)
        if part < 0:
            raise OSError(f"{HELPER} in the state directory is not root's")
    for name in _MOVED:
        _move(name, state, part)
    return part


def _open_own(state: int) -> int:
    try:
        part = os.open(HELPER, _DIRECTORY, dir_fd=state)
    except OSError:
        return -1
    status = os.fstat(part)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return part
    os.close(part)
    return -1


def _move(name: str, state: int, part: int) -> None:
    """Move a root server's remains into the privileged helper's part, if it owns them."""
    try:
        status = os.lstat(name, dir_fd=state)
    except FileNotFoundError:
        return
    plain = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
    if plain and status.st_uid == os.geteuid():
        with contextlib.suppress(OSError):  # It has one already.
            os.rename(name, name, src_dir_fd=state, dst_dir_fd=part)


def hand_over(directory: int, uid: int, gid: int, *, depth: int = 0) -> list[str]:
    """Give a directory and our files in it to another user; return the entries left out.

    Links are left out, and so are files with several names: one of those names may be elsewhere.
    Its own entry comes last, so that nobody enters before the rest is done, the first time.

    Args:
        directory: descriptor of it.
        uid: of the new owner.
        gid: of the new group.
        depth: how deep it lies; far more than a server makes is left out.
    """
    left: list[str] = []
    for name in os.listdir(directory):
        if depth == 0 and name == HELPER:
            continue
        try:
            kind = os.lstat(name, dir_fd=directory).st_mode
            if stat.S_ISDIR(kind) and depth < DEPTH_MAX:
                inner = os.open(name, _DIRECTORY, dir_fd=directory)
                try:
                    left += hand_over(inner, uid, gid, depth=depth + 1)
                finally:
                    os.close(inner)
            elif not stat.S_ISREG(kind) or not _give_file(name, directory, uid, gid):
                left.append(name)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(name)
    owner = os.fstat(directory).st_uid
    if owner == os.geteuid() or (depth == 0 and owner != uid):
        os.fchown(directory, uid, gid)
    return left


def remove_unused(path: Path, *others: str) -> None:
    """Remove a state directory that holds nothing but the helper's part and leftovers."""
    with contextlib.suppress(OSError):
        state = os.open(path, _DIRECTORY)
        try:
            if not set(os.listdir(state)) <= {HELPER, *others}:
                return
            part = _open_own(state)
            if part >= 0:
                for name in os.listdir(part):
                    os.unlink(name, dir_fd=part)
                os.close(part)
                os.rmdir(HELPER, dir_fd=state)
            for name in others:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=state)
        finally:
            os.close(state)
        path.rmdir()


def _give_file(name: str, directory: int, uid: int, gid: int) -> bool:
    """Give one file away, by the descriptor that was checked; return whether that is done."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == uid:
            return True
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return False
        if status.st_uid != os.geteuid():
            return False
        os.fchown(descriptor, uid, gid)
        return True
    finally:
        os.close(descriptor)
