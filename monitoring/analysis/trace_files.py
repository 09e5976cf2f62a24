"""Trace files on the disk: read with limits, written whole; several become one trace."""

import contextlib
import gzip
import io
import sqlite3
import sys
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from gpupool.monitoring.analysis import importers
from gpupool.monitoring.analysis.csv_rows import Source
from gpupool.monitoring.analysis.process_jobs import Held, jobs_of
from gpupool.monitoring.analysis.trace_form import Builder, Machine, Sample, Trace, TraceError
from gpupool.monitoring.analysis.trace_lines import from_lines, to_lines

FILE_MAX = 16 << 30
"""Characters of one file, unpacked: more than the largest trace that is published has."""

CHUNK = 1 << 18
"""Characters that one read takes of a line; a reader refuses longer lines."""


@contextlib.contextmanager
def opened(path: str) -> Generator[Iterator[str]]:
    """Yield the lines of a file; of standard input for ``-``; gzip data unpacked.

    Raises:
        TraceError: when it cannot be read, or is no text.
    """
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            binary = gzip.GzipFile(fileobj=raw) if packed else raw
            with binary, io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
                yield _lines(text, path)
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{path} is no text in UTF-8", hint="give the files that the format names"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise TraceError(f"cannot read {path}", why=why) from error


def _lines(stream: TextIO, name: str) -> Iterator[str]:
    size = 0
    while line := stream.readline(4 * CHUNK):
        size += len(line)
        if size > FILE_MAX:
            raise TraceError(f"{name} is longer than {FILE_MAX >> 30} GiB", hint="cut the file")
        yield line


def read_import(name: str, paths: Sequence[str], *, zone: str = "", thin_s: float = 0.0) -> Trace:
    """Return the trace that files of a foreign format say.

    Raises:
        TraceError: with what is wrong, and in which file.
    """
    with contextlib.ExitStack() as stack:
        sources = [Source(path, stack.enter_context(opened(path))) for path in paths]
        return importers.read(name, sources, zone=zone, thin_s=thin_s)


def read_traces(paths: Sequence[str]) -> Trace:
    """Return one trace of all that the files hold: traces, and recordings.

    Raises:
        TraceError: when one of them is neither.
    """
    found = [_read(path) for path in paths]
    return found[0] if len(found) == 1 else merged(found)


def _read(path: str) -> Trace:
    if path != "-" and is_recording(Path(path)):
        return read_recording(Path(path))
    with opened(path) as lines:
        return from_lines(lines, path)


def merged(traces: Sequence[Trace]) -> Trace:
    """Return one trace of several of the same time, such as jobs and readings, or two machines."""
    sources = ", ".join(dict.fromkeys(trace.source for trace in traces))
    builder = Builder(sources, zone=traces[0].zone)
    for trace in traces:
        for job in trace.jobs:
            builder.add_job(job)
        for sample in trace.samples:
            builder.add_sample(sample)
        for machine in trace.machines:
            builder.add_machine(machine)
    builder.notes = {}
    for trace in traces:
        for key, count in trace.notes.items():
            builder.note(key, count)
    builder.begin = min(trace.begin for trace in traces)
    builder.end = max(trace.end for trace in traces)
    return builder.trace()


def write_trace(trace: Trace, path: str) -> None:
    """Write a trace; packed when the name ends with .gz, to standard output for ``-``.

    Raises:
        TraceError: when the disk is full, or the folder refuses.
    """
    if path == "-":
        for line in to_lines(trace):
            sys.stdout.write(line + "\n")
        return
    target = Path(path)
    fresh = target.with_name(f".{target.name}.new")
    try:
        # The time that gzip would write would make two files of one trace differ.
        with open(fresh, "wb") as raw:
            binary = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.endswith(".gz") else raw
            with io.TextIOWrapper(binary, encoding="utf-8", newline="\n") as stream:
                stream.writelines(line + "\n" for line in to_lines(trace))
        fresh.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        why = (error.strerror or str(error)).lower()
        raise TraceError(f"cannot write {path}", why=why) from error


# --- recordings -----------------------------------------------------------------------------------


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
    """Return the trace of a recording, even while it goes on.

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
