"""The weekly report of waste: who held GPUs without using them. Pure: reports in, lines out."""

from gpupool.monitoring.usage_report import Report, aligned, waste_table

ROWS = 10
HELD_MIN = 0.01
"""GPU-hours below which waste is not worth a line."""


def worst(report: Report, count: int = ROWS) -> Report:
    """Return a report with the rows alone that wasted the most; what is unknown is no waste."""
    by_waste = report.by_waste()
    keys = [
        key for key in by_waste.rows if (by_waste.figures(key).wasted_gpu_hours or 0.0) >= HELD_MIN
    ]
    return by_waste.with_rows(keys[:count])


def waste_lines(by_class: Report, by_user: Report, by_lease: Report) -> list[str]:
    """Return the report for people: by class, by user, and the worst leases."""
    whole = by_user.all_figures()
    held = by_user.whole.gpu_hours
    lines = [f"held by leases: {held:.1f} GPU-hours"]
    if whole.wasted_gpu_hours is None:
        return [*lines, "nothing is known of how they were used: no sample has seen them"]
    share = 100 * (whole.idle_share or 0.0)
    seen = 100 * (whole.coverage or 0.0)
    lines.append(
        f"wasted: {whole.wasted_gpu_hours:.1f} GPU-hours, {share:.0f} % of what samples have seen, "
        f"which is {seen:.0f} % of all"
    )
    for report, title in (
        (by_class, "by class"),
        (by_user, "by user"),
        (by_lease, "the leases that wasted the most; gpupool usage --lease has advice"),
    ):
        shown = worst(report)
        if shown.rows:
            lines += ["", f"{title}:", *aligned(waste_table(shown)[: len(shown.rows) + 1])]
    return lines
