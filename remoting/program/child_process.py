"""The program under ``gpupool run``: it is what a shell would have started in our place.

It has our descriptors, terminal and process group, and each signal as often as without us. We stop
when it stops, and end as it ends. ``program_process`` and ``signal_relay`` have the two halves.
"""

import errno
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import trio

from gpupool.pool.errors import ExitCode, GpupoolError
from gpupool.remoting.program.process import signal_relay
from gpupool.remoting.program.process.program_process import ProgramProcess
from gpupool.remoting.program.process.signal_relay import Arrived, Fate, LinuxSignals

FORWARDED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals that are heard while GPUs are waited for; all that are passed on outside of Linux."""

FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


class NotFoundError(GpupoolError):
    """The program does not exist."""

    exit_code = ExitCode.NOT_FOUND
    code = "not-found"


class NotExecutableError(GpupoolError):
    """The program exists and cannot be started."""

    exit_code = ExitCode.NOT_EXECUTABLE
    code = "not-executable"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended: its own exit code, or the signal that ended it."""

    code: int
    signal: int = 0

    @property
    def failed(self) -> bool:
        """Return whether the program ended with an error or a signal."""
        return bool(self.code or self.signal)


def find_program(name: str, path: str | None = None) -> str:
    """Return the file that ``name`` stands for, before any GPU is asked for.

    Raises:
        NotFoundError: when there is none (exit code 127).
        NotExecutableError: when it may not be executed (126).
    """
    if found := shutil.which(name, path=path):
        return found
    there = os.path.exists(name) if os.sep in name else shutil.which(name, os.F_OK, path)
    if not there:
        hint = "" if os.sep in name else "is it on the PATH? A file here is written ./NAME"
        if name == "python" and shutil.which("python3", path=path):
            hint = "this machine has python3"
        raise NotFoundError(f"cannot find the program {name!r}", hint=hint)
    if os.path.isdir(name):
        hint = "name a program in it, with its arguments"
        raise NotExecutableError(f"cannot run {name!r}", why="it is a folder", hint=hint)
    hint = _how_to_run(name)
    raise NotExecutableError(f"cannot run {name!r}", why="it is not executable", hint=hint)


def _how_to_run(name: str) -> str:
    return f"python {name}" if name.endswith(".py") else f"chmod +x {name}"


def terminal_sent(number: int) -> bool:
    """Return whether ``number`` most likely came from our terminal, and so reached the child too.

    A terminal sends to its foreground process group, and the child is in ours.
    """
    if number not in FROM_TERMINAL:
        return False
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # no controlling terminal
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def caught_signals() -> Generator[AsyncIterator[int]]:
    """Receive the signals of ``FORWARDED``; those that we were started to ignore stay ignored.

    ``nohup`` and a shell's background jobs rely on ignored signals being inherited.
    """
    wanted = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    with trio.open_signal_receiver(*wanted) as received:
        yield received


class PlainSignals:
    """The same as ``LinuxSignals`` where the system tells less of a signal, as macOS does."""

    def __init__(self) -> None:
        """Receive signals."""
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self._stack = ExitStack()
        self._received = self._stack.enter_context(caught_signals())

    def close(self) -> None:
        """Receive them no more."""
        self._stack.close()

    async def fates(self) -> list[tuple[Fate, Arrived]]:
        """Wait for a signal; return whom it was for, as far as can be seen."""
        number = await anext(self._received)
        fate = Fate.SHARED if terminal_sent(number) else Fate.ALONE
        return [(Fate.ARRIVED, Arrived(number)), (fate, Arrived(number))]

    def follow(self, program: int) -> None:
        """Do nothing: signals that stop processes are not caught."""

    def stop_as(self, number: int) -> None:
        """Do nothing, likewise."""


def inherited_environment() -> dict[str, str]:
    """Return our environment, without what Python adds to it in the locale "C"."""
    variables = dict(os.environ)
    with suppress(OSError), open("/proc/self/environ", "rb") as file:
        if not any(each.startswith(b"LC_CTYPE=") for each in file.read().split(b"\0")):
            variables.pop("LC_CTYPE", None)
    return variables


def inherited_descriptors() -> list[int]:
    """Return the descriptors that we were started with; ours are closed when a program starts."""
    found = [int(name) for name in os.listdir("/dev/fd")] if os.path.isdir("/dev/fd") else []
    inherited: list[int] = []
    for each in found:
        with suppress(OSError):  # that of the folder itself
            inherited += [each] if each > 2 and os.get_inheritable(each) else []
    return inherited


