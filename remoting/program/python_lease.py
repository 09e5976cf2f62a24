"""Leases for Python programs: ``gpupool.lease`` and, under trio, ``gpupool.open_lease``.

A process beside this one holds the lease. It gives the lease back when this process closes the pipe
between them, and so also when this process is killed.
"""

import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, Unpack

import trio

from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.model.sizes import SHARE_MIN
from gpupool.pool.model.state import Placement
from gpupool.pool.values import free_text, parse_duration, parse_filter, parse_partition
from gpupool.remoting.local.logins import login_file
from gpupool.remoting.program.held_leases import HeldRecord
from gpupool.remoting.program.holder_startup import ENDED, granted, holder_spec
from gpupool.remoting.program.json_lines import object_of
from gpupool.remoting.program.lease_source import Wanted

CLOSE_S = 5.0


def _ignore(_text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this process has until its ``with`` block ends."""

    record: HeldRecord
    credentials: str  # the file of the login that has taken it

    @property
    def name(self) -> str:
        """Return its name, such as ``7f3a``."""
        return self.record.lease

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the names of its servers."""
        return tuple(self.record.servers)

    def __str__(self) -> str:
        """Return the lease in words, such as ``2 x H200 (70G) on server-a, lease 7f3a``."""
        return self.record.text

    def command(self, program: Sequence[str]) -> list[str]:
        """Return the command that runs a program on the GPUs of this lease."""
        run = [sys.executable, "-m", "gpupool.cli.main", "run", "--lease", self.name]
        return [*run, "--credentials", self.credentials, "--quiet", "--", *program]

    def run(
        self, program: Sequence[str], *, check: bool = True, **options: Any
    ) -> "subprocess.CompletedProcess[Any]":
        """Run a program on the GPUs, and wait for its end.

        Args:
            program: the program and its arguments.
            check: raise ``subprocess.CalledProcessError`` when it fails.
            options: of ``subprocess.run``, such as ``capture_output``, ``text`` and ``env``.
        """
        # The options decide whether there is text or bytes, which its types cannot say.
        execute: Callable[..., subprocess.CompletedProcess[Any]] = subprocess.run
        return execute(self.command(program), check=check, **options)

    async def run_async(
        self, program: Sequence[str], *, check: bool = True, **options: Any
    ) -> "subprocess.CompletedProcess[bytes]":
        """Do the same under trio; ``options`` are those of ``trio.run_process``."""
        done: subprocess.CompletedProcess[bytes]
        done = await trio.run_process(self.command(program), check=check, **options)
        return done


class RequestOptions(TypedDict, total=False):
    """Options of a request besides its number of GPUs; ``wanted_of`` has the defaults."""

    fraction: float | None
    memory: int | str | None
    wait: float | str | None
    servers: Sequence[str]
    filters: Sequence[str]
    across: bool
    placement: str
    idle_timeout: float | str | None
    preemptible: bool
    share: float | None


class PoolLeaseOptions(RequestOptions, total=False):
    """Options of ``Pool.lease``."""

    on_status: Callable[[str], None]


class LeaseOptions(PoolLeaseOptions, total=False):
    """Options of ``lease`` and ``open_lease``."""

    credentials: str | None


def wanted_of(
    n: int = 1,
    *,
    fraction: float | None = None,
    memory: int | str | None = None,
    wait: float | str | None = None,
    servers: Sequence[str] = (),
    filters: Sequence[str] = (),
    across: bool = False,
    placement: str = "pack",
    idle_timeout: float | str | None = None,
    preemptible: bool = False,
    share: float | None = None,
    **unknown: object,
) -> Wanted:
    """Return the request from these arguments, with the same meaning as the options of ``run``.

    Raises:
        UsageError: when they make no sense.
        TypeError: for an argument that ``lease`` does not have.
    """
    for name in unknown:
        raise TypeError(f"lease() has no argument {name!r}; the number of GPUs is n")
    if fraction is not None and memory is not None:
        raise UsageError("fraction and memory exclude each other", hint="give one of them")
    part = 1.0 if fraction is None else fraction
    if n < 1 or not 0 < part <= 1:
        raise UsageError("a lease has 1 GPU or more, and more than 0 and at most 1 of each")
    if share is not None and not SHARE_MIN <= share <= 1:
        raise UsageError(f"a share of a GPU's time is {SHARE_MIN:g} to 1")
    try:
        return Wanted(
            count=n,
            fraction=0.0 if memory is not None else part,
            memory=parse_partition(memory) if isinstance(memory, str) else memory or 0,
            servers=_texts(servers),
            filters=tuple(parse_filter(each) for each in _texts(filters)),
            across=across,
            placement=Placement(placement),
            wait_s=parse_duration(wait) if isinstance(wait, str) else wait,
            idle_timeout_s=_seconds(idle_timeout),
            preemptible=preemptible,
            share=share or 0.0,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _texts(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _seconds(given: float | str | None) -> float:
    return parse_duration(given) if isinstance(given, str) else given or 0.0


@contextmanager
def lease(
    n: int = 1,
    *,
    credentials: str | None = None,
    on_status: Callable[[str], None] = _ignore,
    **wanted: Unpack[RequestOptions],
) -> Generator[Lease]:
    """Take a lease of ``n`` GPUs for a ``with`` block.

    Args:
        n: the number of GPUs.
        credentials: a file written by login, instead of the login in use.
        on_status: called with what the request waits for.
        wanted: the other arguments of ``wanted_of``.

    Raises:
        GpupoolError: when there is no lease to be had.
    """
    request = wanted_of(n, **wanted)
    login = login_file(credentials=credentials)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpupool.remoting.program.holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield Lease(_await_grant(process, request, login, on_status), login)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()  # so that it gives the lease back
        try:
            process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        process.stdout.close()


def _await_grant(
    process: "subprocess.Popen[bytes]",
    wanted: Wanted,
    credentials: str,
    on_status: Callable[[str], None],
) -> HeldRecord:
    assert process.stdin is not None and process.stdout is not None
    spec = holder_spec(wanted, time_s=0.0, credentials=credentials, log_file=None, program="python")
    process.stdin.write(spec)
    process.stdin.flush()
    for line in process.stdout:
        body = object_of(line)
        if (record := granted(body)) is not None:
            return record
        if text := str(body.get("status") or body.get("warning") or _start_text(body)):
            on_status(text)
    raise GpupoolError(ENDED)


def _start_text(body: dict[str, object]) -> str:
    by_s = body.get("free_in")
    return free_text(by_s) if isinstance(by_s, float | int) and by_s > 0 else ""


@asynccontextmanager
async def open_lease(n: int = 1, **options: Unpack[LeaseOptions]) -> AsyncGenerator[Lease]:
    """Take a lease under trio; the arguments are those of ``lease``."""
    taking = lease(n, **options)
    # A cancelled wait leaves the thread; the lease that it may get then is given back at once.
    taken = await trio.to_thread.run_sync(taking.__enter__)
    try:
        yield taken
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(taking.__exit__, None, None, None))
