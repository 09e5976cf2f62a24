"""Leases that ``gpupool alloc`` holds on this machine: where their holders are found, and asked.

A holder has one file, ``LEASE-CLUSTER.json``, and the socket of its agent. It keeps a lock on the
file for as long as it lives, so a file without a lock is of a holder that was killed. Of a lease
that has ended, the file stays for a day and says why.
"""

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import cast

import trio

from gpupool.cli.lib.paths import runtime_dir
from gpupool.cli.run.agent import LINE_LENGTH_MAX, SOCKET_PATH_LENGTH_MAX
from gpupool.pool.errors import GpupoolError, LeaseLostError

FORMAT = 1
ENDED_KEPT_S = 86_400.0
ENDED_COUNT_MAX = 64
RECORD_SIZE_MAX = 64 * 1024
ANSWER_TIMEOUT_S = 10.0
SOCKET_NAME_LENGTH = 30
"""Room for the name of a socket, and of a folder around it, in a path."""


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """What the holder of a lease writes into its file."""

    lease: str
    cluster_id: str
    pool: str
    user: str
    pid: int  # of the holder
    socket: str  # path of its agent
    text: str  # what was granted, for people
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
            folder.mkdir(mode=0o700, exist_ok=True)
            if why := _unsafe(folder):
                raise OSError(why)
        except OSError as error:
            failures.append(f"{folder}: {error.strerror or error}")
        else:
            return folder
    raise GpupoolError("there is no private folder for sockets", why="; ".join(failures))


