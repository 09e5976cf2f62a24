"""Folders of ours in a temporary directory: locked while they are used, and removed after.

A program that was killed removes nothing. So each start removes the folders of this user that
nobody holds locked any more.
"""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from gpupool.remoting.host.remove_tree import remove_tree

ABANDONED_AFTER_S = 5.0
ABANDONED_COUNT_MAX = 1000
"""Folders that one start looks at."""


def make_folder(
    base: Path, prefix: str, *, keeps: Callable[[Path], bool] = lambda _folder: False
) -> tuple[Path, int]:
    """Return a new folder that only this user can enter, and the descriptor that holds it locked.

    Children that inherit the descriptor hold it too. Abandoned folders are removed before.
    """
    remove_abandoned(base, prefix, keeps)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_SH)
    return folder, held


@contextmanager
def lent_folder(
    prefix: str, *, keeps: Callable[[Path], bool] = lambda _folder: False
) -> Generator[Path]:
    """Lend a folder of ``make_folder`` in the temporary directory, and remove it after."""
    folder, held = make_folder(Path(tempfile.gettempdir()), prefix, keeps=keeps)
    try:
        yield folder
    finally:
        remove_tree(folder)
        os.close(held)


def remove_abandoned(base: Path, prefix: str, keeps: Callable[[Path], bool]) -> None:
    """Remove this user's folders whose program was killed: nobody holds their lock any more.

    A folder that is younger than ``ABANDONED_AFTER_S`` may not be locked yet. One of which
    ``keeps`` says that it has what its user would miss stays.
    """
    for path in islice(base.glob(f"{prefix}*"), ABANDONED_COUNT_MAX):
        with suppress(OSError):
            status = path.lstat()
            is_young = time.time() - status.st_mtime < ABANDONED_AFTER_S
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or is_young:
                continue
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not keeps(path):
                    remove_tree(path)
            finally:
                os.close(held)
