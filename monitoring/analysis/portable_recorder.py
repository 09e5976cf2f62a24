"""Records the use of this machine's GPUs into a SQLite file: one file, the standard library alone.

``gpupool analyze script`` prints this file for machines without gpupool, to be run there by
``python3 record.py --for 14d --out FILE``, or by ``ssh host python3 - < record.py``. It needs no
root, opens no port, and only reads. ``gpupool analyze record`` runs it as well.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import pwd
import re
import secrets
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = 1
EVERY_S = 10
ROLL_UP_AFTER_S = 3 * 86400
MINUTE_S = 60
GPU_COUNT_MAX = 64
PROCESS_COUNT_MAX = 1024
ANCESTOR_COUNT_MAX = 64
SHELLS = {
    *("bash", "sh", "dash", "zsh", "fish", "tcsh", "csh", "ksh", "tmux", "tmux: server", "screen"),
    *("sshd", "systemd", "init", "login", "su", "sudo", "slurmstepd", "containerd", "dockerd"),
    *("containerd-shim", "jupyter-lab", "jupyterhub", "cron", "supervisord"),
}
"""Parents of unrelated programs: no part of a job."""

TABLES = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu(id INTEGER PRIMARY KEY, uuid TEXT UNIQUE, name TEXT, memory INTEGER);
CREATE TABLE IF NOT EXISTS user(id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS program(id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS gpu_sample(t INTEGER, gpu INTEGER, span_s INTEGER, busy_sum INTEGER,
    busy_count INTEGER, memory_max INTEGER, PRIMARY KEY(t, gpu)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS process_sample(t INTEGER, gpu INTEGER, tree TEXT, span_s INTEGER,
    user INTEGER, program INTEGER, memory_max INTEGER, sm_sum INTEGER, sm_count INTEGER,
    PRIMARY KEY(t, gpu, tree)) WITHOUT ROWID;
"""
ROLL_UP = (
    "INSERT OR REPLACE INTO gpu_sample SELECT t / 60 * 60 AS minute, gpu, sum(span_s), "
    "sum(busy_sum), sum(busy_count), max(memory_max) FROM rolled_gpu GROUP BY minute, gpu",
    "INSERT OR REPLACE INTO process_sample SELECT t / 60 * 60 AS minute, gpu, tree, sum(span_s), "
    "user, program, max(memory_max), sum(sm_sum), sum(sm_count) FROM rolled_process "
    "GROUP BY minute, gpu, tree",
)


class Gpu(NamedTuple):
    """One GPU."""

    uuid: str
    name: str
    memory: int


class Reading(NamedTuple):
    """One reading of a GPU: thousandths of busy time, bytes, and those of each process."""

    uuid: str
    busy: int | None
    memory: int
    processes: dict[int, int]


class Owner(NamedTuple):
    """Owner of a process: its process tree, user and program."""

    tree: str
    user: str
    program: str


# --- processes ------------------------------------------------------------------------------------


