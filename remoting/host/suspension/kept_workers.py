"""Suspends and resumes workers as their helper: emulated GPUs by signals, else by the driver.

What the driver keeps of real ones may go on to a disk (``spilled_memory``). Blocks for as long as
the memory takes to move.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial

from gpupool.pool.model.ids import GpuId
from gpupool.remoting.host.spawn import KeptWorker
from gpupool.remoting.host.suspension import checkpointer, spilled_memory
from gpupool.remoting.host.suspension.spilled_memory import Area, SpilledMemory, SpillError
from gpupool.remoting.protocol import helper_messages

STOP_TIMEOUT_S = 2.0

SLACK = 1 << 30
"""Bytes that the driver keeps of a context, on top of the bytes in the books."""

_POLL_S = 0.001


def suspend(
    stop: Sequence[KeptWorker], save: Sequence[KeptWorker], size: int, file: int = -1
) -> helper_messages.Moved:
    """Suspend all workers, or none.

    Args:
        stop: those on emulated GPUs.
        save: those on real ones.
        size: bytes that these have there, about.
        file: descriptor of an empty file to which these bytes go; -1: they stay in memory.
    """
    numbers = {worker.process.pid: worker.number for worker in save}
    idle: tuple[int, ...] = ()
    if save:
        before: dict[int, list[Area]] = {}

        def look(process: int) -> None:
            before[process] = spilled_memory.anonymous(process)

        outcome = checkpointer.suspend(list(numbers), size, _making(save), look)
        lost = tuple(numbers[pid] for pid in outcome.lost)
        if outcome.problem:
            return helper_messages.Moved(_problem(save, outcome.problem), lost)
        idle = outcome.idle
        using = [worker for worker in save if worker.process.pid not in idle]
        if file >= 0 and (moved := _spill(using, before, size, file)).problem:
            return moved
    # A worker that has not begun to use its GPU must not begin now.
    stopping = (*stop, *(each for each in save if each.process.pid in idle))
    for worker in stopping:
        worker.process.send_signal(signal.SIGSTOP)
    for worker in stopping:
        _wait_stopped(worker.process)
    spilled = sum(worker.spilled.size for worker in save if worker.spilled is not None)
    return helper_messages.Moved(stopped=tuple(numbers[pid] for pid in idle), spilled=spilled)


def _spill(
    workers: Sequence[KeptWorker], before: Mapping[int, list[Area]], size: int, file: int
) -> helper_messages.Moved:
    """Spill the driver's copies of suspended workers to the disk, or let them run again."""
    areas: dict[int, list[Area]] = {}
    end = 0
    try:
        for worker in workers:
            pid = worker.process.pid
            areas[pid] = spilled_memory.mapped_since(before[pid], spilled_memory.anonymous(pid))
        found = sum(area.size for of_one in areas.values() for area in of_one)
        if found > size + SLACK:
            raise SpillError("it has come to have more memory than it had on its GPUs")
        if found < size - len(workers) * (spilled_memory.AREA_MIN + SLACK):
            raise SpillError("the server's NVIDIA driver keeps it where it is not found")
        for worker in workers:
            memory = SpilledMemory(worker.process.pid, worker.line, file, end)
            worker.spilled = memory
            memory.save(areas[worker.process.pid])
            end = memory.end
        # Only now: a failure above has changed nothing.
        for worker in workers:
            assert worker.spilled is not None
            worker.spilled.drop(areas[worker.process.pid])
    except Exception as error:  # noqa: BLE001 - whatever failed, the workers must run again
        problem = f"its memory cannot go to the disk: {error}"
        lost = _bring_back(workers)
        numbers = {worker.process.pid: worker.number for worker in workers}
        left = [pid for pid, number in numbers.items() if number not in lost]
        lost += [numbers[pid] for pid in checkpointer.undo(left, size, _making(workers))]
        return helper_messages.Moved(_problem(workers, problem), tuple(lost))
    return helper_messages.Moved()


def _bring_back(workers: Sequence[KeptWorker]) -> list[int]:
    """Load the workers' spilled memory again; return the numbers of those that lost some."""
    lost: list[int] = []
    for worker in workers:
        if worker.spilled is not None:
            try:
                worker.spilled.bring_back()
            except SpillError:
                lost.append(worker.number)
            worker.spilled.close()
            worker.spilled = None
    return lost


def resume(
    stopped: Sequence[KeptWorker],
    saved: Sequence[KeptWorker],
    size: int,
    moves: Mapping[GpuId, GpuId],
) -> helper_messages.Moved:
    """Let suspended workers go on: first all have their memory again, then all run.

    Args:
        stopped: those that were only stopped.
        saved: those that had memory on real GPUs.
        size: bytes of that, about.
        moves: where each real GPU's part of them goes; empty: where it was.
    """
    if lost := _bring_back(saved):
        problem = _problem(saved, "what a disk had of its memory does not come back")
        return helper_messages.Moved(problem, tuple(lost))
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
            return helper_messages.Moved(problem, lost, unmoved=outcome.unmoved)
    for worker in stopped:
        worker.process.send_signal(signal.SIGCONT)
    return helper_messages.Moved()


def _pairs(saved_on: Mapping[GpuId, GpuId], moves: Mapping[GpuId, GpuId]) -> dict[str, str]:
    """Return a map from the GPUs that the driver would restore on to the worker's new GPUs."""
    every = {*saved_on, *moves}
    pairs: dict[str, str] = {saved_on.get(gpu, gpu): moves.get(gpu, gpu) for gpu in every}
    return pairs if any(old != new for old, new in pairs.items()) else {}


def _making(workers: Sequence[KeptWorker]) -> partial[checkpointer.CallProcess]:
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
    """Return whether a process lives, without reaping it: that is up to its waiter."""
    if process.returncode is not None:
        return False
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, flags) is None
    except ChildProcessError:
        return False


def _problem(workers: Sequence[KeptWorker], problem: str) -> str:
    if any(not _lives(worker.process) for worker in workers):
        return "one of its workers ended meanwhile"
    return problem
