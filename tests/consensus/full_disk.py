"""A process that commits 2 KiB values to a journal until its disk takes no more.

Ours has a reserve of 8 MiB, which it gives up first: its values have 16 KiB.

Usage: full_disk.py library|ours FOLDER fill    commit, and print each number that is acknowledged
       full_disk.py library|ours FOLDER limit   the same, with files of at most 128 KiB
       full_disk.py library|ours FOLDER kept    print the numbers that a start finds there
       full_disk.py library|ours FOLDER mount SIZE    fill a file system of that size, mounted
           there, and make room; needs a mount namespace of its own, which ends with the process
"""

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bare_library import Bare, library
from lone_node import ME, Lone
from pysyncobj.journal import FileJournal

from gpupool.consensus.storage.disk import FileDisk
from gpupool.consensus.storage.store import Storage, bootstrap
from gpupool.pool.ports import Committed

LIMIT_BYTES = 128 << 10
COMMANDS = 400
VALUE = "x" * 2048


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))


def acknowledge(number: int) -> None:
    print(number, flush=True)


def fill_library(folder: Path, limit: Callable[[], None]) -> None:
    def answer(number: int) -> Callable[[object, int], None]:
        return lambda _, error: acknowledge(number) if error == 0 else print("refused", flush=True)

    bare = Bare("me", [], journalFile=str(folder / "journal"))
    bare.campaign()
    limit()
    for number in range(COMMANDS):
        bare.put([number, VALUE], callback=answer(number))
        for _ in range(2):
            # The library's own thread logs what a tick raises, and goes on.
            with contextlib.suppress(OSError, ValueError):
                bare.tick()


def kept_by_library(folder: Path) -> list[int]:
    journal: Any = FileJournal(str(folder / "journal"))
    commands = [library.pickle.loads(data[1:]) for data, _, _ in journal[:] if data[:1] == b"\x00"]
    return [command[1][0][0] for command in commands]


def fill_ours(folder: Path, limit: Callable[[], None]) -> None:
    disk: Any = FileDisk(folder)
    bootstrap(Storage(disk, create=True), ME)
    lone = Lone((ME,), disk=disk)
    lone.tick(1.0)
    limit()
    value = VALUE if limit is limit_files else VALUE * 8
    for number in range(2 * COMMANDS):
        lone.propose([number, value])
        for _ in range(2):
            lone.tick()
        assert isinstance(lone.outcomes[number], Committed)
        acknowledge(number)


def kept_by_ours(folder: Path) -> list[int]:
    disk: Any = FileDisk(folder)
    lone = Lone((ME,), disk=disk)
    for _ in range(30):
        lone.tick(1.0)
    log: Any = lone.machine.log
    return [number for number, _ in log]


def mounted(kind: str, folder: Path, size: str) -> dict[str, Any]:
    this = [sys.executable, __file__, kind, str(folder)]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    filled = subprocess.run([*this, "fill"], capture_output=True, text=True, check=False)
    subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
    kept = subprocess.run([*this, "kept"], stdout=subprocess.PIPE, text=True, check=True)
    return {
        "end": filled.returncode,
        "said": filled.stderr,
        "acknowledged": filled.stdout.split(),
        "kept": kept.stdout.split(),
    }


def main(kind: str, path: str, what: str, *arguments: str) -> None:
    folder, ours = Path(path), kind == "ours"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if what == "mount":
        print(json.dumps(mounted(kind, folder, *arguments)))
    elif what == "kept":
        print(*(kept_by_ours if ours else kept_by_library)(folder))
    else:
        limit = limit_files if what == "limit" else lambda: None
        (fill_ours if ours else fill_library)(folder, limit)


if __name__ == "__main__":
    main(*sys.argv[1:])
