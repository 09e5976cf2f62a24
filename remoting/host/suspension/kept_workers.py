"""Suspends and resumes workers as their keeper: on emulated GPUs by signals, else by the driver.

Blocks for as long as the memory takes to move.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from gpupool.remoting.host.suspension import checkpointer
from gpupool.remoting.protocol import keeper_messages

STOP_TIMEOUT_S = 2.0
_POLL_S = 0.001


class Kept(Protocol):
    """What is needed of a worker."""

    saved_on: Mapping[str, str]
    """Where it would be restored, by its GPUs, after a move that was not done; empty: there."""

    @property
    def number(self) -> int:
        """Return its number."""
        ...

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Return its process."""
        ...


def suspend(stop: Sequence[Kept], save: Sequence[Kept], size: int) -> keeper_messages.Moved:
    """Suspend all workers, or none.

    Args:
        stop: those on emulated GPUs.
        save: those on real ones.
        size: bytes that these have there, about.
    """
    numbers = {worker.process.pid: worker.number for worker in save}
    idle: tuple[int, ...] = ()
    if save:
        outcome = checkpointer.suspend(list(numbers), size, _making(save))
        lost = tuple(numbers[pid] for pid in outcome.lost)
        if outcome.problem:
            return keeper_messages.Moved(_problem(save, outcome.problem), lost)
        idle = outcome.idle
    # A worker that has not begun to use its GPU must not begin now.
    stopping = (*stop, *(each for each in save if each.process.pid in idle))
    for worker in stopping:
        worker.process.send_signal(signal.SIGSTOP)
    for worker in stopping:
        _wait_stopped(worker.process)
    return keeper_messages.Moved(stopped=tuple(numbers[pid] for pid in idle))


def resume(
    stopped: Sequence[Kept], saved: Sequence[Kept], size: int, moves: Mapping[str, str]
) -> keeper_messages.Moved:
    """Let suspended workers go on: first all have their memory again, then all run.

    Args:
        stopped: those that were only stopped.
        saved: those that had memory on real GPUs.
        size: bytes of that, about.
        moves: where each real GPU's part of them goes; empty: where it was.
    """
    if saved:
        numbers = {worker.process.pid: worker.number for worker in saved}
        pairs = {worker.process.pid: _pairs(worker.saved_on, moves) for worker in saved}
        outcome = checkpointer.resume(list(numbers), size, _making(saved), pairs)
        for worker in saved:
            if worker.process.pid in outcome.moved:
                worker.saved_on = dict(moves)
            elif not outcome.problem:
                worker.saved_on = {}
        if outcome.problem:
            lost = tuple(numbers[pid] for pid in outcome.lost)
            problem = _problem(saved, outcome.problem)
            return keeper_messages.Moved(problem, lost, unmoved=outcome.unmoved)
    for worker in stopped:
        worker.process.send_signal(signal.SIGCONT)
    return keeper_messages.Moved()


def _pairs(saved_on: Mapping[str, str], moves: Mapping[str, str]) -> dict[str, str]:
    """Return where what a worker had goes from where the driver would bring it back to."""
    every = {*saved_on, *moves}
    pairs = {saved_on.get(gpu, gpu): moves.get(gpu, gpu) for gpu in every}
    return pairs if any(old != new for old, new in pairs.items()) else {}


def _making(workers: Sequence[Kept]) -> partial[checkpointer.CallProcess]:
    processes = {worker.process.pid: worker.process for worker in workers}
    return partial(checkpointer.CallProcess, lambda pid: _lives(processes[pid]))


def _wait_stopped(process: "subprocess.Popen[bytes]") -> None:
    """Wait until all threads of a process stand still: the signal alone says nothing of that."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    flags = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):  # It has ended, and was reaped.
        while process.returncode is None and os.waitid(os.P_PID, process.pid, flags) is None:
            if time.monotonic() > deadline:
                return  # It hangs in the kernel, and will stop before it runs again.
            time.sleep(_POLL_S)


def _lives(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether a process lives, without reaping it: that is for who waits for it."""
    if process.returncode is not None:
        return False
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, flags) is None
    except ChildProcessError:
        return False


def _problem(workers: Sequence[Kept], problem: str) -> str:
    if any(not _lives(worker.process) for worker in workers):
        return "one of its workers ended meanwhile"
    return problem
