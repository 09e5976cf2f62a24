"""Compiled kernels and images of each user, kept between sessions.

Only the first session compiles a kernel, and only the first one needs a module's image from its
client. Both are code: their author decides what runs in the worker that loads them. So no worker
ever writes here. The host gives each worker the files that workers of its own user have left, and
takes a worker's files once no process of it is alive. One user's kernels reach no other user.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpupool.remoting.host.remove_tree import remove_tree

DIRECTORY_NAME = "kernels"
FILE_SIZE_MAX = 4 << 20
USER_SIZE_MAX = 64 << 20
"""Bytes of one user's kernels; CuPy's are 5 to 100 KiB each."""

USER_FILE_COUNT_MAX = 2048
USER_COUNT_MAX = 64

IMAGE_DIRECTORY_NAME = "images"
IMAGE_SIZE_MAX = 64 << 20
USER_IMAGE_SIZE_MAX = 256 << 20
"""Bytes of one user's images; those of PyTorch's start are 10 to 60 MB."""

USER_IMAGE_COUNT_MAX = 512
IMAGE_USER_COUNT_MAX = 16
COPIED_SIZE_MAX = 64 << 20
"""Bytes that a worker gets at most where the host's files cannot be linked to: they are copied."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_UNFINISHED = "tmp"
"""How the names of Python's temporary files begin, which CuPy renames when they are whole."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a cache keeps, and whether a file's name is the SHA-256 of its content."""

    file_size: int = FILE_SIZE_MAX
    user_size: int = USER_SIZE_MAX
    user_count: int = USER_COUNT_MAX
    user_file_count: int = USER_FILE_COUNT_MAX
    by_content: bool = False


DEFAULT = Limits()
IMAGES = Limits(
    IMAGE_SIZE_MAX, USER_IMAGE_SIZE_MAX, IMAGE_USER_COUNT_MAX, USER_IMAGE_COUNT_MAX, by_content=True
)


class KernelCache:
    """A directory for each user under one that only the host may enter. Thread-safe."""

    def __init__(
        self, directory: Path, log: Callable[[str], None], limits: Limits | None = None
    ) -> None:
        self._directory = directory
        self._log = log
        self._limits = limits or DEFAULT
        self._lock = threading.Lock()

    def give(self, user: str, target: Path, uid: int) -> None:
        """Put the kernels of ``user`` into a worker's own cache, before it hears of any client.

        Args:
            user: whose session the worker is about to serve.
            target: the cache directory of that worker, made if it is not there.
            uid: the worker's own, or -1 if it has the host's. With its own uid it gets links to
                the host's files, which it can read and not change; otherwise copies.
        """
        try:
            with self._lock:
                self._give(self._of(user), target, uid)
        except OSError as error:
            self._log(f"kernels that were compiled before cannot be used: {error}")

    def take(self, user: str, source: Path, uid: int) -> None:
        """Keep the kernels that a dead worker of ``user`` has left in its own cache.

        The worker may have made links and pipes there. So only plain files with a single link are
        read, by descriptors, and each name is taken once.
        """
        try:
            with self._lock:
                self._take(self._of(user), source, uid)
        except OSError as error:
            self._log(f"the kernels that a worker compiled cannot be kept: {error}")

    def take_later(self, user: str, source: Path, uid: int) -> None:
        """Keep the kernels of a dead worker later, on a thread: large files take long to read."""
        aside = source.parent.with_name(f"{source.parent.name}-{source.name}")
        try:
            source.rename(aside)
        except OSError:
            return  # it has left none

        def run() -> None:
            self.take(user, aside, uid)
            remove_tree(aside, self._log)

        threading.Thread(target=run, daemon=True).start()

    def _of(self, user: str) -> Path:
        return self._directory / hashlib.sha256(user.encode()).hexdigest()[:32]

    def _give(self, own: Path, target: Path, uid: int) -> None:
        if not own.is_dir():
            return
        os.utime(own)  # of several users, the one whose kernels were unused longest loses them
        if not target.exists():
            target.mkdir(mode=0o700)
            if uid >= 0:
                os.chown(target, uid, -1)
        copied = 0
        for path in _newest_first(own):
            made = target / path.name
            if uid >= 0:
                with contextlib.suppress(OSError):  # another file system: a copy does
                    os.link(path, made)
                    continue
            copied += path.stat().st_size
            if copied > COPIED_SIZE_MAX:
                break
            shutil.copyfile(path, made)
            made.chmod(0o644)

    def _take(self, own: Path, source: Path, uid: int) -> None:
        try:
            directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            names = sorted(os.listdir(directory))[: self._limits.user_file_count]
            wanted = [name for name in names if _wanted(name) and not (own / name).exists()]
            if not wanted:
                return
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory.chmod(0o700)
            for name in wanted:
                data = _read(directory, name, uid, self._limits.file_size)
                if data and (not self._limits.by_content or _sha256(data) == name):
                    _write(own, name, data)
        finally:
            os.close(directory)
        keep_newest(own, self._limits)
        self._forget_users()

    def _forget_users(self) -> None:
        users = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in users[: -self._limits.user_count]:
            remove_tree(path, self._log)


def keep_newest(folder: Path, limits: Limits = DEFAULT) -> None:
    """Remove the oldest files of a folder until the rest is within the limits of one user."""
    size = 0
    for count, path in enumerate(_newest_first(folder), 1):
        size += path.stat().st_size
        if size > limits.user_size or count > limits.user_file_count:
            path.unlink()


def _wanted(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not name.startswith(_UNFINISHED)


def _read(directory: int, name: str, uid: int, size_max: int) -> bytes:
    """Return the bytes of one plain file; none if it is anything else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError:
        return b""  # a link, or something that cannot be opened
    try:
        found = os.fstat(descriptor)
        plain = stat.S_ISREG(found.st_mode) and 0 < found.st_size <= size_max
        # A second link would be a file of somebody else's: the worker's own have one.
        if not plain or found.st_nlink != 1 or (uid >= 0 and found.st_uid != uid):
            return b""
        return os.pread(descriptor, size_max, 0)
    finally:
        os.close(descriptor)


def _write(own: Path, name: str, data: bytes) -> None:
    temporary = own / f".{name}"
    temporary.unlink(missing_ok=True)
    temporary.write_bytes(data)
    temporary.chmod(0o444)
    temporary.replace(own / name)


def _newest_first(own: Path) -> list[Path]:
    return sorted(own.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
