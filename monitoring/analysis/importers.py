"""The files that traces are made of: Slurm's, nvidia-smi's and Prometheus' own."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, cast

from gpupool.monitoring.analysis.csv_rows import Row, Source, peeked, rows
from gpupool.monitoring.analysis.local_times import LocalTimes, zone_named
from gpupool.monitoring.analysis.process_jobs import Held, jobs_of
from gpupool.monitoring.analysis.trace_form import (
    Builder,
    Job,
    Machine,
    Sample,
    Trace,
    TraceError,
)
from gpupool.pool.model.units import MIB


def read(name: str, sources: Sequence[Source], *, zone: str = "", thin_s: float = 0.0) -> Trace:
    """Return the trace that files of a format say.

    Args:
        name: of the format.
        sources: its files.
        zone: of times that name none; empty for UTC.
        thin_s: join readings to intervals of so many seconds; 0 keeps them as they are.

    Raises:
        TraceError: with what is wrong, and in which file.
    """
    found = FORMATS.get(name)
    if found is None:
        raise TraceError(f"{name!r} is no format", hint=f"the formats are {', '.join(FORMATS)}")
    zone_named(zone)
    builder = Builder(name, zone=zone or "UTC", thin_s=thin_s)
    found(sources, builder)
    return builder.trace()


# --- Slurm ----------------------------------------------------------------------------------------


GRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d{1,9})")
MPS = re.compile(r"gres/mps(?::[^=,]+)?=(\d{1,9})")


def slurm(sources: Sequence[Source], builder: Builder) -> None:
    """Take the jobs that ``sacct -P`` prints, with the columns that docs/analyze.md names."""
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
            submit, start, end = times_of(row, times, "Submit", "Start", "End")
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


def times_of(
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


JSON_MAX = 512 << 20
"""Characters of one answer of Prometheus."""

BUSY = {
    "DCGM_FI_DEV_GPU_UTIL": 0.01,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
    "gpupool_gpu_busy_ratio": 1.0,
}
"""Metrics of GPU utilization, and the factors to multiply them with."""

MEMORY = {"DCGM_FI_DEV_FB_USED": MIB, "gpupool_gpu_memory_used_bytes": 1}
MACHINE_LABELS = ("server", "Hostname", "hostname", "node", "instance")
GPU_LABELS = ("UUID", "uuid", "gpu", "device")
POD_LABELS = (("exported_namespace", "exported_pod"), ("namespace", "pod"))


# --- nvidia-smi -----------------------------------------------------------------------------------


def nvidia_smi(sources: Sequence[Source], builder: Builder) -> None:
    """Import the CSV output of ``nvidia-smi --query-gpu`` or ``--query-compute-apps``.

    A machine is called as its file. Processes become jobs, by the rules of ``process_jobs``.
    """
    times = LocalTimes(builder.zone, builder)
    for source in sources:
        machine = PurePath(source.name).name.partition(".")[0]
        first, whole = peeked(source)
        if "pid" in [name.strip() for name in first.split(",")]:
            _processes(whole, machine, times, builder)
        else:
            _gpus(whole, machine, times, builder)


def _gpus(source: Source, machine: str, times: LocalTimes, builder: Builder) -> None:
    seen: dict[str, int] = {}
    model = ""
    before: float | None = None
    for row in rows(source, ("timestamp",)):
        if row.text("timestamp") == "timestamp":
            continue  # a second run appended its heading
        name = row.text("uuid") or row.text("gpu_uuid") or row.text("index")
        if not name:
            raise row.wrong("it says neither uuid nor index")
        at = before = _when(row, times, before)
        busy, used = (
            _unit(row, "utilization.gpu", "%"),
            _unit(row, "memory.used", "MiB"),
        )
        total = _unit(row, "memory.total", "MiB")
        seen[name] = max(seen.get(name, 0), int((total or 0) * MIB))
        model = row.text("name") or model
        builder.add_sample(
            Sample(
                at,
                machine,
                name,
                None if busy is None else busy / 100,
                None if used is None else int(used * MIB),
            )
        )
    if seen:
        builder.add_machine(Machine(machine, len(seen), model, max(seen.values())))


def _processes(source: Source, machine: str, times: LocalTimes, builder: Builder) -> None:
    held: list[Held] = []
    before: float | None = None
    for row in rows(source, ("timestamp", "gpu_uuid", "pid")):
        if row.text("timestamp") == "timestamp":
            continue
        at = before = _when(row, times, before)
        used = _unit(row, "used_memory", "MiB") or _unit(row, "used_gpu_memory", "MiB") or 0
        program = PurePath(row.text("process_name") or row.text("name")).name
        held.append(
            Held(at, machine, row.text("gpu_uuid"), row.text("pid"), "", program, int(used * MIB))
        )
    capacity = max((each.memory for each in builder.machines.values()), default=0)
    for job in jobs_of(held, capacity):
        builder.add_job(job)


def _when(row: Row, times: LocalTimes, before: float | None) -> float:
    try:
        return times.read(row.text("timestamp"), before)
    except ValueError as error:
        raise row.wrong(str(error)) from error


def _unit(row: Row, column: str, unit: str) -> float | None:
    """Return a column's value; the unit is in its name, in its values, or in neither."""
    text = row.text(f"{column} [{unit}]") or row.text(column)
    if not text:
        return None
    try:
        found = float(text.removesuffix(unit).strip())
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or found < 0:
        raise row.wrong(f"{column} is {text[:30]!r}, which is no value in {unit}")
    return found


