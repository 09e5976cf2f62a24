"""The record of live worker processes on disk, and the killing of a former host's workers.

Workers die with their host: by the kernel's parent-death signal, and because their control socket
closes. This is the third net, for a worker that the first two missed: a new incarnation offers
nothing before all workers of the former one are gone.
"""

import contextlib
import json
import os
import select
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gpupool.pool.errors import GpupoolError, StorageError
from gpupool.remoting.host.remove_tree import remove_tree

FILE_NAME = "workers.json"
DIRECTORY_NAME = "workers"
TEMPORARY_PREFIX = "gpupool-workers-"
DEATH_TIMEOUT_S = 10.0
RECORD_COUNT_MAX = 65536


def start_time_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone.

    The pid and this together name a process for as long as the machine is up (proc(5), field 22
    of /proc/PID/stat). The command name before it may hold anything, brackets too.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if not fields or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def boot_id() -> str:
    """Return the kernel's boot id of this machine; empty when unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def write_record(state_dir: Path, workers: Mapping[int, int], directory: Path) -> None:
    """Record the live workers, pid to start time, and the directory of their files.

    A reader sees the old record or the new one. Not synced: after a crash of the machine there
    are no workers to find.
    """
    record = {"boot": boot_id(), "workers": sorted(workers.items()), "directory": str(directory)}
    text = json.dumps(record)
    temporary = state_dir / (FILE_NAME + ".new")
    try:
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        temporary.replace(state_dir / FILE_NAME)
    except OSError as error:
        raise StorageError("the record of workers cannot be written", why=str(error)) from error


def reap_orphans(state_dir: Path) -> int:
    """Kill every recorded worker that still lives, wait until it is gone, and count them.

    Their files are removed, too. Blocks for up to ``DEATH_TIMEOUT_S`` in all.

    Raises:
        StorageError: when the record exists but cannot be read.
        GpupoolError: when a worker cannot be killed; nothing may be offered then.
    """
    path = state_dir / FILE_NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError("the record of workers cannot be read", why=str(error)) from error
    boot, workers, directory = _parse(text)
    if boot != boot_id():
        workers = []
    killed = [pid for pid, started in workers if _kill(pid, started)]
    # What cannot be removed is only litter: it is not worth a server that does not start.
    remove_tree(directory)
    path.unlink()
    return len(killed)


def _parse(text: str) -> tuple[str, list[tuple[int, int]], Path]:
    try:
        record: Any = json.loads(text)
        boot, rows = record["boot"], cast("list[Any]", record["workers"])
        workers = [(int(pid), int(started)) for pid, started in rows[:RECORD_COUNT_MAX]]
        directory = Path(str(record["directory"]))
        if directory.name != DIRECTORY_NAME and not directory.name.startswith(TEMPORARY_PREFIX):
            raise ValueError(directory)
        return str(boot), workers, directory
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            "the record of workers is damaged",
            why=repr(error)[:200],
            hint="make sure that no process of a former gpupool server lives, then delete "
            + FILE_NAME,
        ) from error


def _kill(pid: int, started: int) -> bool:
    """Kill the process if it is still the recorded one; return whether it was."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        stack.callback(os.close, descriptor)
        # The descriptor holds on to one process; only now is its start time that process's.
        if start_time_of(pid) != started:
            return False
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise GpupoolError(
                f"worker {pid} of a former run cannot be killed",
                why=str(error),
                hint="start the server as the user that ran it before",
            ) from error
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(DEATH_TIMEOUT_S * 1000):
            raise GpupoolError(
                f"worker {pid} of a former run does not die",
                why="it hangs inside the kernel, most likely in the GPU driver",
                hint="reset the GPU or restart the machine",
            )
        return True
