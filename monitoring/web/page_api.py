"""The API of the page: changes, reports, and the few orders that a page may give."""

import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpupool.monitoring.health.health_history import merged, unknown_before
from gpupool.monitoring.web.gate import LocalGate, NoEntry
from gpupool.monitoring.web.health_words import LEVELS
from gpupool.monitoring.web.history_series import ask_gpu_history, ask_series, asked_span, lacking
from gpupool.monitoring.web.live_book import Book, Packed
from gpupool.monitoring.web.live_documents import Memory, summary, work
from gpupool.monitoring.web.pool_day import PoolDay
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.monitoring.web.recent import METRICS, Recent
from gpupool.monitoring.web.server_gate import ServerGate
from gpupool.monitoring.web.usage_answers import (
    ask_capacity,
    ask_lease,
    ask_records,
    ask_report,
)
from gpupool.pool.errors import (
    AuthenticationError,
    DeniedError,
    GpupoolError,
    UnknownNameError,
    UsageError,
)
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.plain import to_plain
from gpupool.pool.model.policy import UNIT, Policy, Zone
from gpupool.pool.policy.policy_document import PolicyTextError, parse_policy
from gpupool.pool.policy.rulebook import Rulebook
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.transitions.policy_versions import UnpackError, unpack_text
from gpupool.pool.view import readable, visible
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.time_zones import zone_of

MIB = 1 << 20
SCALES = {"max_gpus": UNIT, "max_memory": MIB, "max_leases": 1}
"""Units of the page's numbers, by limit."""

NO_ZONES = "hours of the policy are left out: this machine does not know their time zone"


@dataclass(frozen=True, slots=True)
class _Compiled:
    version: int
    book: Rulebook
    problem: str = ""


class PolicyLimits:
    """Compiles a policy once for each version."""

    def __init__(self) -> None:
        self._compiled = _Compiled(0, Rulebook(Policy()))

    async def told(self, source: PoolSource, now_ms: int, user: str = "") -> dict[str, object]:
        """Return class, department and limits of each user with a lease or a request.

        ``user`` is one besides, who may have nothing.
        """
        snapshot = source.known()
        view = snapshot.view
        if view.policy_version != self._compiled.version:
            self._compiled = await _compile(source, view.policy_version, now_ms)
        moment = self._compiled.book.moment(now_ms)
        users = {each.user for each in view.leases} | {each.user for each in view.waiting}
        rows: dict[str, object] = {}
        for name in sorted(users | ({user} if user else set())):
            terms = moment.terms(name)
            rows[visible(name)] = {
                "class": visible(terms.group),
                "department": visible(terms.department),
                "limits": [
                    [cap.holder, cap.dimension, round(cap.limit / SCALES[cap.dimension], 3)]
                    for cap in terms.caps
                ],
            }
        return {"users": rows, "problem": self._compiled.problem}


async def _compile(source: PoolSource, version: int, now_ms: int) -> _Compiled:
    """Return a version's rules; without its hours where their time zones are not known."""
    if not version:
        return _Compiled(0, Rulebook(Policy()))
    found = await source.policy()
    unknown: list[str] = []

    def zone(name: str) -> Zone:
        known = zone_of(name, now_ms)
        if known is None:
            unknown.append(name)
        return known or Zone(name, (), (0,))

    try:
        policy = parse_policy(unpack_text(found.packed), zone)
    except (PolicyTextError, UnpackError) as error:
        problem = f"the policy cannot be read here: {visible(str(error)[:200])}"
        return _Compiled(version, Rulebook(Policy()), problem)
    if not unknown:
        return _Compiled(version, Rulebook(policy))
    return _Compiled(version, Rulebook(replace(policy, windows=(), reservations=())), NO_ZONES)


