"""Importers of published traces: Alibaba's openb, PAI and DLRM, Philly, and Helios.

docs/results has figures of them. ``gpupool analyze import`` does not know them.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any, cast

from gpupool.monitoring.analysis.csv_rows import Row, Source, peeked, rows
from gpupool.monitoring.analysis.importers import times_of
from gpupool.monitoring.analysis.local_times import LocalTimes
from gpupool.monitoring.analysis.trace_files import opened
from gpupool.monitoring.analysis.trace_form import (
    NOTES,
    Builder,
    Job,
    Machine,
    Sample,
    Trace,
    TraceError,
)

NOTES.update(
    {
        "open-begin": "{} job(s) began before the trace; they count from its beginning",
        "overlap": "{} attempt(s) overlapped an earlier one of their job and begin at its end",
        "within": "{} attempt(s) lay within an earlier one of their job and are left out",
        "no-end": "{} attempt(s) have no end and are not the last of their job; they end where "
        "the next one begins",
        "no-start": "{} attempt(s) have no start and are left out",
        "misformed": "{} row(s) have another number of columns than the heading; left out",
    }
)
OBJECT_MAX = 4 << 20
"""Characters of one job in a JSON file."""

ATTEMPT_COUNT_MAX = 10_000
SIZE = re.compile(r"\s*(\d{1,6}(?:\.\d+)?)\s*(GB|GiB|MB|MiB)?\s*")
OFFSETS = {" PST": "-08:00", " PDT": "-07:00"}
"""Of the names that Philly's readings have behind a time."""

