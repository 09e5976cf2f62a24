"""Files and folders of this user: private, written whole or not at all, and synced.

A folder of ours in a temporary directory is locked while it is used, and removed after. A program
that was killed removes nothing. So each start removes the folders of this user that nobody holds
locked any more.

Files lie in the XDG folders, and in systemd's when it runs us.
"""

import contextlib
import errno
import fcntl
import os
import pwd
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from gpupool.pool.errors import StorageError
from gpupool.remoting.host.remove_tree import remove_tree

CONFIG_NAME = "gpupool.toml"


def _home_folder(variable: str, *fallback: str) -> Path:
    """Return the XDG folder named by ``variable``; a relative value is ignored, as XDG asks."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home().joinpath(*fallback)


def config_dir() -> Path:
    """Return the folder of the user's settings and credentials."""
    return _home_folder("XDG_CONFIG_HOME", ".config") / "gpupool"


def cache_dir() -> Path:
    """Return the folder of expendable files, such as names for completion."""
    return _home_folder("XDG_CACHE_HOME", ".cache") / "gpupool"


def state_dir() -> Path:
    """Return the folder of a server's identity and journal."""
    if given := os.environ.get("STATE_DIRECTORY", ""):
        return Path(given.split(":")[0])  # systemd separates several by colons
    return _home_folder("XDG_STATE_HOME", ".local", "state") / "gpupool"


def playground_dir() -> Path:
    """Return the folder of the pool that ``gpupool up`` starts."""
    return _home_folder("XDG_STATE_HOME", ".local", "state") / "gpupool-up"


def program() -> str:
    """Return the command that a user types to run this very gpupool."""
    own = Path(sys.executable).parent / "gpupool"
    if (found := shutil.which("gpupool")) and Path(found).resolve() == own.resolve():
        return "gpupool"
    if not own.is_file():
        return f"{sys.executable} -m gpupool.cli.main"
    try:
        return str(own.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        return str(own)


def runtime_dir() -> Path | None:
    """Return the user's private folder for sockets, or None when the system gives none."""
    value = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(value) if value.startswith("/") and os.path.isdir(value) else None


def config_files() -> tuple[Path, ...]:
    """Return the files that settings are read from, the strongest first."""
    files = (config_dir() / "config.toml", Path("/etc/gpupool/config.toml"))
    try:
        return (Path.cwd() / CONFIG_NAME, *files)
    except FileNotFoundError:
        return files  # the folder that we are in was removed


def default_name() -> str:
    """Return a name for this server: the host's, without its domain."""
    name = os.uname().nodename.split(".")[0]
    clean = "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-_")
    return clean[:63] or "server"


def user_name() -> str:
    """Return the name of this process's user, even when no account has the uid."""
    for variable in ("LOGNAME", "USER"):
        if value := os.environ.get(variable):
            return value
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid{os.getuid()}"


SOCKET_PATH_LENGTH_MAX = 100
"""The system's limit is 104 on macOS and 108 on Linux, its closing zero included."""

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
    """Remove this user's folders of killed programs: nobody holds their lock any more.

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


FOLDER_PREFIX = "gpupool-run-"


def make_private_dir() -> tuple[Path, int]:
    """Return a new folder of `make_folder`, with a path short enough for a socket."""
    base = runtime_dir()
    if base is not None:
        base = base / "gpupool"
        try:
            base.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            base = None
    if base is None or len(os.fsencode(base)) > SOCKET_PATH_LENGTH_MAX - 30:
        base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > SOCKET_PATH_LENGTH_MAX - 30:
        base = Path("/tmp")  # noqa: S108  mkdtemp below makes a folder of our own in it
    return make_folder(base, FOLDER_PREFIX)


@contextmanager
def private_dir() -> Generator[Path]:
    """Lend a folder of `make_private_dir`, and remove it after."""
    folder, held = make_private_dir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


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
