"""The application behind the one port: /metrics, /sd, /healthz, and added routes.

Who may scrape: the holder of a token of a viewer, a user or an operator, and whoever connects from
a network that the server was started with. /healthz needs nothing and says one word.

The library of Prometheus writes the metrics: text or OpenMetrics, gzip or not. The library knows
the formats and their escapes. Nothing is registered: one collector yields what ``metrics.read``
found, so that a series that is gone is gone.
"""

import gzip
import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
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
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gpupool.monitoring.http.http_connection import Application, Message
from gpupool.monitoring.http.http_frames import Targets
from gpupool.monitoring.http.token_checks import Judgement
from gpupool.monitoring.metric_names import DECLARED, PREFIX, REQUEST_BUCKETS, bounds_of
from gpupool.monitoring.metric_series import Found, Labels, Value
from gpupool.monitoring.metric_totals import Buckets, cumulative
from gpupool.monitoring.metrics import labels_of
from gpupool.pool.telemetry import Histogram

GZIP_LEVEL = 1


class _Encoder(Protocol):
    def __call__(self, registry: CollectorRegistry) -> bytes: ...


class _Once(Collector):
    """Collector of found series; registered for one answer, so not asked for names."""

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


TEXTS_MAX = 8
"""Of one second's series: varied Accept headers must not fill the memory."""
CHALLENGE = {"www-authenticate": 'Bearer realm="gpupool"'}
COUNTED = ("/metrics", "/sd", "/healthz")
"""The routes with a separate label; every path below another root is one of ``OTHER``."""
OTHER = "other"


class Sources(Protocol):
    """Data sources of the application."""

    open_networks: Sequence[str]
    users: int
    targets: Targets | None

    def found(self) -> Found | None:
        """Return the series of the latest sample, or None when there is no fresh one."""
        ...

    def health(self) -> str:
        """Return "ok", "not ready" or "no quorum"."""
        ...

    async def judge(self, token: str, connection: int) -> Judgement:
        """Return the server's word on a token."""
        ...


class Requests:
    """Counts of the answers, by route and status, and how long they took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, Buckets] = {}
        self.counts: dict[tuple[str, str], int] = {}

    @property
    def durations(self) -> dict[str, Histogram]:
        """Return the durations by route."""
        return {route: buckets.frozen() for route, buckets in self._buckets.items()}

    def counting(self, application: Application) -> Application:
        """Return ``application`` with its answers counted."""

        async def counted(
            scope: Message,
            receive: Callable[[], Awaitable[Message]],
            send: Callable[[Message], Awaitable[None]],
        ) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            route = scope["path"] if scope["path"] in COUNTED else OTHER
            began, status = self._clock(), ["500"]

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status[0] = str(message["status"])
                await send(message)

            try:
                await application(scope, receive, noting)
            finally:
                key = (route, status[0])
                self.counts[key] = self.counts.get(key, 0) + 1
                buckets = self._buckets.setdefault(route, Buckets(REQUEST_BUCKETS))
                buckets.add(self._clock() - began)

        return counted


def build_app(
    sources: Sources, requests: Requests, routes: Sequence[BaseRoute] = ()
) -> Application:
    """Return the application of one exporter.

    Args:
        sources: what it reads.
        requests: counts the answers.
        routes: those of others, such as the pages: asked after the three of this module.
    """
    texts = _Texts(sources.users)

    async def metrics(request: Request) -> Response:
        refused = await _refusal(sources, request)
        if refused is not None:
            return refused
        found = sources.found()
        if found is None:
            return _plain("the server tells nothing now", 503)
        packed = "gzip" in request.headers.get("accept-encoding", "")
        body, kind = texts.of(found, request.headers.get("accept", ""), packed=packed)
        headers = {"content-encoding": "gzip"} if packed else {}
        return Response(
            body, media_type=kind, headers=headers | {"vary": "accept, accept-encoding"}
        )

    async def discovery(request: Request) -> Response:
        refused = await _refusal(sources, request)
        if refused is not None:
            return refused
        if sources.targets is None:
            return _plain("the server has not said yet which servers there are", 503)
        return Response(discovered(sources.targets), media_type="application/json")

    async def health(_request: Request) -> Response:
        word = sources.health()
        return _plain(word, 200 if word == "ok" else 503)

    own = [Route("/metrics", metrics), Route("/sd", discovery), Route("/healthz", health)]
    return requests.counting(Starlette(routes=[*own, *routes]))  # pyright: ignore[reportArgumentType]


class _Texts:
    """The texts of the latest series: written once for all scrapes within its second."""

    def __init__(self, users: int) -> None:
        self._users = users
        self._found: Found | None = None
        self._texts: dict[tuple[str, bool], tuple[bytes, str]] = {}

    def of(self, found: Found, accept: str, *, packed: bool) -> tuple[bytes, str]:
        if found is not self._found or len(self._texts) > TEXTS_MAX:
            self._found, self._texts = found, {}
        key = accept, packed
        if key not in self._texts:
            self._texts[key] = written(found, self._users, accept=accept, packed=packed)
        return self._texts[key]


def discovered(targets: Targets) -> bytes:
    """Return the servers as Prometheus finds them: one group for each, since labels differ."""
    groups: list[Mapping[str, object]] = [
        {
            "targets": [server.address],
            "labels": {"server": server.name, "pool": targets.pool, **server.labels},
        }
        for server in targets.servers
    ]
    return json.dumps(groups).encode()


def is_in(client: str, networks: Sequence[str]) -> bool:
    """Return whether an address is in one of the networks."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    found = (ipaddress.ip_network(network, strict=False) for network in networks)
    return any(address.version == network.version and address in network for network in found)


async def _refusal(sources: Sources, request: Request) -> Response | None:
    """Return the refusal of a client that may not scrape; None for one that may."""
    client = request.client.host if request.client is not None else ""
    if is_in(client, sources.open_networks):
        return None
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        return _plain("this takes a token: Authorization: Bearer gpupool-...", 401, CHALLENGE)
    judgement = await sources.judge(token.strip(), request.state.connection)
    if judgement.kind:
        return None
    return _plain(judgement.why, judgement.status, CHALLENGE if judgement.status == 401 else {})


def _plain(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    safe = "".join(each if each.isprintable() else "?" for each in text)
    return PlainTextResponse(f"{safe}\n", status, headers=dict(headers or {}))
