"""Files that nobody else may read: written whole or not at all, and synced."""

import os
from pathlib import Path

from gpupool.pool.errors import StorageError


def write_private(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` with mode 0600, replacing what is there only once all is written.

    Raises:
        StorageError: when the disk is full, or the folder refuses.
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
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}", why=(error.strerror or str(error)).lower()
        ) from error