async def ask_storage(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return a row of each server that answers, and the servers that do not."""
    snapshot = source.known()
    answer = await source.history(HistoryQuery("storage"))
    names = {each.id: visible(each.name) for each in snapshot.view.servers}
    found = {names.get(k, k): page for k, page in answer.pages.items()}
    return {
        "servers": [
            {
                "name": name,
                "files": {visible(each): size for each, size in page.storage.files.items()},
                "max": page.storage.size_max,
                "tiers": [[each.step_s, each.kept_s, each.oldest] for each in page.storage.tiers],
                "ends": {visible(each): end for each, end in page.storage.ends.items()},
            }
            for name, page in sorted(found.items())
            if page.storage is not None
        ],
        "silent": {names.get(k, k): visible(why) for k, why in answer.silent.items()},
        "problems": [
            f"{name}: {visible(page.problem) or 'an older gpupool does not tell'}"
            for name, page in sorted(found.items())
            if page.problem or page.storage is None
        ],
    }


ROWS_MAX = 2000
"""The newest; a page with more is of no use."""


async def ask_checks(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return the episodes of all servers' checks in a time, and the servers without an answer."""
    snapshot = source.known()
    since, until = asked_span(asked)
    answer = await source.history(HistoryQuery("health", since=since, until=until))
    view = snapshot.view
    names = {each.id: visible(each.name) for each in view.servers}
    gpus = {str(gpu.id): f"GPU {gpu.index}" for each in view.servers for gpu in each.gpus}
    rows = merged(answer.pages, names)
    return {
        "rows": [
            {
                "level": LEVELS[row.episode.status],
                "check": visible(row.episode.check),
                "server": row.server,
                "subject": visible(gpus.get(row.episode.subject, row.episode.subject)),
                "began": row.episode.began,
                "ended": row.episode.ended,
                "text": visible(row.episode.text),
            }
            for row in rows[:ROWS_MAX]
        ],
        "more": len(rows) > ROWS_MAX or any(page.more for page in answer.pages.values()),
        "unknown": unknown_before(answer.pages, names, since),
        **lacking(view, answer),
    }


JSON = "application/json"
BODY_MAX = 64 * 1024
FRESH_S = 0.9
"""Seconds for which a document is reused: many viewers cost as much as one."""

ACT_MARK = " (web)"
HOURS_MAX = 24 * 90
REASON_MAX = 140
GPU_DIGITS_MAX = 4
NAME_LENGTH_MAX = 256

Gate = LocalGate | ServerGate
"""Identifies the viewer: on a client's loopback, or on a server."""

Handler = Callable[[Request, PoolSource], Awaitable[Response]]
Ask = Callable[[PoolSource, Mapping[str, str]], Awaitable[dict[str, object]]]
"""A question to the servers, by the query of an address."""

ReadOrder = Callable[[Mapping[str, object]], m.Order]
"""An order, by the body of a request."""


def packed_response(
    request: Request, body: Packed, kind: str, headers: Mapping[str, str]
) -> Response:
    """Return a response, compressed where the browser takes it and it is worth it."""
    extra = {**headers, "vary": "accept-encoding"}
    accepted = "gzip" in request.headers.get("accept-encoding", "")
    small = body.small() if accepted else None
    if small is not None:
        extra["content-encoding"] = "gzip"
    return Response(small if small is not None else body.plain, headers=extra, media_type=kind)


def _json(request: Request, value: object, status: int = 200) -> Response:
    text = json.dumps(to_plain(value), separators=(",", ":"), ensure_ascii=False)
    headers = {"cache-control": "no-store"}
    response = packed_response(request, Packed(text.encode(errors="replace")), JSON, headers)
    response.status_code = status
    return response


def _refused(request: Request, error: GpupoolError, status: int, **more: str) -> Response:
    words = {"what": error.what, "why": error.why, "hint": error.hint, **more}
    return _json(request, {"error": words}, status)


class _Live:
    """The documents of one pool, for all that look at it with the same rights."""

    def __init__(self, first: int) -> None:
        self.books = {"live": Book(first), "work": Book(first)}
        self.memory = Memory()
        self.recent = Recent()
        self.day = PoolDay()
        self.limits = PolicyLimits()
        self._made: dict[str, float] = {}

    def refresh(
        self, name: str, snapshot: PoolSnapshot, now: float, viewer: Mapping[str, object]
    ) -> None:
        """Make a document anew when it is not of this second."""
        if now - self._made.get(name, -FRESH_S) < FRESH_S:
            return
        self._made[name] = now
        if name == "work":
            self.books[name].put(work(snapshot))
            return
        self.books[name].put(summary(snapshot, now, self.memory, viewer))
        self.recent.take(snapshot, now)


class Api:
    """Answers the page."""

    def __init__(self, gate: Gate, *, readonly: bool) -> None:
        self._gate = gate
        self._readonly = readonly
        self._live: WeakKeyDictionary[PoolSource, _Live] = WeakKeyDictionary()

    def routes(self) -> list[Route]:
        """Return the routes of the API."""
        looks: dict[str, Handler] = {
            "/live": self._changed,
            "/work": self._changed,
            "/server/{server}": self._server,
            "/recent": self._recent,
            "/day": self._day,
            "/limits": self._limits,
            "/usage": self._usage,
            "/lease/{lease}": self._lease,
            **{path: _asking(ask) for path, ask in ASKED.items()},
        }
        found = [
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/invitation", self._invitation, methods=["POST"]),
        ]
        found += [Route(path, self._look(each), methods=["GET"]) for path, each in looks.items()]
        found += [Route(path, self._order(each), methods=["POST"]) for path, each in ORDERS.items()]
        return found

    # --- who asks --------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        entry = await self._gate.enter(request, await _body(request))
        if isinstance(entry, NoEntry):
            return _refused(request, entry.error, entry.status)
        response = _json(request, {"secret": entry.order_secret})
        response.headers["set-cookie"] = entry.cookie
        return response

    async def _logout(self, request: Request) -> Response:
        if not self._gate.may_order(request):
            return self._stranger(request)
        response = _json(request, {"done": "logged out"})
        response.headers["set-cookie"] = self._gate.leave(request)
        return response

    async def _invitation(self, request: Request) -> Response:
        key = await self._gate.invite(request)
        if isinstance(key, NoEntry):
            return _refused(request, key.error, key.status)
        return _json(request, {"key": key})

    def _stranger(self, request: Request) -> Response:
        wrong = AuthenticationError("you are not let in here", hint=self._gate.hint)
        return _refused(request, wrong, 401, entry=self._gate.entry)

    def _look(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def look(request: Request) -> Response:
            try:
                source = await self._gate.source(request)
            except GpupoolError as error:
                return _refused(request, error, 503)
            if source is None:
                return self._stranger(request)
            return await _answered(request, source, handler)

        return look

    def _order(self, read: ReadOrder) -> Callable[[Request], Awaitable[Response]]:
        async def give(request: Request, source: PoolSource) -> Response:
            order = read(await _body(request))
            return _json(request, {"done": await source.operate(order)})

        async def order(request: Request) -> Response:
            try:
                source = await self._gate.source(request)
            except GpupoolError as error:
                return _refused(request, error, 503)
            if source is None or not self._gate.may_order(request):
                return self._stranger(request)
            if self._readonly:
                wrong = DeniedError("this page changes nothing", why="--web-readonly is set")
                return _refused(request, wrong, 403)
            return await _answered(request, source, give)

        return order

    def refresh(self, source: PoolSource, name: str = "live") -> _Live:
        """Return the documents of a pool, of this second."""
        live = self._live.get(source)
        if live is None:
            live = self._live[source] = _Live(int(time.time()) % 10**8 * 1000)
        snapshot = source.latest()
        if snapshot is not None:
            live.refresh(name, snapshot, source.now(), self._viewer(source))
        return live

    def _viewer(self, source: PoolSource) -> dict[str, object]:
        operator = source.is_operator()
        readonly = self._readonly or source.only_looks()
        return {
            "user": source.user(),
            "operator": operator,
            "readonly": readonly,
            "entry": self._gate.entry,
        }

    # --- looking ---------------------------------------------------------------------------------

    async def _changed(self, request: Request, source: PoolSource) -> Response:
        name = request.url.path.rpartition("/")[2]
        book = self.refresh(source, name).books[name]
        since = request.query_params.get("since", "0")
        snapshot = source.latest()
        headers = {"cache-control": "no-store"}
        if snapshot is not None:
            headers["x-now"] = str(snapshot.now_ms)
            headers["x-age"] = f"{snapshot.view_age_s:.1f}"
        body = book.answer(int(since) if since.isdecimal() and len(since) < 16 else 0)
        return packed_response(request, body, JSON, headers)

    async def _server(self, request: Request, source: PoolSource) -> Response:
        snapshot = source.latest()
        wanted = request.path_params["server"]
        for row in snapshot.servers if snapshot is not None else ():
            if wanted in (row.server.id, row.server.name):
                names, measured = row.snapshot.names, row.telemetry
                peers = measured.consensus.link_rtt_s if measured and measured.consensus else ()
                told = {
                    "server": row.server,
                    "telemetry": measured,
                    "stale": row.silent_since,
                    "names": {each: visible(names[each]) for each in peers if each in names},
                }
                return _json(request, told)
        raise UnknownNameError(f"the pool has no server named {wanted}")

    async def _recent(self, request: Request, source: PoolSource) -> Response:
        asked = request.query_params
        recent = self.refresh(source).recent
        metrics = [each for each in asked.get("metrics", "busy").split(",") if each]
        if not set(metrics) <= {*METRICS, "waiting"}:
            raise UsageError("there is no such metric", hint=", ".join(METRICS))
        server, gpu = asked.get("server", ""), asked.get("gpu", "")
        found: dict[str, list[float | None]] = {}
        times: list[int] = []
        for metric in metrics:
            if server and gpu.isdecimal() and metric in METRICS:
                points = recent.gpu((server, int(gpu[:4])), metric)
            elif server and metric in METRICS:
                points = recent.server(server, metric)
            else:
                points = recent.pool(metric)
            times = [at for at, _ in points]
            found[metric] = [value for _, value in points]
        return _json(request, {"t": times, "series": found})

    async def _day(self, request: Request, source: PoolSource) -> Response:
        return _json(request, await self.refresh(source).day.told(source))

    async def _limits(self, request: Request, source: PoolSource) -> Response:
        user = request.query_params.get("user", "")[:NAME_LENGTH_MAX]
        snapshot = source.latest()
        now_ms = snapshot.now_ms if snapshot is not None else 0
        return _json(request, await self.refresh(source).limits.told(source, now_ms, user))

    async def _usage(self, request: Request, source: PoolSource) -> Response:
        asked = request.query_params
        answer = await ask_report(source, asked)
        if asked.get("format") == "csv":
            headers = {
                "content-disposition": 'attachment; filename="gpupool-usage.csv"',
                "cache-control": "no-store",
            }
            body = Packed(str(answer["csv"]).encode(errors="replace"))
            return packed_response(request, body, "text/csv; charset=utf-8", headers)
        return _json(request, {k: v for k, v in answer.items() if k != "csv"})

    async def _lease(self, request: Request, source: PoolSource) -> Response:
        lease = _lease_id(request.path_params["lease"])
        return _json(request, await ask_lease(source, lease))


def _asking(ask: Ask) -> Handler:
    async def asking(request: Request, source: PoolSource) -> Response:
        return _json(request, await ask(source, request.query_params))

    return asking


async def _ask_audit(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    answer = await source.audit()
    newest_first = [*answer.former, *answer.acts][::-1]
    acts = [dataclasses.replace(act, text=readable(act.text)) for act in newest_first]
    return {"acts": acts, "dropped": answer.count - len(answer.acts)}


async def _ask_policy(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    found = await source.policy()
    text = unpack_text(found.packed) if found.version else ""
    return {"version": found.version, "by": found.by, "at": found.at, "text": text}


ASKED: dict[str, Ask] = {
    "/history": ask_series,
    "/gpu-history": ask_gpu_history,
    "/checks": ask_checks,
    "/storage": ask_storage,
    "/capacity": ask_capacity,
    "/records": ask_records,
    "/audit": _ask_audit,
    "/policy": _ask_policy,
}


async def _answered(request: Request, source: PoolSource, handler: Handler) -> Response:
    try:
        return await handler(request, source)
    except (UsageError, UnknownNameError) as error:
        return _refused(request, error, 400)
    except DeniedError as error:
        return _refused(request, error, 403)
    except GpupoolError as error:
        return _refused(request, error, 502)


async def _body(request: Request) -> dict[str, object]:
    """Return a small JSON object; anything else is an empty one."""
    data = b""
    async with aclosing(request.stream()) as pieces:
        async for piece in pieces:
            data += piece
            if len(data) > BODY_MAX:
                return {}
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _reason(body: Mapping[str, object]) -> str:
    text = " ".join(str(body.get("reason", "")).split())
    if not text:
        raise UsageError("say why", why="everybody who looks at the pool sees the reason")
    if len(text) > REASON_MAX or not text.isprintable():
        raise UsageError(f"a reason is one line of at most {REASON_MAX} characters")
    return text + ACT_MARK


def _key(body: Mapping[str, object]) -> tuple[str, str, str]:
    """Return the check, the server and the subject of a silence."""
    found = body.get("key")
    words = cast("list[object]", found) if isinstance(found, list) else []
    texts = [each for each in words if isinstance(each, str)]
    if len(words) != 3 or len(texts) != 3 or not texts[0]:
        raise UsageError("silence what?")
    return texts[0], texts[1], texts[2]


def _hours(body: Mapping[str, object]) -> int:
    text = str(body.get("hours", ""))
    hours = int(text) if text.isdecimal() and len(text) < 6 else 0
    if not 0 < hours <= HOURS_MAX:
        raise UsageError(f"a silence ends after 1 to {HOURS_MAX} hours")
    return hours


def _drain_order(body: Mapping[str, object], reason: str | None) -> m.Order:
    """Return the order for a server, or for one GPU of it where its number is given."""
    server = _server_name(body)
    if "gpu" not in body:
        return m.DrainServer(server, reason)
    gpu = str(body["gpu"])
    if not gpu.isdecimal() or len(gpu) > GPU_DIGITS_MAX:
        raise UsageError("a GPU is named by its number on the server, such as 0")
    return m.DrainGpu(server, gpu, reason)


def _server_name(body: Mapping[str, object]) -> str:
    name = body.get("server")
    if not isinstance(name, str) or not name:
        raise UsageError("which server?")
    return name


def _lease_id(text: object) -> LeaseId:
    try:
        number = int(str(text), 16)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 63:
        raise UsageError("that is not the name of a lease, such as 7f3a")
    return LeaseId(number)


ORDERS: dict[str, ReadOrder] = {
    "/end-lease": lambda body: m.EndLease(_lease_id(body.get("lease")), _reason(body)),
    "/drain": lambda body: _drain_order(body, _reason(body)),
    "/undrain": lambda body: _drain_order(body, None),
    "/silence": lambda body: m.SetSilence(*_key(body), _reason(body), 3600.0 * _hours(body)),
    "/unsilence": lambda body: m.SetSilence(*_key(body), None, 0.0),
}
