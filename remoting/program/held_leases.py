"""The records of leases that ``gpupool alloc`` holds on this machine: written, found, cleaned up.

A holder has one file, ``LEASE-CLUSTER.json``, and the socket of its agent. It keeps a lock on the
file for as long as it lives, so a file without a lock belongs to a holder that was killed. The
file of an ended lease is kept for a day with the reason.
"""

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.codec import decode
from gpupool.remoting.local.files import SOCKET_PATH_LENGTH_MAX, cache_dir, runtime_dir

FORMAT = 1
ENDED_KEPT_S = 86_400.0
ENDED_COUNT_MAX = 64
RECORD_SIZE_MAX = 64 * 1024
SOCKET_NAME_LENGTH = 30
"""Room for the name of a socket, and of a folder around it, in a path."""


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """The content of a holder's file: the lease, its ends, and where the holder is reached."""

    lease: str
    cluster_id: str
    pool: str
    user: str
    pid: int  # of the holder
    socket: str  # path of its agent
    text: str  # the grant in words
    servers: tuple[str, ...] = ()
    idle_timeout_s: float = 0.0
    time_s: float = 0.0  # given back so long after the grant; 0: never
    time_left_s: float = 0.0  # ended by the pool so long after the grant; 0: never
    ended: str = ""  # why it has ended; empty while it is held
    format: int = field(default=FORMAT, kw_only=True)


# --- folders --------------------------------------------------------------------------------------


def holder_dir() -> Path:
    """Return the folder for the files of holders, made if need be: this user's alone.

    Raises:
        GpupoolError: when there is none that others cannot enter.
    """
    failures: list[str] = []
    for folder in _candidates():
        if len(os.fsencode(folder)) > SOCKET_PATH_LENGTH_MAX - SOCKET_NAME_LENGTH:
            failures.append(f"{folder}: its path is too long for a socket")
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if why := _unsafe(folder):
                raise OSError(why)
        except OSError as error:
            failures.append(f"{folder}: {error.strerror or error}")
        else:
            return folder
    raise GpupoolError(
        "there is no private folder for sockets",
        why="; ".join(failures),
        hint="set XDG_RUNTIME_DIR to a folder of your own with a short path",
    )


def _candidates() -> tuple[Path, ...]:
    """Return the folders of holders; ``gpupool alloc`` may have run in another environment.

    The last one is in the home: any user may have made those before it.
    """
    uid = os.getuid()
    runtime = runtime_dir()
    bases = [runtime] if runtime is not None else []
    bases.append(Path(f"/run/user/{uid}"))
    found = [base / "gpupool" for base in bases if base.is_dir()]
    temporary = (Path(tempfile.gettempdir()), Path("/tmp"))  # noqa: S108 - checked by _unsafe
    found += [base / f"gpupool-{uid}" for base in temporary]
    return tuple(dict.fromkeys([*found, cache_dir() / "run"]))


def _unsafe(folder: Path) -> str:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    return "others may enter it" if status.st_mode & 0o077 else ""


# --- files ----------------------------------------------------------------------------------------


class RecordFile:
    """The file of one holder, written and locked by it."""

    def __init__(self, folder: Path, record: HeldRecord) -> None:
        """Write the record.

        Raises:
            OSError: when it cannot be written.
        """
        self.path = folder / f"{record.lease}-{record.cluster_id[:12]}.json"
        self.record = record
        self._file = self._write()

    def vanished(self) -> bool:
        """Return whether the file was removed, as systemd does at a user's last logout."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except OSError:
            return True

    def end(self, record: HeldRecord) -> None:
        """Write why the lease has ended, and release the lock."""
        self.record = record
        with contextlib.suppress(OSError):
            self._write().close()
        self._file.close()

    def close(self) -> None:
        """Release the lock on a file that has vanished."""
        self._file.close()

    def _write(self) -> BinaryIO:
        """Put a file with the record in the place of the former one; return it open and locked.

        Another process may read at any moment. It finds one of the two, and each is whole.
        """
        made = self.path.with_suffix(".new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        file = os.fdopen(_private(str(made), flags), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(asdict(self.record)).encode())
            file.flush()
            made.replace(self.path)
        except BaseException:
            file.close()
            raise
        return file


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@dataclass(frozen=True, slots=True)
class LocalLease:
    """A lease that is or was held on this machine."""

    record: HeldRecord
    path: Path
    alive: bool  # its holder is

    @property
    def why_over(self) -> str:
        """Return why it cannot be used; empty when it can."""
        if self.record.ended:
            return self.record.ended
        return "" if self.alive else "the process that held it on this machine was killed"


def held_leases() -> list[LocalLease]:
    """Return the leases that are held here, and those that ended lately; clean up the others."""
    found = [each for folder in _candidates() for each in _records_in(folder)]
    over = [each for each in found if each.why_over]
    for each in over:
        if not each.alive:
            Path(each.record.socket).unlink(missing_ok=True)
    over.sort(key=lambda each: _age_s(each.path))
    for number, each in enumerate(over):
        if number >= ENDED_COUNT_MAX or _age_s(each.path) > ENDED_KEPT_S:
            each.path.unlink(missing_ok=True)
            found.remove(each)
    return sorted(found, key=lambda each: (bool(each.why_over), each.record.lease))


def _records_in(folder: Path) -> Iterator[LocalLease]:
    try:
        if _unsafe(folder):
            return  # another user may have written its records
        paths = sorted(folder.glob("*-*.json"))
    except OSError:
        return
    for path in paths:
        try:
            with open(path, opener=_private) as file:
                alive = _is_locked(file.fileno())
                record = parse_record(file.read(RECORD_SIZE_MAX))
        except (OSError, ValueError):
            continue  # being written, of another version, or not ours
        yield LocalLease(record, path, alive)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def parse_record(text: str) -> HeldRecord:
    """Return the record in a holder's file.

    Raises:
        ValueError: when it is not exactly a record.
    """
    record = decode(HeldRecord, json.loads(text))
    if record.format != FORMAT:
        raise ValueError("a record of another version")
    return record


def _age_s(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return float("inf")


def find_held(lease: str, cluster_id: str = "") -> LocalLease | None:
    """Return the lease of that name: of that pool, else one that another pool has granted.

    Every pool gives the same short names, so what has ended elsewhere is no answer.
    """
    same = [each for each in held_leases() if each.record.lease == lease]
    ours = [each for each in same if cluster_id in ("", each.record.cluster_id)]
    return next(iter(ours or [each for each in same if not each.why_over]), None)
