"""Recordings of ``gpupool analyze record`` and of its script, as traces."""

import contextlib
import sqlite3
from pathlib import Path

from gpupool.monitoring.analysis.process_jobs import Held, jobs_of
from gpupool.monitoring.analysis.trace_form import Builder, Machine, Sample, Trace, TraceError

MAGIC = b"SQLite format 3\0"
SCHEMA = 1


def is_recording(path: Path) -> bool:
    """Return whether a file is a database."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_recording(path: Path) -> Trace:
    """Return what a recording says, while it goes on as well.

    Raises:
        TraceError: when it is no recording of ours, or damaged.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(path.absolute().as_uri() + "?mode=ro", uri=True)
        ) as db:
            return _trace(db, path)
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise TraceError(
            f"{path} is no recording of gpupool, or a damaged one",
            why=str(error)[:120],
            hint="give the file that gpupool analyze record or its script wrote",
        ) from error


def _trace(db: sqlite3.Connection, path: Path) -> Trace:
    meta = {str(k): str(v) for k, v in db.execute("SELECT key, value FROM meta")}
    if meta.get("schema") != str(SCHEMA):
        raise TraceError(
            f"{path} has version {meta.get('schema', 'none')[:20]} of recordings",
            why=f"this gpupool knows version {SCHEMA}",
            hint="use a newer gpupool",
        )
    machine = meta["machine"]
    builder = Builder("recording")
    gpus = {
        int(number): (str(uuid), int(memory))
        for number, uuid, memory in db.execute("SELECT id, uuid, memory FROM gpu")
    }
    models = [str(name) for (name,) in db.execute("SELECT name FROM gpu ORDER BY id LIMIT 1")]
    capacity = max((memory for _, memory in gpus.values()), default=0)
    builder.add_machine(Machine(machine, len(gpus), models[0] if models else "", capacity))
    every_s = float(meta["every_s"])
    for t, span_s, gpu, busy_sum, busy_count, memory in db.execute(
        "SELECT t, span_s, gpu, busy_sum, busy_count, memory_max FROM gpu_sample ORDER BY t, gpu"
    ):
        busy = busy_sum / busy_count / 1000 if busy_count else None
        # A reading of a minute becomes as many as it was made of, so that all count alike.
        for part in range(max(1, round(span_s / every_s))):
            at = float(t) + part * every_s
            builder.add_sample(Sample(at, machine, gpus[gpu][0], busy, memory))
    held = _held(db, machine, gpus, every_s)
    for job in jobs_of(held, capacity, every_s):
        builder.add_job(job)
    trace = builder.trace()
    if not trace.every_s:
        raise TraceError(
            f"{path} has a single reading of each GPU", hint="let the recording go on for a while"
        )
    return trace


def _held(
    db: sqlite3.Connection, machine: str, gpus: dict[int, tuple[str, int]], every_s: float
) -> list[Held]:
    found: list[Held] = []
    for t, span_s, gpu, tree, user, program, memory in db.execute(
        "SELECT t, span_s, gpu, tree, user.name, program.name, memory_max FROM process_sample "
        "JOIN user ON user.id = process_sample.user "
        "JOIN program ON program.id = process_sample.program ORDER BY t"
    ):
        for part in range(max(1, round(span_s / every_s))):
            at = float(t) + part * every_s
            found.append(Held(at, machine, gpus[gpu][0], tree, user, program, memory))
    return found
