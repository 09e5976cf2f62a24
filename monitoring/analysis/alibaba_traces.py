"""Importers of Alibaba's published traces: openb of 2023, PAI of 2020, and DLRM of 2025."""

from collections.abc import Sequence
from pathlib import PurePath

from gpupool.monitoring.analysis.csv_rows import Row, Source, peeked, rows
from gpupool.monitoring.analysis.trace_form import Builder, Job, Machine, TraceError

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


def openb2023(sources: Sequence[Source], builder: Builder) -> None:
    """Take ``openb_pod_list_*.csv``, and the nodes of ``openb_node_list_*.csv``."""
    for source in sources:
        first, whole = peeked(source)
        if first.startswith("sn,"):
            for row in rows(whole, ("sn", "gpu", "model")):
                builder.add_machine(Machine(row.text("sn"), row.count("gpu"), row.text("model")))
            continue
        needed = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
        for row in rows(whole, (*needed, "scheduled_time")):
            builder.add_job(
                Job(
                    id=row.text("name"),
                    submit=_time(row, "creation_time"),
                    start=row.number_or_none("scheduled_time"),
                    end=row.number_or_none("deletion_time"),
                    gpus=row.count("num_gpu"),
                    fraction=_milli(row),
                    model=row.text("gpu_spec"),
                )
            )


def _time(row: Row, column: str) -> float:
    found = row.number_or_none(column)
    if found is None:
        raise row.wrong(f"it has no {column}")
    return found


def _milli(row: Row) -> float:
    milli = row.count("gpu_milli")
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
            created = row.number_or_none("creation_time")
            if created is None and row.count("gpu_request"):
                builder.note("open-begin")
            submit = created or 0.0
            scheduled = row.number_or_none("scheduled_time")
            builder.add_job(
                Job(
                    id=row.text("instance_sn"),
                    submit=submit,
                    # It was scheduled before the trace began, and so was created before as well.
                    start=submit if scheduled is None and created is None else scheduled,
                    end=row.number_or_none("deletion_time"),
                    group=row.text("app_name"),
                    gpus=row.count("gpu_request"),
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
        submitted = row.number_or_none("start_time")
        jobs[row.text("job_name")] = (row.text("user"), row.text("inst_id"), submitted)
    groups = {
        row.text("inst_id"): row.text("group") for row in tables.get("pai_group_tag_table", ())
    }
    for row in tables.get("pai_machine_spec", ()):
        builder.add_machine(
            Machine(row.text("machine"), row.count("cap_gpu"), row.text("gpu_type"))
        )
    for row in tables["pai_task_table"]:
        user, instance, submitted = jobs.get(row.text("job_name"), ("", "", None))
        start, end = row.number_or_none("start_time"), row.number_or_none("end_time")
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
    percent = row.number_or_none("plan_gpu") or 0.0
    if not 0 <= percent <= 100 * 1024:
        raise row.wrong(f"plan_gpu is {percent:g} %")
    each = -int(-percent // 100)
    if not each:
        return 0, 0.0
    return each * max(1, row.count("inst_num")), percent / 100 / each


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
        found[stem] = list(rows(source, PAI_TABLES[stem], header=header))
    return found
