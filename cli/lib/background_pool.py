"""The pool behind ``gpupool up``: servers on loopback, in the background, to play with.

All of it lies in one folder: what the servers keep, their logs, and ``pool.json``, which names
their processes. A process is known by its pid and by when it began, because pids come back.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from gpupool.pool.errors import GpupoolError, StorageError, UsageError
from gpupool.pool.view import PoolView
from gpupool.remoting.local.files import config_dir

Status = Callable[[str], PoolView]

START_S = 30.0
STOP_S = 10.0
RECORD = "pool.json"
CREDENTIALS = "credentials.json"


@dataclass(frozen=True, slots=True)
class Process:
    """One server's process."""

    name: str
    pid: int
    began: str  # the kernel's count, or "" where it tells none

    def lives(self) -> bool:
        """Say whether this very process is there, and not just one of its number."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return beginning_of(self.pid) == self.began


@dataclass(slots=True)
class Record:
    """Saved state for ``gpupool down`` and a second ``gpupool up``."""

    arguments: list[str]  # of "gpupool join", for every server
    names: list[str]
    login: str = ""  # the user's login file, when it was made here
    processes: list[Process] = field(default_factory=list[Process])


def beginning_of(pid: int) -> str:
    """Return when a process began, in the kernel's count; "" for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


