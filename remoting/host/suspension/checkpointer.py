"""Suspends and resumes the GPU memory of processes by the driver: all of them, or none.

The driver copies a locked process's GPU memory into that process's own memory, and lets the GPU go;
calls of CUDA in it wait until it is restored and unlocked. Everything here blocks.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from gpupool.pool.model.suspension import DRIVER_TOO_OLD
from gpupool.remoting.host.suspension import driver_calls

START_TIMEOUT_S = 30.0
"""Of a process that calls the driver: the first ``cuInit`` after a boot takes seconds."""

LOCK_TIMEOUT_S = 10.0
"""Within this time the driver must find a process at rest; an endless kernel never is."""

CALL_TIMEOUT_S = 20.0
BYTES_PER_S = 128 << 20
"""Rate of the extra time for a call that moves bytes: a tenth of the rate seen on an H200."""

DEATH_GRACE_S = 2.0
"""A call for a process that has died meanwhile gets so much longer to notice it."""

NO_MOVES: Mapping[str, str] = MappingProxyType({})
NOT_MOVED: Mapping[int, Mapping[str, str]] = MappingProxyType({})

_PAIRS = (
    driver_calls.PAIRS_AS_GIVEN,
    driver_calls.PAIRS_FOR_NAMED,
    driver_calls.PAIRS_FOR_ALL,
)

_POLL_S = 0.1
_INVALID, _OUT_OF_MEMORY, _NOT_INITIALIZED, _OPERATING_SYSTEM, _NOT_READY = 1, 2, 3, 304, 600


class State(IntEnum):
    """As the driver has it of a process, and of one that does not use CUDA."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    NO_CUDA = 99


_STATES = frozenset(State)


class CheckpointError(Exception):
    """The driver does not suspend or resume a process; the text says why, for people."""


class UnmovedError(CheckpointError):
    """The driver does not restore a process on other GPUs, and has left it as it was."""


class HangingError(CheckpointError):
    """The driver does not answer."""


class Calls(Protocol):
    """Makes the driver's calls; a context manager."""

    def call(
        self,
        name: str,
        process: int,
        number: int,
        timeout_s: float,
        moves: Mapping[str, str] = NO_MOVES,
    ) -> tuple[int, int]:
        """Return a function's result and value, or raise ``HangingError``."""
        ...

    def close(self) -> None:
        """Give up the call under way."""
        ...


