r"""The program under ``gpupool run``: it shares our terminal, and gets each signal once.

The program inherits descriptors 0, 1 and 2 and our process group, so pagers, progress bars, Ctrl-Z
and window sizes work. The terminal sends its signals to the whole group. So Ctrl-C and Ctrl-\\ are
not forwarded when the terminal sent them: many programs take a second SIGINT as "stop now". Every
other signal is forwarded once, and so are these when no terminal has us in its foreground.
"""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from gpupool.cli.run.door_choice import cuda_library
from gpupool.pool.errors import ExitCode, GpupoolError

FORWARDED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


LAUNCHER = "gpupool_launch.so"
"""The library of the CUDA door that starts programs (``native/start.c``)."""

TIED = """
import ctypes, os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
failure, number, parent = map(int, sys.argv[1:4])
ctypes.CDLL(None).prctl(1, number, 0, 0, 0)
if os.getppid() != parent:
    os.kill(os.getpid(), number)
os.set_inheritable(failure, False)
try:
    os.execv(sys.argv[4], sys.argv[5:])
except OSError as error:
    os.write(failure, str(error.errno).encode())
"""
"""The starter where that library is not built: it asks the kernel to signal it when its parent
dies, and becomes the program.

It is a Python process, not a function between fork and exec, because the function could deadlock
on a lock that another thread held at the fork. It restores the signals that Python changed. The
request is PR_SET_PDEATHSIG, 1.
"""


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


def _start(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], death_signal: int
) -> "_Started | subprocess.Popen[bytes]":
    """Start the program with our descriptors and process group; takes milliseconds.

    Raises:
        NotExecutableError: when the system refuses to execute it.
    """
    try:
        process = _spawn(program, arguments, environment, death_signal)
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
    except subprocess.SubprocessError as error:
        raise NotExecutableError(f"cannot run {arguments[0]!r}", why=str(error)) from error
    return process


class _Started:
    """A program that the library has started, in the words of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the code if it has ended; it is waited for then."""
        return self._look(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end, and return the code."""
        code = self._look(0)
        assert code is not None
        return code

    def _look(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def _started(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], death_signal: int
) -> _Started | None:
    """Start the program by the library; None where that is not built.

    Raises:
        OSError: when the system refuses to execute the program.
    """
    library = cuda_library().with_name(LAUNCHER)
    if not library.exists():
        return None
    try:
        start = ctypes.CDLL(str(library)).gp_start_tied
    except (OSError, AttributeError):
        return None
    words = [os.fsencode(word) for word in arguments]
    pairs = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    envp = (ctypes.c_char_p * (len(pairs) + 1))(*pairs, None)
    pid = start(os.fsencode(program), argv, envp, death_signal)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return _Started(pid)


def _spawn(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], death_signal: int
) -> "_Started | subprocess.Popen[bytes]":
    """Start the program on this thread; on Linux it gets ``death_signal`` when this process dies.

    Raises:
        OSError: when the system refuses to execute the program.
    """
    env = dict(environment)
    if not death_signal or not sys.platform.startswith("linux"):
        return subprocess.Popen([*arguments], executable=program, env=env, close_fds=True)
    # The kernel watches the thread that made the process. This one lives as long as we do; the
    # threads in which trio starts processes do not.
    started = _started(program, arguments, env, death_signal)
    return started or _by_python(program, arguments, env, death_signal)


def _by_python(
    program: str, arguments: Sequence[str], env: dict[str, str], death_signal: int
) -> "subprocess.Popen[bytes]":
    ours, theirs = os.pipe()
    with open(ours, "rb") as failure:
        try:
            tie = [str(theirs), str(death_signal), str(os.getpid()), program, *arguments]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", TIED, *tie], env=env, pass_fds=(theirs,)
            )
        finally:
            os.close(theirs)
        number = failure.read()  # at the end once the program is executed
    if number:
        process.wait()
        raise OSError(int(number), os.strerror(int(number)))
    return process


async def _wait(process: "_Started | subprocess.Popen[bytes]") -> int:
    """Return the process's return code, as ``subprocess`` defines it."""
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        descriptor = os.pidfd_open(process.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        return process.wait()
    return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


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
        self._process: _Started | subprocess.Popen[bytes] | None = None
        self._starting = False
        self.early = 0
        """The first signal that came before the program ran, or 0."""

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Handle every signal until cancelled."""
        async for number in signals:
            name = signal.Signals(number).name
            if self._process is None:
                self.early = self.early or number
                self._decided(f"signal {name}: the program does not run yet")
                if not self._starting:
                    self._on_early(number)
            elif terminal_sent(number):
                self._decided(f"signal {name}: the terminal has sent it to the program")
            elif self._process.poll() is None:
                self._decided(f"signal {name}: passed on")
                self._process.send_signal(number)
            if number == signal.SIGINT and self._process is not None:
                self._on_interrupt()

    async def run(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Ending:
        """Run the program to its end.

        Raises:
            NotExecutableError: when the system refuses to execute it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._starting = True
        process = _start(program, arguments, environment, self._death_signal)
        self._process = process
        if self.early and process.returncode is None:
            process.send_signal(self.early)  # it came while the program was being started
        try:
            await _wait(process)
        finally:
            if process.poll() is None:
                process.terminate()  # we are cancelled, and no other process will end it
        return ending_of(process.returncode or 0)


def ending_of(returncode: int) -> Ending:
    """Return what Python's ``returncode`` means."""
    return Ending(0, -returncode) if returncode < 0 else Ending(returncode)