def process_of(pid: int, proc: Path) -> tuple[int, int, int, str] | None:
    """Return parent, user, start and name of a process, or None when it is gone or hidden."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        uid = (proc / str(pid)).stat().st_uid
    except OSError:
        return None
    # The name stands in parentheses, and may have some of its own.
    found = re.match(r"\d+ \((.*)\) \S (\d+) (?:\S+ ){17}(\d+)", text, re.DOTALL)
    return (int(found[2]), uid, int(found[3]), found[1]) if found else None


class Owners:
    """Finds owners of processes; users are named by a salted hash unless names are wanted."""

    def __init__(self, salt: bytes | None, proc: Path = Path("/proc")) -> None:
        self._salt = salt
        self._proc = proc
        self._users: dict[int, str] = {}

    def of(self, pid: int) -> Owner:
        """Return the owner of a process, which is that of the first of its kind above it."""
        found = process_of(pid, self._proc)
        if found is None:
            return Owner(str(pid), "?", "?")
        root, (parent, uid, start, program) = pid, found
        for _ in range(ANCESTOR_COUNT_MAX):
            above = process_of(parent, self._proc) if parent > 1 else None
            if above is None or above[1] != uid or above[3] in SHELLS:
                break
            root, parent, start = parent, above[0], above[2]
        return Owner(f"{root}.{start}", self._user(uid), program[:64])

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                name = pwd.getpwuid(uid).pw_name
            except KeyError:
                name = str(uid)
            if self._salt is not None:
                name = "u-" + hashlib.sha256(self._salt + name.encode()).hexdigest()[:10]
            self._users[uid] = name
        return self._users[uid]


def salt_of(path: Path) -> bytes:
    """Return the salt of a recording, which is in a separate file: keep that to yourself."""
    place = path.with_name(path.name + ".salt")
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return place.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        salt = secrets.token_bytes(16)
        file.write(salt)
    return salt


# --- the file -------------------------------------------------------------------------------------


class Store:
    """The recording. A reading that is missing has no row: a gap is a gap."""

    def __init__(self, path: Path, machine: str, every_s: int) -> None:
        """Open a recording, or begin one; ValueError for that of another machine or interval."""
        self.every_s = every_s
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self.db = sqlite3.connect(str(path), isolation_level=None)
        try:
            self._begin(machine)
        except BaseException:
            self.db.close()
            raise
        self._rolled_to = 0

    def _begin(self, machine: str) -> None:
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")
        self.db.executescript(TABLES)
        wanted = {"schema": str(SCHEMA), "machine": machine, "every_s": str(self.every_s)}
        known = dict(self.db.execute("SELECT key, value FROM meta"))
        for key, value in wanted.items():
            if known.get(key, value) != value:
                raise ValueError(f"it has {key} {known[key]}, and this would add {value}")
        self.db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", wanted.items())

    def add_gpus(self, gpus: list[Gpu]) -> None:
        """Note the GPUs that there are."""
        insert = "INSERT OR IGNORE INTO gpu(uuid, name, memory) VALUES (?, ?, ?)"
        self.db.executemany(insert, gpus)

    def add(self, now: float, readings: list[Reading], owner: Callable[[int], Owner]) -> None:
        """Write one round of readings, and join old ones to minutes."""
        t = int(now) // self.every_s * self.every_s
        self.db.execute("BEGIN")
        try:
            for reading in readings:
                self._add_one(t, reading, owner)
            if self.every_s < MINUTE_S and t - self._rolled_to >= 3600:
                self._roll_up((t - ROLL_UP_AFTER_S) // MINUTE_S * MINUTE_S)
                self._rolled_to = t
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def _add_one(self, t: int, reading: Reading, owner: Callable[[int], Owner]) -> None:
        (gpu,) = self.db.execute("SELECT id FROM gpu WHERE uuid = ?", (reading.uuid,)).fetchone()
        busy = (0, 0) if reading.busy is None else (reading.busy, 1)
        values = (t, gpu, self.every_s, *busy, reading.memory)
        self.db.execute("INSERT OR IGNORE INTO gpu_sample VALUES (?, ?, ?, ?, ?, ?)", values)
        trees: dict[str, tuple[Owner, int]] = {}
        for pid, memory in list(reading.processes.items())[:PROCESS_COUNT_MAX]:
            who = owner(pid)
            first, held = trees.get(who.tree, (who, 0))
            trees[who.tree] = (first, held + memory)
        for tree, (who, held) in trees.items():
            user, program = self._id("user", who.user), self._id("program", who.program)
            # The last two are of a process's own share of the GPU, which no report reads any more.
            row = (t, gpu, tree, self.every_s, user, program, held, 0, 0)
            self.db.execute("INSERT OR IGNORE INTO process_sample VALUES (?,?,?,?,?,?,?,?,?)", row)

    def _id(self, table: str, name: str) -> int:
        self.db.execute(f"INSERT OR IGNORE INTO {table}(name) VALUES (?)", (name,))  # noqa: S608
        query = f"SELECT id FROM {table} WHERE name = ?"  # noqa: S608
        return int(self.db.execute(query, (name,)).fetchone()[0])

    def _roll_up(self, before: int) -> None:
        """Join the readings before ``before`` to minutes: sums with counts, and maxima."""
        for kind in ("gpu", "process"):
            where = f"FROM {kind}_sample WHERE t < {int(before)} AND span_s <= {int(self.every_s)}"
            self.db.execute(f"CREATE TEMP TABLE rolled_{kind} AS SELECT * {where}")
            self.db.execute(f"DELETE {where}")
        for statement in ROLL_UP:
            self.db.execute(statement)
        for kind in ("gpu", "process"):
            self.db.execute(f"DROP TABLE rolled_{kind}")


# --- NVML -----------------------------------------------------------------------------------------


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        *(("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong)),
        *((name, ctypes.c_uint) for name in ("gpu_instance", "compute_instance")),
    )


class NvmlMissingError(Exception):
    """There is no driver, no GPU, or no answer."""


FAILURES = (NvmlMissingError, sqlite3.Error, ValueError, OSError)


class CtypesNvml:
    """NVML by ctypes. Divided GPUs (MIG) are recorded as wholes, without how busy they were."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        try:
            self._lib: Any = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlMissingError(str(error)) from error
        if self._lib.nvmlInit_v2():
            raise NvmlMissingError("the driver is not loaded")
        self._handles: dict[str, ctypes.c_void_p] = {}

    def gpus(self) -> list[Gpu]:
        """Return the GPUs."""
        count = ctypes.c_uint()
        if self._lib.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            raise NvmlMissingError("it does not say how many GPUs there are")
        found: list[Gpu] = []
        for index in range(min(count.value, GPU_COUNT_MAX)):
            handle = ctypes.c_void_p()
            if self._lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue  # a GPU that has fallen off the bus
            uuid, name = self._text("UUID", handle), self._text("Name", handle)
            self._handles[uuid] = handle
            found.append(Gpu(uuid, name, self._memory(handle)[0]))
        if not found:
            raise NvmlMissingError("this machine has no NVIDIA GPU")
        return found

    def readings(self) -> list[Reading]:
        """Return a reading of each GPU that answers."""
        return [found for uuid in self._handles if (found := self._reading(uuid)) is not None]

    def _reading(self, uuid: str) -> Reading | None:
        handle = self._handles[uuid]
        total, used = self._memory(handle)
        if not total:
            return None
        rates = (ctypes.c_uint * 2)()
        known = not self._lib.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates))
        processes = {
            each.pid: int(each.memory)
            for each in self._processes(handle)
            if each.memory < 1 << 62  # all bits are set where it is not known
        }
        return Reading(uuid, rates[0] * 10 if known else None, used, processes)

    def _text(self, what: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(96)
        getattr(self._lib, f"nvmlDeviceGet{what}")(handle, buffer, 96)
        return buffer.value.decode(errors="replace")

    def _memory(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        memory = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        try:
            if not self._lib.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)):
                return int(memory.total), int(memory.used)
        except AttributeError:
            pass  # a driver before 510
        plain = (ctypes.c_ulonglong * 3)()
        failed = self._lib.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(plain))
        return (0, 0) if failed else (int(plain[0]), int(plain[2]))

    def _processes(self, handle: ctypes.c_void_p) -> list[Any]:
        count = ctypes.c_uint(PROCESS_COUNT_MAX)
        rows = (_Process * PROCESS_COUNT_MAX)()
        try:
            function = self._lib.nvmlDeviceGetComputeRunningProcesses_v3
        except AttributeError:
            function = self._lib.nvmlDeviceGetComputeRunningProcesses_v2
        return [] if function(handle, ctypes.byref(count), rows) else list(rows[: count.value])


