"""Importers of readings of GPUs: nvidia-smi's tables, and answers of Prometheus."""

import json
import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, cast

from gpupool.monitoring.analysis.csv_rows import Row, Source, peeked, rows
from gpupool.monitoring.analysis.local_times import LocalTimes
from gpupool.monitoring.analysis.process_jobs import Held, jobs_of
from gpupool.monitoring.analysis.trace_form import Builder, Machine, Sample, TraceError
from gpupool.pool.model.units import MIB

JSON_MAX = 512 << 20
"""Characters of one answer of Prometheus."""

BUSY = {
    "DCGM_FI_DEV_GPU_UTIL": 0.01,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
    "gpupool_gpu_busy_ratio": 1.0,
}
"""Metrics that say how busy a GPU is, and what to multiply them with."""

MEMORY = {"DCGM_FI_DEV_FB_USED": MIB, "gpupool_gpu_memory_used_bytes": 1}
MACHINE_LABELS = ("server", "Hostname", "hostname", "node", "instance")
GPU_LABELS = ("UUID", "uuid", "gpu", "device")
POD_LABELS = (("exported_namespace", "exported_pod"), ("namespace", "pod"))


# --- nvidia-smi -----------------------------------------------------------------------------------


def nvidia_smi(sources: Sequence[Source], builder: Builder) -> None:
    """Take what ``nvidia-smi --query-gpu`` or ``--query-compute-apps`` prints as CSV.

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
    """Return a value of a column that names its unit, or whose values do, or neither."""
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