def _candidates() -> tuple[Path, ...]:
    """Return where holders may be found; who allocates may have had another environment."""
    uid = os.getuid()
    runtime = runtime_dir()
    bases = [runtime] if runtime is not None else []
    bases.append(Path(f"/run/user/{uid}"))
    found = [base / "gpupool" for base in bases if base.is_dir()]
    temporary = (Path(tempfile.gettempdir()), Path("/tmp"))  # noqa: S108 - checked by _unsafe
    found += [base / f"gpupool-{uid}" for base in temporary]
    return tuple(dict.fromkeys(found))


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
        # The record of a lease of that name that has ended may be there still.
        self._file = open(self.path, "a+", opener=_private)  # noqa: SIM115 - kept for its lock
        fcntl.flock(self._file, fcntl.LOCK_EX)  # others hold it for a glance at most
        self._write()

    def vanished(self) -> bool:
        """Return whether somebody has removed the file, as systemd does at a user's last logout."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except OSError:
            return True

    def end(self, record: HeldRecord) -> None:
        """Leave word of why the lease has ended, and let go."""
        self.record = record
        with contextlib.suppress(OSError):
            self._write()
        self._file.close()

    def close(self) -> None:
        """Let go of a file that has vanished."""
        self._file.close()

    def _write(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        json.dump(asdict(self.record), self._file)
        self._file.flush()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@dataclass(frozen=True, slots=True)
class Found:
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


def held_leases() -> list[Found]:
    """Return the leases that are held here, and those that ended lately; clean up the others."""
    found = [each for folder in _candidates() for each in _look_into(folder)]
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


def _look_into(folder: Path) -> Iterator[Found]:
    try:
        if _unsafe(folder):
            return  # whatever it says, it may be somebody else who says it
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
        yield Found(record, path, alive)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def parse_record(text: str) -> HeldRecord:
    """Return what a holder wrote.

    Raises:
        ValueError: when it is not exactly a record.
    """
    body: object = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError("not an object")
    fields = cast("dict[str, object]", body)
    if fields.get("format") != FORMAT or fields.keys() != set(HeldRecord.__dataclass_fields__):
        raise ValueError("a record of another version")
    servers = fields["servers"]
    if not isinstance(servers, list):
        raise ValueError("servers are a list")
    fields["servers"] = tuple(str(each) for each in cast("list[object]", servers))
    durations = dict.fromkeys(("idle_timeout_s", "time_s", "time_left_s"), (int, float))
    numbers = {"pid": int, "format": int, **durations}
    for name, value in fields.items():
        if name != "servers" and not isinstance(value, numbers.get(name, str)):
            raise ValueError(f"{name} has the wrong type")
    return HeldRecord(**fields)  # pyright: ignore[reportArgumentType]


def _age_s(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return float("inf")


def find_held(lease: str, cluster_id: str = "") -> Found | None:
    """Return the lease of that name: of that pool when several have one."""
    same = [each for each in held_leases() if each.record.lease == lease]
    chosen = [each for each in same if each.record.cluster_id == cluster_id]
    return next(iter(chosen or same), None)


# --- asking a holder ------------------------------------------------------------------------------


class HeldLease:
    """A lease of a holder on this machine, as a program that runs on it sees it."""

    def __init__(self, record: HeldRecord) -> None:
        self.name = record.lease
        self.record = record
        self.idle_timeout_s = record.idle_timeout_s
        self.on_notice: Callable[[str], None] = lambda _text: None
        self.lost = ""
        self._over = trio.Event()
        self._lines: _Lines | None = None

    async def __aenter__(self) -> "HeldLease":
        """Watch it from now on.

        Raises:
            LeaseLostError: when it is over.
        """
        lines = await _connect(self.record)
        try:
            answer = await lines.ask({"op": "watch"})
            if lost := str(answer.get("lost", "")):
                raise LeaseLostError(lost)
        except BaseException:
            await trio.aclose_forcefully(lines.stream)
            raise
        self._lines = lines
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lines is not None
        await self._lines.aclose()

    async def listen(self) -> None:
        """Hear what becomes of the lease, until cancelled or it is over."""
        assert self._lines is not None
        what = "the process that held it on this machine has ended"
        with contextlib.suppress(GpupoolError):  # a holder that dies says nothing
            while (pushed := await self._lines.receive()) is not None:
                if pushed.get("op") == "notice":
                    self.on_notice(str(pushed.get("text", "")))
                elif pushed.get("op") == "lost":
                    what = str(pushed.get("what", what))
                    break
        self.lost = what
        self._over.set()

    def server_names(self) -> tuple[str, ...]:
        """Return the names of the servers of this lease."""
        return self.record.servers

    async def wait_lost(self) -> str:
        """Wait until the lease is over, and return why."""
        await self._over.wait()
        return self.lost

    async def check(self) -> str:
        """Return what the holder knows of its end; empty while the lease is held."""
        try:
            return str((await self.ask({"op": "check"})).get("lost", ""))
        except LeaseLostError:
            with trio.move_on_after(ANSWER_TIMEOUT_S):
                await self._over.wait()  # the holder is gone, which `listen` notices too
            return self.lost
        except GpupoolError:
            return ""  # a holder of an older version does not know the question

    async def ask(self, request: dict[str, object]) -> dict[str, object]:
        """Return what the holder answers on a connection of its own.

        Raises:
            GpupoolError: whatever the holder answers.
        """
        lines = await _connect(self.record)
        try:
            return await lines.ask(request)
        finally:
            await trio.aclose_forcefully(lines.stream)

    async def open_session(
        self,
        door: str,
        program: str,
        visible: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> list[dict[str, object]]:
        """Have sessions opened for one process of the program.

        Raises:
            GpupoolError: whatever the holder answers.
        """
        request: dict[str, object] = {"op": "session", "door": door, "program": program}
        request |= {"pid": os.getpid()} | ({} if visible is None else {"visible": visible})
        request |= {"settings": dict(settings)} if settings else {}
        answer = await self.ask(request)
        return cast("list[dict[str, object]]", answer.get("sessions", []))


async def release_held(record: HeldRecord) -> int:
    """Have a lease given back; return how many programs were using it.

    Raises:
        GpupoolError: when its holder does not answer.
    """
    lines = await _connect(record)
    try:
        answer = await lines.ask({"op": "release"})
    finally:
        await trio.aclose_forcefully(lines.stream)
    users = answer.get("users", 0)
    return users if isinstance(users, int) else 0


async def _connect(record: HeldRecord) -> "_Lines":
    try:
        return _Lines(await trio.open_unix_socket(record.socket), record.lease)
    except OSError as error:
        raise LeaseLostError(
            f"lease {record.lease} cannot be used",
            why=f"its holder, process {record.pid}, does not answer: {error.strerror or error}",
        ) from error


class _Lines:
    """A connection to a holder's agent: JSON objects, one per line."""

    def __init__(self, stream: trio.SocketStream, lease: str) -> None:
        self.stream = stream
        self._lease = lease
        self._buffer = bytearray()

    async def ask(self, request: Mapping[str, object]) -> dict[str, object]:
        """Return the answer to a request; what is pushed meanwhile is of no account.

        Raises:
            GpupoolError: whatever the holder answers, or that it does not.
        """
        answer: dict[str, object] | None = None
        with trio.move_on_after(60.0 if request["op"] == "session" else ANSWER_TIMEOUT_S):
            try:
                await self.stream.send_all(json.dumps(request).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise self._gone() from None
            answer = await self.receive()
            while answer is not None and "ok" not in answer:
                answer = await self.receive()
        if answer is None:
            raise self._gone()
        if answer.get("ok") is not True:
            words = [str(answer.get(key, "")) for key in ("what", "why", "hint")]
            failure = GpupoolError(words[0] or "the holder refuses", why=words[1], hint=words[2])
            failure.code = str(answer.get("code", failure.code))
            raise failure
        return answer

    async def receive(self) -> dict[str, object] | None:
        """Return the next line; None at the end.

        Raises:
            GpupoolError: when it is none of ours.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            try:
                piece = await self.stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                piece = b""
            if not piece:
                return None
            self._buffer += piece
            if len(self._buffer) > 16 * LINE_LENGTH_MAX:
                raise GpupoolError("the holder sent a line that is too long")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            body: object = json.loads(line)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise GpupoolError("the holder sent nonsense")
        return cast("dict[str, object]", body)

    async def aclose(self) -> None:
        """Hang up."""
        await self.stream.aclose()

    def _gone(self) -> LeaseLostError:
        return LeaseLostError(f"lease {self._lease} is void", why="its holder does not answer")