# --- the program ----------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """Return the seconds of ``90``, ``30m``, ``12h`` or ``14d``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no duration: write 30m, 12h or 14d")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def stop(signal_number: int, frame: object) -> None:
    """End at a signal; readings so far are written."""
    raise KeyboardInterrupt


def main(arguments: list[str]) -> None:
    """Record until the end or a signal; one of ``FAILURES`` when that cannot be."""
    machine = os.uname().nodename.split(".")[0]
    parser = argparse.ArgumentParser(description="Record the use of this machine's GPUs.")
    parser.add_argument("--for", dest="for_s", type=seconds, default=14 * 86400.0)
    parser.add_argument("--out", type=Path, default=Path(f"gpu-use-{machine}.db"))
    parser.add_argument("--every", type=int, default=EVERY_S, choices=(1, 2, 5, 10, 30, 60))
    parser.add_argument("--names", action="store_true", help="users' names, not their hashes")
    parser.add_argument("--library", default="libnvidia-ml.so.1", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    nvml = CtypesNvml(options.library)
    gpus = nvml.gpus()
    store = Store(options.out, machine, options.every)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        store.add_gpus(gpus)
        owners = Owners(None if options.names else salt_of(options.out))
        sys.stderr.write(f"{len(gpus)} GPUs are recorded into {options.out}\n")
        end = time.time() + options.for_s
        while time.time() < end:
            store.add(time.time(), nvml.readings(), owners.of)
            time.sleep(options.every - time.time() % options.every)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on with the same file\n")
    finally:
        signal.signal(signal.SIGTERM, before)
        store.db.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FAILURES as failure:
        sys.exit(f"cannot record: {failure}")
