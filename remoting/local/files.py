"""Files that only their owner may read: written whole or not at all, and synced."""

import contextlib
import errno
import os
from pathlib import Path

from gpupool.pool.errors import StorageError


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``, with mode 0600, once all of it is on the disk.

    Raises:
        OSError: when the disk is full, or the folder refuses.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # where the folder is none, for example
            fresh.unlink(missing_ok=True)
        raise
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # or a power loss could bring the former file back
        finally:
            os.close(folder)
    except OSError as error:
        # Some file systems sync no folders, and a folder may be writable and not readable.
        if error.errno not in (errno.EINVAL, errno.EACCES):
            raise


def write_private(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of a file that the user named, as `replace_file`.

    A link stays one: what it leads to is replaced. Into what is no file, such as a pipe or
    ``/dev/stdout``, it is written.

    Raises:
        StorageError: when the disk is full, or the folder refuses.
    """
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            with path.open("wb", buffering=0) as opened:
                view = memoryview(data)
                while view:
                    view = view[opened.write(view) :]
            return
        replace_file(path, data)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StorageError(f"cannot write {path}", why=why) from error
