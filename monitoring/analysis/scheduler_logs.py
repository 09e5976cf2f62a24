"""Importers of what schedulers write, one row or object a job: Slurm, Philly, and Helios."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from gpupool.monitoring.analysis.csv_rows import Row, Source, peeked, rows
from gpupool.monitoring.analysis.local_times import LocalTimes
from gpupool.monitoring.analysis.trace_form import (
    Builder,
    Job,
    Machine,
    Sample,
    TraceError,
)

OBJECT_MAX = 4 << 20
"""Characters of one job in a JSON file."""

ATTEMPT_COUNT_MAX = 10_000
GRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d{1,9})")
MPS = re.compile(r"gres/mps(?::[^=,]+)?=(\d{1,9})")
SIZE = re.compile(r"\s*(\d{1,6}(?:\.\d+)?)\s*(GB|GiB|MB|MiB)?\s*")


# --- Slurm ----------------------------------------------------------------------------------------


def slurm(sources: Sequence[Source], builder: Builder) -> None:
    """Take the jobs that ``sacct -P`` prints, with the columns that ``SACCT`` names."""
    times = LocalTimes(builder.zone, builder)
    for source in sources:
        needed = ("JobID", "Submit", "Start", "End")
        for row in rows(source, needed, delimiter="|"):
            name = row.text("JobID")
            if "." in name:
                builder.note("steps")
                continue
            tres = row.text("AllocTRES") or row.text("ReqTRES")
            gpus, model, fraction = gpus_of(tres)
            submit, start, end = _times(row, times, "Submit", "Start", "End")
            builder.add_job(
                Job(
                    id=name,
                    submit=submit,
                    start=start,
                    end=end,
                    user=row.text("User"),
                    group=row.text("Account"),
                    gpus=gpus,
                    fraction=fraction,
                    model=model,
                )
            )


def gpus_of(tres: str) -> tuple[int, str, float]:
    """Return the GPUs that Slurm's resources name: how many, their type, and the part of each.

    Slurm writes the sum, and beside it the same GPUs by type: both is not twice as many.
    """
    total, by_type, model = 0, 0, ""
    for kind, count in GRES.findall(tres):
        if kind:
            by_type += int(count)
            model = model or kind
        else:
            total += int(count)
    if total or by_type:
        return total or by_type, model, 1.0
    found = MPS.search(tres)
    percent = int(found[1]) if found else 0
    if not percent:
        return 0, "", 1.0
    count = -(-percent // 100)
    return count, "", percent / 100 / count


def _times(
    row: Row, times: LocalTimes, submit: str, start: str, end: str
) -> tuple[float, float | None, float | None]:
    """Return when a job was submitted, began and ended."""
    try:
        submitted = times.read(row.text(submit))
        began = times.read(text, submitted) if (text := row.text(start)) else None
        after = submitted if began is None else began
        ended = times.read(text, after) if (text := row.text(end)) else None
    except ValueError as error:
        raise row.wrong(str(error)) from error
    return submitted, began, ended


# --- Helios ---------------------------------------------------------------------------------------


def helios(sources: Sequence[Source], builder: Builder) -> None:
    """Take the jobs of a ``cluster_log.csv``; other tables of Helios say nothing that is used."""
    times = LocalTimes(builder.zone, builder)
    for source in sources:
        first, whole = peeked(source)
        if first.startswith("date,"):
            continue  # cluster_gpu_number.csv
        needed = ("job_id", "user", "gpu_num", "submit_time", "start_time", "end_time")
        for row in rows(whole, needed):
            submit, start, end = _times(row, times, "submit_time", "start_time", "end_time")
            builder.add_job(
                Job(
                    id=row.text("job_id"),
                    submit=submit,
                    start=start,
                    end=end,
                    user=row.text("user"),
                    group=row.text("vc"),
                    gpus=row.count("gpu_num"),
                )
            )


# --- Philly ---------------------------------------------------------------------------------------


def philly(sources: Sequence[Source], builder: Builder) -> None:
    """Take ``cluster_job_log``, ``cluster_gpu_util`` and ``cluster_machine_list``, in any order."""
    times = LocalTimes(builder.zone, builder)
    for source in sources:
        first, whole = peeked(source)
        heading = first.replace(" ", "").lower()
        if heading.startswith("["):
            for value in elements(whole):
                _philly_job(value, whole.name, times, builder)
        elif "gpu0_util" in heading:
            _philly_readings(whole, times, builder)
        elif heading.startswith("machineid,numberofgpus"):
            for row in rows(whole, ("machineId",)):
                memory = _size(row.fields[2]) if len(row.fields) > 2 else 0
                builder.add_machine(
                    Machine(row.text("machineId"), _whole(row, row.fields[1]), "", memory)
                )
        elif not heading.startswith(("time,machine_id,cpu_util", "time,machine_id,mem_total")):
            raise TraceError(
                f"{source.name} is no table of Philly",
                why=f"it begins with {first[:60]!r}",
                hint="give cluster_job_log, cluster_gpu_util or cluster_machine_list.csv",
            )


def _whole(row: Row, text: str) -> int:
    if not text.strip().isdigit() or len(text) > 9:
        raise row.wrong(f"{text[:20]!r} is no number of GPUs")
    return int(text)


def _size(text: str) -> int:
    found = SIZE.fullmatch(text)
    if found is None:
        return 0
    unit = {"GB": 10**9, "GiB": 1 << 30, "MB": 10**6, "MiB": 1 << 20}.get(found[2] or "GB", 1)
    return int(float(found[1]) * unit)


def _philly_readings(source: Source, times: LocalTimes, builder: Builder) -> None:
    width = 0
    for row in rows(source, ("time", "machineId")):
        fields = list(row.fields)
        while len(fields) > 2 and not fields[-1].strip():
            fields.pop()  # each row ends with a comma
        width = width or len(fields)
        if len(fields) > 18 or len(fields) < 3:
            builder.note("misformed")
            continue
        try:
            at = times.read(row.text("time"))
        except ValueError as error:
            raise row.wrong(str(error)) from error
        for index, text in enumerate(fields[2:]):
            busy = None
            if text.strip() not in ("NA", "", "nan"):
                try:
                    busy = float(text) / 100
                except ValueError:
                    raise row.wrong(f"gpu{index}_util is {text[:20]!r}") from None
            builder.add_sample(Sample(at, row.text("machineId"), f"gpu{index}", busy, None))


def elements(source: Source) -> Iterator[object]:
    """Return the elements of a JSON array one by one, however long the array is.

    Raises:
        TraceError: when it is no array, or an element of it is too long.
    """
    decoder = json.JSONDecoder()
    buffer, begun = "", False
    for chunk in _chunks(source.lines):
        buffer = (buffer + chunk).lstrip()
        if not begun:
            begun, buffer = True, buffer.removeprefix("[")
        while buffer := buffer.lstrip(", \r\n\t"):
            if buffer.startswith("]"):
                return
            try:
                value, end = decoder.raw_decode(buffer)
            except (ValueError, RecursionError) as error:
                if len(buffer) > OBJECT_MAX or isinstance(error, RecursionError):
                    raise _no_array(source.name) from error
                break  # not all of it is there yet
            if end == len(buffer) and not isinstance(value, dict | list):
                break  # a number that may go on
            yield value
            buffer = buffer[end:]
    if buffer.strip():
        raise _no_array(source.name)


def _no_array(name: str) -> TraceError:
    return TraceError(
        f"{name} is no whole JSON array of jobs",
        hint="check that the file was copied to its end",
    )


def _chunks(lines: Iterable[str]) -> Iterator[str]:
    """Return lines in pieces that are large enough to be decoded at little cost."""
    kept: list[str] = []
    size = 0
    for line in lines:
        kept.append(line)
        size += len(line)
        if size > 1 << 16:
            yield "".join(kept)
            kept, size = [], 0
    yield "".join(kept)


def _philly_job(value: object, name: str, times: LocalTimes, builder: Builder) -> None:
    try:
        job = cast("dict[str, Any]", value)
        attempts = cast("list[dict[str, Any]]", job["attempts"])
        if len(attempts) > ATTEMPT_COUNT_MAX:
            raise ValueError(f"{len(attempts)} attempts")
        submitted = times.read(str(job["submitted_time"]))
        who = (str(job.get("user") or ""), str(job.get("vc") or ""))
        found: list[Attempt] = []
        for each in attempts:
            start = _maybe(times, each, "start_time", submitted)
            end = _maybe(times, each, "end_time", submitted if start is None else start)
            found.append((start, end, _places(each)))
        if not found:
            builder.note("no-times")
        for at, (start, end, places) in enumerate(separate(found, builder)):
            builder.add_job(
                Job(
                    id=f"{job['jobid']}/{at + 1}",
                    # A later attempt asks for its GPUs when the one before has lost them.
                    submit=min(submitted, start) if at == 0 else start,
                    start=start,
                    end=end,
                    user=who[0],
                    group=who[1],
                    gpus=len(places),
                    places=places,
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        shown = str(cast("dict[str, Any]", value).get("jobid") if isinstance(value, dict) else "")
        raise TraceError(
            f"job {shown[:60]} of {name} cannot be read",
            why=str(error)[:120],
            hint="check that the file is whole and is a cluster_job_log of Philly",
        ) from error


Places = tuple[tuple[str, str], ...]
Attempt = tuple[float | None, float | None, Places]


def _maybe(times: LocalTimes, attempt: dict[str, Any], key: str, not_before: float) -> float | None:
    text: object = attempt.get(key)
    return None if text in (None, "", "None") else times.read(str(text), not_before)


def _places(attempt: dict[str, Any]) -> Places:
    return tuple(
        (str(each["ip"]), str(gpu))
        for each in cast("list[dict[str, Any]]", attempt["detail"])
        for gpu in cast("list[object]", each["gpus"])
    )


def separate(
    attempts: Sequence[Attempt], builder: Builder
) -> list[tuple[float, float | None, Places]]:
    """Return the attempts of one job so that none overlaps another."""
    known = sorted(
        (each for each in attempts if each[0] is not None), key=lambda each: (each[0], each[1] or 0)
    )
    if len(known) < len(attempts):
        builder.note("no-start", len(attempts) - len(known))
    found: list[tuple[float, float | None, Places]] = []
    for at, (start, end, places) in enumerate(known):
        assert start is not None
        if end is None and at + 1 < len(known):
            builder.note("no-end")
            end = known[at + 1][0]
        before = found[-1][1] if found else None
        if before is not None and start < before:
            if end is not None and end <= before:
                builder.note("within")
                continue
            builder.note("overlap")
            start = before
        found.append((start, end, places))
    return found
