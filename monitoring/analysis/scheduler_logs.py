"""The importer of what a scheduler writes, one row a job: Slurm."""

import re
from collections.abc import Sequence

from gpupool.monitoring.analysis.csv_rows import Row, Source, rows
from gpupool.monitoring.analysis.local_times import LocalTimes
from gpupool.monitoring.analysis.trace_form import (
    Builder,
    Job,
)

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