class CallProcess:
    """Makes the driver's calls in a separate process."""

    def __init__(self, alive: Callable[[int], bool] = lambda _process: True) -> None:
        """Start it.

        Args:
            alive: says whether a process that is to be suspended lives.

        Raises:
            CheckpointError: when it cannot be used.
        """
        self._alive = alive
        self._pending = b""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "gpupool.remoting.host.suspension.driver_calls"),
                str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )
        try:
            result, _ = self._answer(0, START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        if result != driver_calls.SUCCESS:
            self.close()
            raise CheckpointError(reason("cuInit", result))

    def call(
        self,
        name: str,
        process: int,
        number: int,
        timeout_s: float,
        moves: Mapping[str, str] = NO_MOVES,
    ) -> tuple[int, int]:
        """Make one call; return its result and value.

        Args:
            name: the function.
            process: an id.
            number: milliseconds for a lock; how to complete the pairs of a restoration.
            timeout_s: for the answer.
            moves: of a restoration on other GPUs, by the GPUs' identifiers.

        Raises:
            HangingError: when there is no answer in time; ``close`` is all that may follow.
        """
        assert self._process.stdin is not None
        try:
            pairs = ",".join(f"{old}={new}" for old, new in moves.items())
            line = f"{name} {process} {number} {pairs}\n"
            os.write(self._process.stdin.fileno(), line.encode())
        except OSError as error:
            raise HangingError(f"the driver ended the process that called {name}") from error
        return self._answer(process, timeout_s)

    def _answer(self, process: int, timeout_s: float) -> tuple[int, int]:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            if process and not self._alive(process):
                deadline, process = min(deadline, time.monotonic() + DEATH_GRACE_S), 0
            left = deadline - time.monotonic()
            if left <= 0:
                raise HangingError(f"the driver gave no answer within {timeout_s:.0f} s")
            if select.select([output], [], [], min(left, _POLL_S))[0]:
                data = os.read(output, 4096)
                if not data:
                    raise HangingError("the driver ended the process that called it")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        result, value = line.split()
        return int(result), int(value)

    def close(self) -> None:
        """End it, also in the middle of a call."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        # One that hangs in the kernel is left to itself; Popen reaps it later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_GRACE_S)


def _environment() -> dict[str, str]:
    """Return this process's environment for one that starts elsewhere and must see all GPUs."""
    found = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if "PYTHONPATH" in found:
        parts = found["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in parts if part)
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of suspending or resuming processes."""

    problem: str = ""  # why it was not done; empty: it was
    lost: tuple[int, ...] = ()  # processes that neither run nor can be resumed
    idle: tuple[int, ...] = ()  # processes that do not use CUDA yet
    unmoved: bool = False  # the driver does not restore one of them on those GPUs
    moved: tuple[int, ...] = ()  # then: those that would, and now come back there if not said else


def suspend(
    processes: Sequence[int],
    size: int,
    make: Callable[[], Calls] = CallProcess,
    note_locked: Callable[[int], None] = lambda _process: None,
) -> Outcome:
    """Suspend all of some processes, or none.

    Args:
        processes: their ids.
        size: bytes that they have on GPUs, about.
        make: starts what calls the driver.
        note_locked: called for each before the driver moves anything of it.
    """
    calls: Calls | None = None
    idle: list[int] = []
    touched: list[int] = []
    try:
        calls = make()
        idle += [each for each in processes if _state(calls, each) is State.NO_CUDA]
        using = [process for process in processes if process not in idle]
        # All are locked first: one that runs on could wait for one that is suspended already.
        for process in using:
            touched.append(process)
            milliseconds = int(LOCK_TIMEOUT_S * 1000)
            _do(calls, driver_calls.LOCK, process, milliseconds, LOCK_TIMEOUT_S + CALL_TIMEOUT_S)
        for process in using:
            note_locked(process)
        for process in using:
            _do(calls, driver_calls.CHECKPOINT, process, 0, _time_for(size))
    except CheckpointError as error:
        if calls is not None:
            calls.close()
        return Outcome(str(error), undo(touched, size, make))
    except BaseException:
        if calls is not None:
            calls.close()
        raise
    calls.close()
    return Outcome(idle=tuple(idle))


def resume(
    processes: Sequence[int],
    size: int,
    make: Callable[[], Calls] = CallProcess,
    moves: Mapping[int, Mapping[str, str]] = NOT_MOVED,
) -> Outcome:
    """Restore all of some processes, and let none of them go on before all are restored.

    A call that gives no answer goes on in the process itself, so it can be tried again. What the
    driver refuses to restore on the GPUs that it was on is lost: it refuses every later attempt as
    well, whatever changes. So is what finds no room. Other GPUs may be refused without harm.

    Args:
        processes: their ids.
        size: bytes that they have had on GPUs, about.
        make: starts what calls the driver.
        moves: for each process where what it had on its GPUs goes; nothing: where it was.
    """
    calls: Calls | None = None
    lost: list[int] = []
    restored: list[int] = []
    try:
        calls = make()
        states = {process: _state(calls, process) for process in processes}
        lost += [process for process, state in states.items() if state is State.FAILED]
        if lost:
            raise CheckpointError("the driver has lost their GPU memory")
        # One that an attempt without an answer has restored must go back with the others.
        restored += [each for each, state in states.items() if state is State.LOCKED]
        for process, state in states.items():
            if state is State.CHECKPOINTED:
                _restore(calls, process, size, lost, moves.get(process, NO_MOVES))
                restored.append(process)
        for process, state in states.items():
            if state in (State.CHECKPOINTED, State.LOCKED):
                _do(calls, driver_calls.UNLOCK, process, 0, CALL_TIMEOUT_S)
    except UnmovedError as error:
        assert calls is not None
        return _let_go_again(calls, restored, size, str(error))
    except CheckpointError as error:
        return Outcome(str(error), tuple(lost))
    finally:
        if calls is not None:
            calls.close()
    return Outcome()


def _let_go_again(calls: Calls, processes: Sequence[int], size: int, problem: str) -> Outcome:
    """Checkpoint processes off the new GPUs, so that none is on any; the old GPUs come later."""
    lost: list[int] = []
    for process in processes:
        try:
            _do(calls, driver_calls.CHECKPOINT, process, 0, _time_for(size))
        except CheckpointError:
            lost.append(process)
    moved = tuple(process for process in processes if process not in lost)
    return Outcome(problem, tuple(lost), unmoved=True, moved=moved)


def undo(
    processes: Sequence[int], size: int, make: Callable[[], Calls] = CallProcess
) -> tuple[int, ...]:
    """Let processes run again from any state; return those that cannot."""
    lost: list[int] = []
    calls: Calls | None = None
    # One after another: one that hangs must not cost the others their way back.
    for process in reversed(processes):
        try:
            calls = calls or make()
            state = _state(calls, process)
            if state is State.FAILED:
                lost.append(process)
            if state is State.CHECKPOINTED:
                _do(calls, driver_calls.RESTORE, process, 0, _time_for(size))
            if state in (State.CHECKPOINTED, State.LOCKED):
                _do(calls, driver_calls.UNLOCK, process, 0, CALL_TIMEOUT_S)
        except CheckpointError:
            lost.append(process)
            if calls is not None:
                calls.close()
            calls = None
    if calls is not None:
        calls.close()
    return tuple(lost)


def reason(name: str, result: int) -> str:
    """Return a user-readable reason for a driver's result."""
    known = {
        driver_calls.NO_SUCH_FUNCTION: DRIVER_TOO_OLD,
        driver_calls.NOT_SUPPORTED: "the server's NVIDIA driver cannot suspend a program that "
        "uses the GPU like this one, for instance with managed memory",
        _OPERATING_SYSTEM: "only root may suspend programs on NVIDIA GPUs, and this server was "
        "not started by root",
        _OUT_OF_MEMORY: "there is not enough memory for it",
        _NOT_READY: f"its GPU did not come to rest within {LOCK_TIMEOUT_S:.0f} s; a kernel may "
        "run without end",
    }
    return known.get(result, f"the NVIDIA driver answers {result} to {name}")


def _time_for(size: int) -> float:
    return CALL_TIMEOUT_S + size / BYTES_PER_S


def _state(calls: Calls, process: int) -> State:
    result, value = calls.call(driver_calls.GET_STATE, process, 0, CALL_TIMEOUT_S)
    if result == _NOT_INITIALIZED:
        return State.NO_CUDA
    if result != driver_calls.SUCCESS:
        raise CheckpointError(reason(driver_calls.GET_STATE, result))
    return State(value) if value in _STATES else State.FAILED


def _restore(
    calls: Calls, process: int, size: int, lost: list[int], moves: Mapping[str, str]
) -> None:
    result = _INVALID
    # The driver wants pairs for the GPUs that the process could see when it was checkpointed: its
    # own ones in a /dev of its own, after an attempt the new ones, too, and else all. It refuses
    # the wrong ones within milliseconds.
    for which in _PAIRS[: len(_PAIRS) if moves else 1]:
        if result == _INVALID:
            result, _ = calls.call(driver_calls.RESTORE, process, which, _time_for(size), moves)
    if result == driver_calls.SUCCESS:
        return
    if moves and result == _INVALID and _state(calls, process) is State.CHECKPOINTED:
        raise UnmovedError("the server's NVIDIA driver does not restore it on the other GPU")
    lost.append(process)
    raise CheckpointError(reason(driver_calls.RESTORE, result))


def _do(calls: Calls, name: str, process: int, number: int, timeout_s: float) -> None:
    result, _ = calls.call(name, process, number, timeout_s)
    if result != driver_calls.SUCCESS:
        raise CheckpointError(reason(name, result))