# --- Prometheus -----------------------------------------------------------------------------------


def prometheus(sources: Sequence[Source], builder: Builder) -> None:
    """Take answers of ``/api/v1/query_range``: DCGM's metrics or gpupool's own.

    Where DCGM names pods, each pod is a job that holds the GPUs on which it was seen.
    """
    busy: dict[tuple[float, str, str], float | None] = {}
    memory: dict[tuple[float, str, str], int | None] = {}
    held: list[Held] = []
    for source in sources:
        for series in _series(source):
            _take(series, source.name, busy, memory, held)
    for t, machine, gpu in sorted(busy.keys() | memory.keys()):
        key = (t, machine, gpu)
        builder.add_sample(Sample(t, machine, gpu, busy.get(key), memory.get(key)))
    for job in jobs_of(held, 0):
        builder.add_job(job)


def _series(source: Source) -> list[dict[str, Any]]:
    size = 0
    parts: list[str] = []
    for line in source.lines:
        size += len(line)
        parts.append(line)
        if size > JSON_MAX:
            raise TraceError(
                f"{source.name} is longer than {JSON_MAX:,} characters",
                hint="ask Prometheus for shorter spans, and give the answers as several files",
            )
    try:
        answer: object = json.loads("".join(parts))
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{source.name} is no JSON", hint="save the answer of /api/v1/query_range as it is"
        ) from error
    data: object = cast("dict[str, Any]", answer).get("data") if isinstance(answer, dict) else None
    found = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    result: object = found.get("result")
    if found.get("resultType") != "matrix" or not isinstance(result, list):
        raise TraceError(
            f"{source.name} is no answer of a range query",
            why="it has no data.result of the type matrix",
            hint="ask /api/v1/query_range with start, end and step",
        )
    return cast("list[dict[str, Any]]", result)


def _take(
    series: dict[str, Any],
    name: str,
    busy: dict[tuple[float, str, str], float | None],
    memory: dict[tuple[float, str, str], int | None],
    held: list[Held],
) -> None:
    try:
        labels = {str(k): str(v) for k, v in cast("dict[str, Any]", series["metric"]).items()}
        values = [(float(t), str(v)) for t, v in cast("list[list[Any]]", series["values"])]
        metric = labels.get("__name__", "")
        machine = next((labels[key] for key in MACHINE_LABELS if labels.get(key)), "")
        gpu = next((labels[key] for key in GPU_LABELS if labels.get(key)), "")
        if metric not in BUSY and metric not in MEMORY:
            raise ValueError(f"the metric {metric[:60]!r} is not one of those that are known")
        if not machine or not gpu:
            raise ValueError("a series names no machine or no GPU")
        for t, text in values:
            number = float(text)
            known = math.isfinite(number)
            if metric in BUSY:
                busy[t, machine, gpu] = number * BUSY[metric] if known else None
            else:
                memory[t, machine, gpu] = int(number * MEMORY[metric]) if known else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(
            f"a series of {name} cannot be read",
            why=str(error)[:160],
            hint=f"ask for one of {', '.join([*BUSY, *MEMORY])}, without functions around it",
        ) from error
    for space, pod in POD_LABELS:
        if labels.get(pod):
            who = (labels.get(space, ""), labels[pod])
            held += [
                Held(t, machine, gpu, f"{who[0]}/{who[1]}", who[0], who[1], 0) for t, _ in values
            ]
            return


FORMATS: dict[str, Callable[[Sequence[Source], Builder], None]] = {
    "slurm": slurm,
    "nvidia-smi": nvidia_smi,
    "prometheus": prometheus,
}
