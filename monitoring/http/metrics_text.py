"""Writes metrics as Prometheus reads them, by its own library: text or OpenMetrics, gzip or not.

The library knows the formats and their escapes. Nothing is registered: one collector yields what
``metrics.read`` found, so that a series that is gone is gone.
"""

import gzip
from collections.abc import Iterable, Iterator
from typing import Protocol, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gpupool.monitoring.metric_names import DECLARED, PREFIX, bounds_of
from gpupool.monitoring.metric_series import Found, Labels, Value
from gpupool.monitoring.metric_totals import cumulative
from gpupool.monitoring.metrics import labels_of
from gpupool.pool.telemetry import Histogram

GZIP_LEVEL = 1


class _Encoder(Protocol):
    def __call__(self, registry: CollectorRegistry) -> bytes: ...


class _Once(Collector):
    """Yields what was found; not asked for names, since it is registered for one answer."""

    def __init__(self, found: Found, users: int) -> None:
        self._found = found
        self._labels = labels_of(users)

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have series, in the order of their declarations."""
        for metric in DECLARED:
            rows = self._found.series.get(metric.name)
            if rows:
                names = self._labels(metric.name)
                yield _family(metric.name, metric.kind, metric.text, names, rows.items())


def _family(
    name: str, kind: str, text: str, labels: Labels, rows: Iterable[tuple[Labels, Value]]
) -> Metric:
    full = PREFIX + name
    if kind == "histogram":
        histogram = HistogramMetricFamily(full, text, labels=labels)
        for values, value in rows:
            assert isinstance(value, Histogram)
            histogram.add_metric(values, _buckets(name, value), value.sum)
        return histogram
    made = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
        full, text, labels=labels
    )
    for values, value in rows:
        assert not isinstance(value, Histogram)
        made.add_metric(values, value)
    return made


def _buckets(name: str, histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(repr, map(float, bounds_of(name))), "+Inf"]
    return list(zip(bounds, map(float, cumulative(histogram)), strict=True))


def written(
    found: Found, users: int = 0, *, accept: str = "", packed: bool = False
) -> tuple[bytes, str]:
    """Return the text and its content type, in the form that a scraper accepts."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found, users))
    encoder, kind = cast("tuple[_Encoder, str]", choose_encoder(accept))
    body = encoder(registry)
    return (gzip.compress(body, GZIP_LEVEL) if packed else body), kind