PAI_TABLES: dict[str, tuple[str, ...]] = {
    "pai_job_table": ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "pai_task_table": (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
    "pai_group_tag_table": ("inst_id", "user", "gpu_type_spec", "group", "workload"),
    "pai_machine_spec": ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"),
}
"""The columns of the tables that are used, as their ``.header`` files have them."""

PAI_UNUSED = ("pai_instance_table", "pai_sensor_table", "pai_machine_metric")
"""They say where instances ran, and means over the life of each: no readings over time."""


def number_or_none(row: Row, column: str) -> float | None:
    """Return a field as a number, None where it is not known.

    Raises:
        TraceError: when it is something else.
    """
    text = row.text(column)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise row.wrong(f"{column} is {text[:40]!r}, which is no number")
    return found


def count_of(row: Row, column: str) -> int:
    """Return a field as a whole number, 0 where it is not known."""
    found = number_or_none(row, column) or 0.0
    if found != int(found) or found < 0:
        raise row.wrong(f"{column} is {found:g}, which is no number of things")
    return int(found)


def openb2023(sources: Sequence[Source], builder: Builder) -> None:
    """Take ``openb_pod_list_*.csv``, and the nodes of ``openb_node_list_*.csv``."""
    for source in sources:
        first, whole = peeked(source)
        if first.startswith("sn,"):
            for row in rows(whole, ("sn", "gpu", "model")):
                builder.add_machine(
                    Machine(row.text("sn"), count_of(row, "gpu"), row.text("model"))
                )
            continue
        needed = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
        for row in rows(whole, (*needed, "scheduled_time")):
            builder.add_job(
                Job(
                    id=row.text("name"),
                    submit=_time(row, "creation_time"),
                    start=number_or_none(row, "scheduled_time"),
                    end=number_or_none(row, "deletion_time"),
                    gpus=count_of(row, "num_gpu"),
                    fraction=_milli(row),
                    model=row.text("gpu_spec"),
                )
            )


def _time(row: Row, column: str) -> float:
    found = number_or_none(row, column)
    if found is None:
        raise row.wrong(f"it has no {column}")
    return found


def _milli(row: Row) -> float:
    milli = count_of(row, "gpu_milli")
    if milli > 1000:
        raise row.wrong(f"gpu_milli is {milli}, more than a GPU has")
    return milli / 1000


def dlrm2025(sources: Sequence[Source], builder: Builder) -> None:
    """Take ``disaggregated_DLRM_trace.csv``: instances that hold GPUs, most of them for long."""
    for source in sources:
        needed = ("instance_sn", "app_name", "gpu_request", "creation_time", "deletion_time")
        for row in rows(source, (*needed, "scheduled_time")):
            if not row.text("instance_sn"):
                continue
            created = number_or_none(row, "creation_time")
            if created is None and count_of(row, "gpu_request"):
                builder.note("open-begin")
            submit = created or 0.0
            scheduled = number_or_none(row, "scheduled_time")
            builder.add_job(
                Job(
                    id=row.text("instance_sn"),
                    submit=submit,
                    # It was scheduled before the trace began, and so was created before as well.
                    start=submit if scheduled is None and created is None else scheduled,
                    end=number_or_none(row, "deletion_time"),
                    group=row.text("app_name"),
                    gpus=count_of(row, "gpu_request"),
                )
            )


# --- PAI ------------------------------------------------------------------------------------------


def pai2020(sources: Sequence[Source], builder: Builder) -> None:
    """Take the tables of PAI, which have no headings, by the names of their files.

    A task is a job of ours: its instances hold their GPUs together. ``plan_gpu`` is a percentage.
    """
    tables = _pai_tables(sources)
    if "pai_task_table" not in tables:
        raise TraceError(
            "the tables of PAI lack pai_task_table.csv",
            why="it is the one that says how many GPUs were asked for",
            hint="give it, and pai_job_table.csv for users",
        )
    jobs: dict[str, tuple[str, str, float | None]] = {}
    for row in tables.get("pai_job_table", ()):
        submitted = number_or_none(row, "start_time")
        jobs[row.text("job_name")] = (row.text("user"), row.text("inst_id"), submitted)
    groups = {
        row.text("inst_id"): row.text("group") for row in tables.get("pai_group_tag_table", ())
    }
    for row in tables.get("pai_machine_spec", ()):
        builder.add_machine(
            Machine(row.text("machine"), count_of(row, "cap_gpu"), row.text("gpu_type"))
        )
    for row in tables["pai_task_table"]:
        user, instance, submitted = jobs.get(row.text("job_name"), ("", "", None))
        start, end = number_or_none(row, "start_time"), number_or_none(row, "end_time")
        if submitted is None:
            submitted = start if start is not None else end
        if submitted is None:
            builder.note("no-times")
            continue
        count, fraction = _pai_gpus(row)
        builder.add_job(
            Job(
                id=f"{row.text('job_name')}/{row.text('task_name')}",
                submit=submitted,
                start=start,
                end=end,
                user=user,
                group=groups.get(instance, "")[:64],
                gpus=count,
                fraction=fraction,
                model=row.text("gpu_type"),
            )
        )


def _pai_gpus(row: Row) -> tuple[int, float]:
    percent = number_or_none(row, "plan_gpu") or 0.0
    if not 0 <= percent <= 100 * 1024:
        raise row.wrong(f"plan_gpu is {percent:g} %")
    each = -int(-percent // 100)
    if not each:
        return 0, 0.0
    return each * max(1, count_of(row, "inst_num")), percent / 100 / each


def _pai_tables(sources: Sequence[Source]) -> dict[str, list[Row]]:
    headers: dict[str, tuple[str, ...]] = {}
    tables: list[tuple[str, Source]] = []
    for source in sources:
        stem, _, kind = PurePath(source.name).name.partition(".")
        if stem in PAI_UNUSED:
            continue
        if stem not in PAI_TABLES:
            raise TraceError(
                f"{source.name} is no table of PAI that is used",
                hint=f"the names are {', '.join(PAI_TABLES)}, each with .csv",
            )
        if kind == "header":
            text = next(iter(source.lines), "")
            headers[stem] = tuple(name.strip() for name in text.split(","))
        else:
            tables.append((stem, source))
    found: dict[str, list[Row]] = {}
    for stem, source in tables:
        header = headers.get(stem, PAI_TABLES[stem])
        whole = Source(source.name, chain([",".join(header) + "\n"], source.lines))
        found[stem] = list(rows(whole, PAI_TABLES[stem]))
    return found


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
            submit, start, end = times_of(row, times, "submit_time", "start_time", "end_time")
            builder.add_job(
                Job(
                    id=row.text("job_id"),
                    submit=submit,
                    start=start,
                    end=end,
                    user=row.text("user"),
                    group=row.text("vc"),
                    gpus=count_of(row, "gpu_num"),
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
                memory = _memory(row.fields[2]) if len(row.fields) > 2 else 0
                builder.add_machine(
                    Machine(row.text("machineId"), _gpu_count(row, row.fields[1]), "", memory)
                )
        elif not heading.startswith(("time,machine_id,cpu_util", "time,machine_id,mem_total")):
            raise TraceError(
                f"{source.name} is no table of Philly",
                why=f"it begins with {first[:60]!r}",
                hint="give cluster_job_log, cluster_gpu_util or cluster_machine_list.csv",
            )


def _gpu_count(row: Row, text: str) -> int:
    if not text.strip().isdigit() or len(text) > 9:
        raise row.wrong(f"{text[:20]!r} is no number of GPUs")
    return int(text)


def _memory(text: str) -> int:
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
            text = row.text("time")
            at = times.read(text[:-4] + OFFSETS[text[-4:]] if text[-4:] in OFFSETS else text)
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


# --- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Format:
    """How the files of one trace are read."""

    read: Callable[[Sequence[Source], Builder], None]
    zone: str = "UTC"  # of its times


FORMATS: dict[str, Format] = {
    "philly": Format(philly, zone="America/Los_Angeles"),
    "helios": Format(helios, zone="Asia/Shanghai"),
    "pai2020": Format(pai2020, zone="Asia/Shanghai"),
    "openb2023": Format(openb2023),
    "dlrm2025": Format(dlrm2025),
}


def read(name: str, sources: Sequence[Source]) -> Trace:
    """Return the trace that the sources of a format say.

    Raises:
        TraceError: with what is wrong, and in which source.
    """
    found = FORMATS[name]
    builder = Builder(name, zone=found.zone)
    found.read(sources, builder)
    return builder.trace()


def read_files(name: str, paths: Sequence[str]) -> Trace:
    """Return the trace that the files of a format say."""
    with ExitStack() as stack:
        return read(name, [Source(path, stack.enter_context(opened(path))) for path in paths])
