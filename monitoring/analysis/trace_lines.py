"""Traces as lines of text: one JSON array a line, after a head that names the form.

{"form": "gpupool-trace", "version": 1, "source": "slurm", "begin": 0, "end": 60, ...}
["m", name, gpus, model, memory]
["j", id, submit, start, end, user, group, gpus, fraction, memory, model, [[machine, gpu]]]
["s", t, machine, gpu, busy, memory]
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

from gpupool.monitoring.analysis.trace_form import (
    NOTES,
    Builder,
    Job,
    Machine,
    Sample,
    Trace,
    TraceError,
)

FORM = "gpupool-trace"
VERSION = 1
LINE_MAX = 1 << 20
PLACE_COUNT_MAX = 65_536


def to_lines(trace: Trace) -> Iterator[str]:
    """Return the lines that stand for ``trace``, each without its end."""
    head = {
        "form": FORM,
        "version": VERSION,
        "source": trace.source,
        "begin": trace.begin,
        "end": trace.end,
        "zone": trace.zone,
        "dated": True,
        "notes": trace.notes,
    }
    yield _packed(head)
    for each in trace.machines:
        yield _packed(["m", each.name, each.gpus, each.model, each.memory])
    for job in trace.jobs:
        times = (job.id, job.submit, job.start, job.end, job.user, job.group)
        what = (job.gpus, job.fraction, job.memory, job.model, job.places)
        yield _packed(["j", *times, *what])
    for sample in trace.samples:
        yield _packed(["s", *sample])


def _packed(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def from_lines(lines: Iterable[str], name: str) -> Trace:
    """Return the trace that ``lines`` stand for.

    Raises:
        TraceError: with the line that is wrong.
    """
    numbered = enumerate(lines, 1)
    head = _head(next(numbered, (1, ""))[1], name)
    builder = Builder(str(head["source"]), zone=str(head["zone"]))
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            if len(line) > LINE_MAX:
                raise ValueError("it is too long")
            _take(builder, json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise TraceError(
                f"{name}, line {number} is no line of a trace",
                why=str(error)[:120],
                hint="make the file anew with gpupool analyze import",
            ) from error
    # The notes of the import count, and not what the records, mended by then, would give again.
    noted = cast("dict[str, int]", head["notes"])
    builder.notes = {key: count for key, count in noted.items() if key in NOTES}
    builder.begin, builder.end = float(head["begin"]), float(head["end"])
    return builder.trace()


def _head(line: str, name: str) -> dict[str, Any]:
    try:
        found: object = json.loads(line) if len(line) <= LINE_MAX else None
    except (ValueError, RecursionError):
        found = None
    head = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if head.get("form") != FORM:
        raise TraceError(
            f"{name} is no trace of gpupool",
            hint="make one of it with gpupool analyze import FORMAT FILE",
        )
    if head.get("version") != VERSION:
        raise TraceError(
            f"{name} has version {str(head.get('version'))[:20]} of the form",
            why=f"this gpupool knows version {VERSION}",
            hint="make the file anew with gpupool analyze import",
        )
    notes: object = head.get("notes")
    whole = (
        {"source", "begin", "end", "zone", "notes"} <= head.keys()
        and isinstance(notes, dict)
        and all(type(n) is int for n in cast("dict[str, object]", notes).values())
        and all(type(head[key]) in (int, float) for key in ("begin", "end"))
        and isinstance(head["source"], str)
        and isinstance(head["zone"], str)
    )
    if not whole:
        raise TraceError(
            f"the first line of {name} is not whole",
            hint="make the file anew with gpupool analyze import",
        )
    return head


def _take(builder: Builder, fields: object) -> None:
    if not isinstance(fields, list):
        raise ValueError("it is no array")
    match cast("list[Any]", fields):
        case ["s", t, str(machine), str(gpu), busy, memory]:
            builder.add_sample(Sample(_number(t), machine, gpu, _maybe(busy), _maybe_whole(memory)))
        case ["j", str(name), submit, start, end, str(user), str(group), gpus, *rest]:
            fraction, memory, model, places = rest
            if not isinstance(model, str):
                raise ValueError("the model is no text")
            builder.add_job(
                Job(
                    id=name,
                    submit=_number(submit),
                    start=_maybe(start),
                    end=_maybe(end),
                    user=user,
                    group=group,
                    gpus=_whole(gpus),
                    fraction=_number(fraction),
                    memory=_whole(memory),
                    model=model,
                    places=_places(places),
                )
            )
        case ["m", str(name), gpus, str(model), memory]:
            builder.add_machine(Machine(name, _whole(gpus), model, _whole(memory)))
        case _:
            raise ValueError("it is neither a job, a reading nor a machine")


def _number(value: object) -> float:
    if type(value) is not int and type(value) is not float:
        raise ValueError(f"{str(value)[:20]!r} is no number")
    return value


def _maybe(value: object) -> float | None:
    return None if value is None else _number(value)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{str(value)[:20]!r} is no whole number")
    return value


def _maybe_whole(value: object) -> int | None:
    return None if value is None else _whole(value)


def _places(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or len(cast("list[object]", value)) > PLACE_COUNT_MAX:
        raise ValueError("the places are no array")
    found: list[tuple[str, str]] = []
    for each in cast("list[object]", value):
        match each:
            case [str(machine), str(gpu)]:
                found.append((machine, gpu))
            case _:
                raise ValueError("a place is a machine and a GPU")
    return tuple(found)
