"""The file operations of consensus, behind a Protocol that the simulator replaces."""

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpupool.pool.errors import NoRoomError, StorageError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Disk(Protocol):
    """One flat directory of files. Every method may raise ``OSError``.

    A power loss, simulated or not, may undo two things. Bytes that were appended or written since
    the last ``sync`` of their file may be lost, wholly or page by page. A ``rename`` or ``remove``
    is durable only after ``sync_directory``. A name read after ``rename`` refers to the content of
    the renamed file.
    """

    def names(self) -> Sequence[str]:
        """Return the names of all files, sorted."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file's whole content; raises ``FileNotFoundError``."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of an existing file; not durable before ``sync``.

        What a failed call has written is no part of the file for this process: the next one
        writes over it.
        """
        ...

    def write(self, name: str, data: bytes) -> None:
        """Create a file, or replace its content; neither atomic nor durable."""
        ...

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Overwrite bytes within an existing file; the size stays; not durable before ``sync``."""
        ...

    def sync(self, name: str) -> None:
        """Make a file's content durable."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, atomically replacing a file of that name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file."""
        ...

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""
        ...

    def reserve(self, name: str, size: int) -> None:
        """Make sure that ``name`` occupies ``size`` bytes of disk."""
        ...


class storage_errors:
    """Turn ``OSError`` into a ``StorageError`` that names the failed operation.

    It is a ``NoRoomError`` where the disk is full.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, OSError):
            return
        full = error.errno in NO_ROOM
        hint = "free some disk space" if full else "check the disk"
        raise (NoRoomError if full else StorageError)(
            self._what,
            why=error.strerror or str(error),
            hint=f"{hint}, then start the server again",
        ) from error


AHEAD_BYTES = 1 << 20
"""Bytes allocated behind the appended data: thousands of small batches."""

_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync.


@dataclass(slots=True)
class _OpenFile:
    descriptor: int
    end: int
    room: int  # what is allocated, zeros behind the end


class FileDisk:
    """A real directory, locked against a second process. Blocking; takes well under 1 ms a call.

    The files are private to the user (mode 0600), for they hold the whole table. One that is
    appended to is longer than its content by up to ``AHEAD_BYTES`` zeros: where its size changes,
    a sync waits for the file system's own journal too. ``close`` cuts them off.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, _OpenFile] = {}
        with storage_errors(f"the directory {directory} cannot be used"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._directory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._directory_fd)
            raise StorageError(
                f"the directory {directory} is in use",
                why="another server process holds it",
                hint="stop the other process, or choose another state directory",
            ) from error

    def close(self) -> None:
        """Close every file and let the lock go; harmless when repeated."""
        for name, file in list(self._files.items()):
            if file.room > file.end:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.descriptor, file.end)
            self._forget(name)
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def names(self) -> Sequence[str]:
        """Return the names of all files, sorted."""
        return sorted(os.listdir(self._directory_fd))

    def read(self, name: str) -> bytes:
        """Return a file's whole content; of an earlier process's, zeros may follow it."""
        data = (self._directory / name).read_bytes()
        return data[: self._files[name].end] if name in self._files else data

    def append(self, name: str, data: bytes) -> None:
        """Write all of ``data`` at the end, however often the kernel takes only a part."""
        file = self._open(name)
        if file.end + len(data) > file.room:
            _allocate(file, len(data) + AHEAD_BYTES)
        self._write_on(file, data)

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file."""
        self._forget(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o600, dir_fd=self._directory_fd))
        self._write_on(self._open(name), data)

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Replace bytes by one write."""
        os.pwrite(self._open(name).descriptor, data, offset)

    def sync(self, name: str) -> None:
        """Make the content durable; ``fdatasync`` also writes the size, which is all we need."""
        _sync_data(self._open(name).descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename; an open descriptor goes with its file."""
        os.rename(old, new, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)
        self._forget(new)
        if old in self._files:
            self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._forget(name)
        os.unlink(name, dir_fd=self._directory_fd)

    def sync_directory(self) -> None:
        """Make renames durable."""
        os.fsync(self._directory_fd)

    def reserve(self, name: str, size: int) -> None:
        """Allocate blocks; a sparse file would reserve nothing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._directory_fd)
        try:
            if sys.platform != "darwin":
                os.posix_fallocate(descriptor, 0, size)
            elif os.fstat(descriptor).st_size < size:
                os.write(descriptor, bytes(size))
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> _OpenFile:
        file = self._files.get(name)
        if file is None:
            descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._directory_fd)
            size = os.fstat(descriptor).st_size
            file = self._files[name] = _OpenFile(descriptor, size, size)
        return file

    def _write_on(self, file: _OpenFile, data: bytes) -> None:
        view, end = memoryview(data), file.end
        while view:
            count = os.pwrite(file.descriptor, view, end)
            view, end = view[count:], end + count
        file.end, file.room = end, max(end, file.room)

    def _forget(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            os.close(file.descriptor)


def _allocate(file: _OpenFile, size: int) -> None:
    """Make room behind the end; where that cannot be, each write makes its own."""
    if sys.platform == "darwin":
        return
    with contextlib.suppress(OSError):
        os.posix_fallocate(file.descriptor, file.end, size)
        file.room = file.end + size
