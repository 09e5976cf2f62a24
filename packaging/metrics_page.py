"""The tables of docs/metrics.md, made of the declarations; ``make docs`` writes them anew.

The words above them stand in the page alone.
"""

import sys
from pathlib import Path

from gpupool.monitoring.metric_names import DECLARED, bounds_of

BEGIN = "| metric | kind | labels | meaning |\n"


def page(text: str) -> str:
    """Return a page with its tables as they must be."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {' '.join(f'`{each}`' for each in metric.labels)} | "
        f"{metric.text} |\n"
        for metric in DECLARED
    ]
    histograms = [metric.name for metric in DECLARED if metric.kind == "histogram"]
    bounds = [
        f"| `{name}` | {bounds_of(name)[0]:g} | {bounds_of(name)[-1]:g} |\n" for name in histograms
    ]
    return (
        text.partition(BEGIN)[0]
        + BEGIN
        + "| --- | --- | --- | --- |\n"
        + "".join(rows)
        + "\n## Buckets\n\n14 of each histogram, in seconds, each twice the one before.\n\n"
        + "| histogram | first | last |\n| --- | --- | --- |\n"
        + "".join(bounds)
    )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
