"""The application: one page with its files, the API below it, and the headers of every answer."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool.monitoring.web.assets import TYPES, Asset, load_assets
from gpupool.monitoring.web.page_api import Api, Gate, packed_response

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
POLICY_OF_FILES = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": POLICY_OF_FILES,
}
HEADERS_OF_PAGES = {
    **HEADERS,
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=()",
}
PAGES = (
    *("", "servers", "gpus", "leases", "waiting", "users", "usage", "health", "events"),
    *("history", "clients", "about"),
)


HTML = TYPES[".html"].encode()


def _headers(*, page: bool) -> dict[str, str]:
    """Return the headers of a page, or of files and data, of which there are many."""
    return HEADERS_OF_PAGES if page else HEADERS


class Guarded:
    """Refuses hosts that are not ours, and adds the headers that hold for every answer."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # there is no WebSocket here

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                page = (b"content-type", HTML) in message["headers"]
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in _headers(page=page).items()),
                ]
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._gate.host_is_ours(hosts[0]):
            refusal = PlainTextResponse("this page is not served under that name\n", 421)
            await refusal(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def make_app(gate: Gate, *, readonly: bool = False) -> Guarded:
    """Return the application for the viewers admitted by ``gate``."""
    assets = load_assets()
    page = assets["/static/index.html"]
    api = Api(gate, readonly=readonly)

    async def index(request: Request) -> Response:
        return _file(request, page)

    async def file(request: Request) -> Response:
        asset = assets.get(request.url.path)
        return (
            _file(request, asset) if asset is not None else PlainTextResponse("no such file", 404)
        )

    routes = [Mount("/api/v1", routes=api.routes())]
    routes += [Route(f"/{folder}/{{path:path}}", file) for folder in ("static", "vendor")]
    for name in PAGES:
        routes.append(Route(f"/{name}", index))
        if name:
            routes.append(Route(f"/{name}/{{rest:path}}", index))
    return Guarded(Starlette(routes=routes), gate)


def _file(request: Request, asset: Asset) -> Response:
    headers = {"etag": asset.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers, media_type=asset.kind)
    return packed_response(request, asset.body, asset.kind, headers)
