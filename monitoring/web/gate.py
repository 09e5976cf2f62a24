"""Access to the page on a client's loopback: a one-time key, a cookie, and hosts that are ours.

The command prints an address whose fragment has the key. Browsers send no fragment; the page's
script exchanges the key for a cookie, and for a second secret that it keeps in its origin's storage
and sends with every order. Cookies are not bound to a port: what another program on this machine
serves may be sent ours, but it can give no order with it.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import AuthenticationError, GpupoolError, UsageError

KEY_SIZE = 24
VIEWERS_MAX = 64
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
ORDER_HEADER = "x-gpupool"


@dataclass(frozen=True, slots=True)
class Entry:
    """The credentials that a key is exchanged for."""

    cookie: str = field(repr=False)  # the whole header
    order_secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoEntry:
    """Why nobody is let in, with the status of HTTP."""

    error: GpupoolError
    status: int = 401


class LocalGate:
    """Lets in holders of a key that this process has made."""

    entry = "key"  # what lets a browser in
    hint = 'open the address that "gpupool web" prints'

    def __init__(self, source: PoolSource, port: int) -> None:
        self._source = source
        self._name = f"gpupool-web-{port}"
        self._keys: set[str] = set()
        self._viewers: dict[str, str] = {}  # the cookie's value: the secret of orders

    def new_key(self) -> str:
        """Return a key that is good once; those not used yet are good no more."""
        self._keys = {secrets.token_urlsafe(KEY_SIZE)}
        return next(iter(self._keys))

    def host_is_ours(self, host: str) -> bool:
        """Return whether it is a name of the loopback; a tunnel may have another port."""
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, ""
        return name.lower() in LOCAL_NAMES and (not port or port.isdigit())

    async def enter(self, request: Request, given: Mapping[str, object]) -> Entry | NoEntry:
        """Exchange a key."""
        key = str(given.get("key", ""))
        known = [each for each in self._keys if equal(each, key)]
        if not known:
            return NoEntry(USED)
        self._keys.clear()
        if len(self._viewers) >= VIEWERS_MAX:
            del self._viewers[next(iter(self._viewers))]
        value, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._viewers[value] = secret
        cookie = f"{self._name}={value}; Path=/; HttpOnly; SameSite=Strict"
        return Entry(cookie, secret)

    async def invite(self, request: Request) -> str | NoEntry:
        """Refuse: the terminal makes keys."""
        return NoEntry(UsageError("the terminal of gpupool web prints an address for that"), 404)

    def leave(self, request: Request) -> str:
        """Forget the browser."""
        self._viewers.pop(cookie_of(request, self._name), None)
        return f"{self._name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"

    async def source(self, request: Request) -> PoolSource | None:
        """Return the pool for a request with the cookie."""
        return self._source if self._secret(request) is not None else None

    def may_order(self, request: Request) -> bool:
        """Return whether the page's own secret came as well, and from the page's origin."""
        secret = self._secret(request)
        if secret is None or not equal(secret, request.headers.get(ORDER_HEADER, "")):
            return False
        return is_own_origin(request, "http")

    def _secret(self, request: Request) -> str | None:
        given = cookie_of(request, self._name)
        for value, secret in self._viewers.items():
            if equal(value, given):
                return secret
        return None


USED = AuthenticationError(
    "this address was used already",
    hint='press Enter in the terminal of "gpupool web" for a new one, or start it anew',
)


def cookie_of(request: Request, name: str) -> str:
    """Return the value of a cookie; empty when there is none."""
    # None of ours is quoted, and ``http.cookies`` takes n^2 steps for the quotes of strangers.
    for each in request.headers.get("cookie", "").split(";"):
        key, _, value = each.partition("=")
        if key.strip() == name:
            return value.strip()
    return ""


def is_own_origin(request: Request, scheme: str) -> bool:
    """Return whether the page's own origin has sent a request, as far as browsers say so."""
    origin = request.headers.get("origin")
    return origin is None or origin == f"{scheme}://{request.headers.get('host', '')}"


def equal(one: str, other: str) -> bool:
    """Return whether two secrets are the same, in a time that does not tell where they differ."""
    one_bytes, other_bytes = (each.encode(errors="surrogatepass") for each in (one, other))
    return hmac.compare_digest(one_bytes, other_bytes)
