"""Removal of a directory that a hostile process has filled.

``shutil.rmtree`` recurses in Python 3.11 and 3.12: 1,000 levels end in a ``RecursionError``, and in
each version it opens a descriptor for each level. This one keeps two descriptors. It renames every
directory that it finds below the first level up to the first level, so that nothing is ever deep.
It goes through descriptors and follows no link.
"""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PREFIX = ".removed-"
_ATTEMPT_COUNT_MAX = 3
"""Passes over one directory: a process that is still writing there may add entries meanwhile."""


def remove_tree(path: Path, log: Callable[[str], None] = lambda _text: None) -> bool:
    """Remove a directory and all in it; return whether it is gone.

    Failures are logged, three at most, and raise nothing: this is litter, and no reason to stop.

    Args:
        path: the directory. A link is removed itself, and its target is left alone.
        log: takes one line for each failure.
    """
    failures: list[str] = []
    try:
        _remove(path, failures)
    except OSError as error:
        failures.append(f"{path}: {error}")
    for failure in failures[:3]:
        log(f"cannot remove {failure}")
    return not os.path.lexists(path)


def _remove(path: Path, failures: list[str]) -> None:
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
    except FileNotFoundError:
        return
    top = _open(path, None)
    try:
        for _ in range(_ATTEMPT_COUNT_MAX):
            failures.clear()
            _empty(top, failures)
            with contextlib.suppress(OSError):
                path.rmdir()
                return
    finally:
        os.close(top)
    path.rmdir()  # says why it cannot be


def _empty(top: int, failures: list[str]) -> None:
    """Remove all entries of ``top``, after moving its directories' entries up into it."""
    number = 0
    while True:
        found = 0
        for name in os.listdir(top):
            try:
                if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                    os.unlink(name, dir_fd=top)
                    continue
                number = _flatten(top, name, number)
                os.rmdir(name, dir_fd=top)
                found += 1
            except FileNotFoundError:
                continue
            except OSError as error:
                failures.append(f"{name!r}: {error}")
        if not found:
            return


def _flatten(top: int, name: str, number: int) -> int:
    """Unlink the files of one directory and rename its directories up; return the next number."""
    inner = _open(name, top)
    try:
        for entry in os.listdir(inner):
            if not stat.S_ISDIR(os.lstat(entry, dir_fd=inner).st_mode):
                os.unlink(entry, dir_fd=inner)
                continue
            _make_accessible(entry, inner)
            while True:
                number += 1
                try:
                    os.rename(entry, f"{_PREFIX}{number}", src_dir_fd=inner, dst_dir_fd=top)
                    break
                except OSError as error:
                    # The worker may have made a directory of that name; an empty one is replaced.
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
        return number
    finally:
        os.close(inner)


def _open(name: str | Path, parent: int | None) -> int:
    """Return a descriptor of a directory, which its owner may have closed to himself."""
    try:
        descriptor = os.open(name, _FLAGS, dir_fd=parent)
    except PermissionError:
        _make_accessible(name, parent)
        return os.open(name, _FLAGS, dir_fd=parent)
    # Its entries can be renamed and unlinked only with all of these bits.
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o700)
    return descriptor


def _make_accessible(name: str | Path, parent: int | None) -> None:
    """Give a directory's owner all rights: only a writer of a directory may rename it."""
    if sys.platform != "linux":
        with contextlib.suppress(OSError, NotImplementedError):
            os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{held}", 0o700)
    finally:
        os.close(held)