def let_go(inherited: Sequence[int]) -> None:
    """Close what only the program is to have, so that its end of a pipe is the last one.

    Standard error stays, for what is to be said when the program has ended.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1):
        os.dup2(null, each)
    os.close(null)
    for each in inherited:
        with suppress(OSError):
            os.close(each)


class Supervisor:
    """Receives our signals before, while and after the program runs."""

    def __init__(
        self,
        *,
        on_early: Callable[[int], None] = lambda _: None,
        on_interrupt: Callable[[], None] = lambda: None,
        decided: Callable[[str], None] = lambda _: None,
        death_signal: int = signal.SIGTERM,
    ) -> None:
        """Make a supervisor of a program that has not started.

        Args:
            on_early: called with a signal that comes before the program runs.
            on_interrupt: called for each SIGINT while it runs.
            decided: called with a text for each signal, for the verbose log.
            death_signal: the signal for the program when this process is killed; 0 for none.
        """
        self._death_signal = death_signal
        self._on_early = on_early
        self._on_interrupt = on_interrupt
        self._decided = decided
        self._runs = False
        self.early = 0
        """The first signal that came before the program ran, or 0."""

    def __enter__(self) -> Self:
        """Fork what must not have our later threads and files, and take over the signals."""
        self._inherited = inherited_descriptors()
        self._signals = LinuxSignals() if sys.platform == "linux" else PlainSignals()
        self._process = ProgramProcess(self._signals.mask, self._death_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the signals of before."""
        self._process.close()
        self._signals.close()

    async def watch(self) -> None:
        """Handle every signal until cancelled."""
        while True:
            for fate, each in await self._signals.fates():
                if not self._runs:
                    self._hear_early(fate, each)
                elif fate is not Fate.ARRIVED:
                    self._pass_on(fate, each)
                elif each.number == signal.SIGINT:
                    self._on_interrupt()
            if self._runs:
                self._signals.stop_as(self._process.stopped_by())

    def _hear_early(self, fate: Fate, each: Arrived) -> None:
        ignored = signal.getsignal(each.number) is signal.SIG_IGN
        if fate is not Fate.ARRIVED or ignored or each.number in signal_relay.HARMLESS:
            return
        if each.number in signal_relay.STOPS:
            signal_relay.stop_as(each.number)
            return
        self.early = self.early or each.number
        self._decided(f"signal {each.name}: the program does not run yet")
        self._on_early(each.number)

    def _pass_on(self, fate: Fate, each: Arrived) -> None:
        """Send the program what it has not got: also for its group, if that is a further one."""
        pid = self._process.pid
        if self._process.poll() is not None:
            return
        group = os.getpgid(pid)
        if fate is Fate.ALONE and each.sender == pid:
            self._decided(f"signal {each.name}: the program sent it to its parent, which is ours")
            each.send_to(os.getppid())
        elif fate is Fate.ALONE:
            self._decided(f"signal {each.name}: passed on")
            each.send_to(pid)
        elif group != os.getpgrp() and group == pid and os.getpid() == os.getpgrp():
            self._decided(f"signal {each.name}: passed on to the program's process group")
            each.send_to(-pid)
        else:
            self._decided(f"signal {each.name} {fate.value}")

    async def run(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Ending:
        """Run the program to its end.

        Raises:
            NotExecutableError: when the system refuses to execute it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        _start(self._process, program, arguments, environment)
        self._runs = True
        self._signals.follow(self._process.pid)
        let_go(self._inherited)
        try:
            code = await self._process.wait()
        finally:
            if self._process.poll() is None:
                # We are cancelled, and no other process will end it.
                self._process.send_signal(signal.SIGTERM)
        return ending_of(code)


def _start(
    process: ProgramProcess, program: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Let the process become the program; takes milliseconds.

    Raises:
        NotExecutableError: when the system refuses to execute it.
    """
    try:
        process.start(program, list(arguments), dict(environment))
    except FileNotFoundError as error:
        # The file exists, but the interpreter in its first line does not.
        why = "the interpreter that its first line names does not exist"
        raise NotExecutableError(f"cannot run {arguments[0]!r}", why=why) from error
    except OSError as error:
        hint = ""
        if error.errno == errno.ENOEXEC:
            hint = "is it a script without a first line such as #!/bin/sh?"
        why = (error.strerror or str(error)).lower()
        raise NotExecutableError(f"cannot run {arguments[0]!r}", why=why, hint=hint) from error


def ending_of(returncode: int) -> Ending:
    """Return what Python's ``returncode`` means."""
    return Ending(0, -returncode) if returncode < 0 else Ending(returncode)