class BackgroundPool:
    """Starts and stops the servers of one folder."""

    def __init__(
        self,
        folder: Path,
        name: str = "local",
        *,
        env: Mapping[str, str] | None = None,
        held: int | None = None,
    ) -> None:
        """Read the folder's record.

        Args:
            folder: where all of it lies.
            name: of a new pool, and how the names of its servers begin.
            env: of the servers; without one, the pool becomes the user's own.
            held: a descriptor that holds the folder locked for as long as they live.
        """
        self.folder = folder
        self._name, self._env, self._held = name, env, held
        self.record = self._read()

    @property
    def credentials(self) -> Path:
        """Return the login of the pool's creator."""
        return self.folder / CREDENTIALS

    def living(self) -> list[Process]:
        """Return the servers that run."""
        return [each for each in self.record.processes if each.lives()] if self.record else []

    def start(self, count: int, arguments: list[str], status: Status) -> None:
        """Create the pool, or start the servers of the one that lies here again.

        Args:
            count: of servers, of a new pool.
            arguments: of ``gpupool join``, for each.
            status: asks the pool of a login how it is.

        Raises:
            UsageError: when it runs already.
            StorageError: when the folder cannot be made or written.
            GpupoolError: when a server does not start.
        """
        try:
            self._start_all(count, arguments, status)
        except OSError as error:
            what = f"a pool cannot be kept in {self.folder}"
            raise StorageError(what, why=(error.strerror or str(error)).lower()) from error

    def _start_all(self, count: int, arguments: list[str], status: Status) -> None:
        if running := self.living():
            raise UsageError(
                f"the pool of {self.folder} runs already",
                why=f"{len(running)} of its servers live",
                hint="gpupool down ends it",
            )
        fresh = self.record is None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)  # workers have users of their own, and pass through here
        if self.record is None:
            names = [f"{self._name}-{letter}" for letter in "abcdefg"[:count]]
            self.record = Record(arguments, names)
        try:
            for name in self.record.names:
                first = name == self.record.names[0]
                self._start(name, None if first or not fresh else self._new_token())
                if first and fresh:
                    self._wait_for_login(name, status)
            self._wait_for_servers(len(self.record.names), status)
        except BaseException:
            self.stop(remove=fresh)
            raise
        if self._env is None:
            self._log_in()

    def stop(self, *, remove: bool) -> int:
        """End the servers, and remove all that they kept; return how many there were."""
        ended = self.living()
        for sign in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second: at once
            for each in self.living():
                with suppress(ProcessLookupError):
                    os.kill(each.pid, sign)
            end = time.monotonic() + STOP_S / 2
            while self.living() and time.monotonic() < end:
                time.sleep(0.05)
        if remove:
            self._log_out()
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self.record is not None:
            self.record.processes = []
            self._write()
        return len(ended)

    def environment(self) -> dict[str, str]:
        """Return an environment in which nothing of another pool of the user's is used."""
        if self._env is not None:
            return dict(self._env)
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        return {**env, "GPUPOOL_CREDENTIALS": str(self.credentials)}

    def _start(self, name: str, token: str | None) -> None:
        assert self.record is not None
        log = self.folder / f"{name}.log"
        argv = [
            *(sys.executable, "-m", "gpupool.cli.main", "join", "--name", name),
            *("--pool-name", self._name, "--state-dir", str(self.folder / name)),
            *([] if (self.folder / name).exists() else ["--listen", "127.0.0.1:0"]),
            *self.record.arguments,
        ]
        with log.open("a", encoding="utf-8") as errors:
            process = start_join(
                argv, token, env=self.environment(), cwd="/", errors=errors, held=self._held
            )
        process.returncode = 0  # it outlives this command, which is no reason for a warning
        self.record.processes.append(Process(name, process.pid, beginning_of(process.pid)))
        self._write()

    def _run(self, *arguments: str) -> dict[str, Any]:
        argv = [sys.executable, "-m", "gpupool.cli.main", *arguments, "--json"]
        done = subprocess.run(
            argv,
            env=self.environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {}
        return found

    def _view(self, status: Status) -> PoolView | None:
        with suppress(GpupoolError):
            return status(str(self.credentials))
        return None

    def _new_token(self) -> str:
        answer = self._run("token", "create", "--server")
        if token := str(answer.get("token", "")):
            return token
        raise GpupoolError("no token for the next server", why=str(answer.get("error", "")))

    def _wait_for_login(self, name: str, status: Status) -> None:
        end = time.monotonic() + START_S
        while not self.credentials.exists():
            self._check(name, end)
        while self._view(status) is None:
            self._check(name, end)

    def _wait_for_servers(self, count: int, status: Status) -> None:
        end = time.monotonic() + START_S
        while True:
            view = self._view(status)
            states = [each.state for each in view.servers] if view is not None else []
            if states.count("idle") == count:
                return
            assert self.record is not None
            for name in self.record.names:
                self._check(name, end)

    def _check(self, name: str, end: float) -> None:
        """Fail when the server has ended, or when it is too late."""
        if name not in {each.name for each in self.living()} or time.monotonic() > end:
            text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            lines = text.strip().splitlines() or ["its log is empty"]
            raise GpupoolError(
                f"{name} did not start", why="; ".join(x.strip() for x in lines[-3:])
            )
        time.sleep(0.05)

    def _log_in(self) -> None:
        """Make the pool the user's own, unless the user has another one."""
        assert self.record is not None
        path = config_dir() / CREDENTIALS
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            path.write_bytes(self.credentials.read_bytes())
            self.record.login = str(path)
            self._write()

    def _log_out(self) -> None:
        """Remove the login that ``up`` made, if it is still that of this pool."""
        if self.record is None or not self.record.login:
            return
        with suppress(OSError, ValueError):
            path = Path(self.record.login)
            mine, theirs = (json.loads(each.read_bytes()) for each in (self.credentials, path))
            if mine["cluster_id"] == theirs["cluster_id"]:
                path.unlink()

    def _read(self) -> Record | None:
        try:
            found = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        processes = [Process(**each) for each in found.pop("processes")]
        return Record(**found, processes=processes)

    def _write(self) -> None:
        assert self.record is not None
        path = self.folder / RECORD
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self.record), indent=2) + "\n", encoding="utf-8")
        fresh.replace(path)


def start_join(
    argv: Sequence[str],
    token: str | None,
    *,
    env: Mapping[str, str],
    cwd: Path | str,
    errors: IO[str],
    held: int | None = None,
) -> "subprocess.Popen[str]":
    """Start a server in a new POSIX session; with a token, it joins that token's pool.

    The token comes over a pipe: all users of a machine see the arguments of its processes.

    Args:
        argv: the command, without a token.
        token: what the server reads from its standard input; None for a new pool.
        env: its environment.
        cwd: its folder.
        errors: what it says.
        held: a descriptor to inherit, which holds a folder locked for as long as the server lives.
    """
    process = subprocess.Popen(
        [*argv, *(["--token", "-"] if token else [])],
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE if token else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a new pool prints its tokens there
        stderr=errors,
        text=True,
        start_new_session=True,
        pass_fds=() if held is None else (held,),
    )
    if process.stdin is not None and token:
        # The pipe has room for a token. One that has ended says why in its log.
        with suppress(BrokenPipeError):
            process.stdin.write(token)
            process.stdin.close()
    return process
