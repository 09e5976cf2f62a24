"""Output of ``gpupool history``: named series of values, as points, CSV and JSON. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from gpupool.monitoring.analysis.csv_rows import csv_text
from gpupool.monitoring.history.series import METRICS, Metric
from gpupool.pool.history_query import HistoryPage
from gpupool.pool.model.ids import GpuId, ServerId

if TYPE_CHECKING:
    from gpupool.monitoring.history.history_file import KeptHistory
    from gpupool.pool.view import PoolView

Places: TypeAlias = "PoolView | KeptHistory"
"""The source of names in a question: the pool, or a history file."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject: as a query has it, and its servers; none for all of them."""

    of: str
    name: str
    title: str
    servers: tuple[ServerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart: Unix seconds, values, and maxima within the steps or None."""

    title: str
    step_s: int
    points: tuple[tuple[int, float, float | None], ...]


def find_subject(text: str, view: Places) -> Subject | None:
    """Return the subject of a word: pool, a server, a GPU, a lease, or else a user; or None.

    A beginning such as ``lease:`` says which; a GPU is SERVER:NUMBER, or the beginning of its id.
    """
    kind, _, rest = text.partition(":")
    if kind in _OF and rest:
        return _OF[kind](rest, view)
    if text == "pool":
        return Subject("pool", "", "pool")
    lease, held = _lease(text, view), {str(each.id) for each in view.leases}
    # Of a lease that has ended nothing is in the view; a user may be called so as well.
    if lease is not None and lease.name not in held and not any(map(str.isdigit, text)):
        lease = None
    return _server(text, view) or _gpu(text, view) or lease or _user(text, view)


def _server(text: str, view: Places) -> Subject | None:
    for each in view.servers:
        if text in (each.name, each.id):
            return Subject("server", "", each.name, (each.id,))
    return None


def _gpu(text: str, view: Places) -> Subject | None:
    server, colon, number = text.rpartition(":")
    gpus = [(each, gpu) for each in view.servers for gpu in each.gpus]
    if colon:
        fits = [
            (each, gpu)
            for each, gpu in gpus
            if server in (each.name, each.id) and number == str(gpu.index)
        ]
    else:
        fits = [(each, gpu) for each, gpu in gpus if len(text) >= 4 and gpu.id.startswith(text)]
    if len(fits) != 1:
        return None
    ((each, gpu),) = fits
    return Subject("gpu", gpu.id, f"{each.name} GPU {gpu.index}", (each.id,))


def _lease(text: str, _view: Places) -> Subject | None:
    try:
        return Subject("lease", str(int(text, 16)), f"lease {text}")
    except ValueError:
        return None


def _user(text: str, _view: Places) -> Subject:
    return Subject("user", text, f"user {text}")


def _client(text: str, _view: Places) -> Subject:
    return Subject("client", text, f"client {text}")


_OF = {"server": _server, "gpu": _gpu, "lease": _lease, "user": _user, "client": _client}


def metrics_of(of: str) -> dict[str, Metric]:
    """Return the metrics of a kind of subject, by name."""
    kinds = {"server": ("gpu", "server"), "user": ("lease",), "client": ("lease",)}.get(of, (of,))
    return {name: metric for kind in kinds for name, (_, metric) in METRICS[kind].items()}


def lines_of(
    subject: Subject,
    metric: Metric,
    pages: Mapping[ServerId, HistoryPage],
    names: Mapping[ServerId, str],
) -> list[Line]:
    """Return the series of all servers that have points, each with its server's name."""
    found: list[Line] = []
    labels = gpu_labels(pages)
    for server in sorted(pages, key=lambda each: names.get(each, each)):
        page = pages[server]
        for series in page.series:
            if not series.points:
                continue
            name = names.get(server, server)
            label = labels.get((server, GpuId(series.key)), "")
            title = " ".join(word for word in (name, label) if word)
            if subject.of in ("lease", "user", "client"):
                title = f"{subject.title} on {name}"
            elif subject.of == "pool":
                title = f"pool, by {name}"
            points = (_point(metric, each) for each in series.points)
            found.append(Line(title, page.step_s, tuple(points)))
    if subject.of == "pool":
        # Every server says the same of the pool, as far as it was there.
        return sorted(found, key=lambda line: -len(line.points))[:1]
    return found


def gpu_labels(pages: Mapping[ServerId, HistoryPage]) -> dict[tuple[ServerId, GpuId], str]:
    """Return the labels of GPUs on their servers."""
    return {
        (server, GpuId(series.key)): series.label
        for server, page in pages.items()
        for series in page.series
    }


def _point(metric: Metric, point: tuple[int, ...]) -> tuple[int, float, float | None]:
    t, total, count, top = point
    return t, total / count * metric.scale, None if top < 0 else top * metric.scale


def as_csv(lines: Iterable[Line], name: str, metric: Metric) -> str:
    """Return the series as CSV (RFC 4180), the unit in its header."""
    unit = f" [{metric.unit}]" if metric.unit else ""
    rows: list[tuple[object, ...]] = [
        ("series", "time", "step [s]", f"{name}{unit}", f"maximum{unit}")
    ]
    for line in lines:
        for t, value, top in line.points:
            moment = datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            most = "" if top is None else f"{top:.6g}"
            rows.append((line.title, moment, line.step_s, f"{value:.6g}", most))
    return csv_text(rows)


def as_plain(lines: Iterable[Line], name: str, metric: Metric) -> dict[str, object]:
    """Return the series as JSON carries them."""
    return {
        "metric": name,
        "unit": metric.unit,
        "series": [
            {
                "name": line.title,
                "step_s": line.step_s,
                "points": [list(point) for point in line.points],
            }
            for line in lines
        ],
    }
