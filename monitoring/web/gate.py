"""Who may use the page on a client's loopback: a one-time key, a cookie, and hosts that are ours.

The command prints an address whose fragment has the key. Browsers send no fragment; the page's
script exchanges the key for a cookie, and for a second secret that it keeps in its origin's storage
and sends with every order. Cookies are not bound to a port: what another program on this machine
serves may be sent ours, but it can give no order with it.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Protocol

from gpupool.monitoring.web.pool_source import PoolSource

KEY_SIZE = 24
VIEWERS_MAX = 64
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
ORDER_HEADER = "x-gpupool"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a key is exchanged for."""

    cookie: str  # the whole header
    order_secret: str


class Gate(Protocol):
    """Says who looks."""

    def host_is_ours(self, host: str) -> bool:
        """Return whether a ``Host`` header is one of this server, so that no name is rebound."""
        ...

    def enter(self, key: str) -> Entry | None:
        """Exchange a key; None if it is wrong or used."""
        ...

    def source(self, headers: Mapping[str, str]) -> PoolSource | None:
        """Return the pool as the viewer sees it; None for a stranger."""
        ...

    def may_order(self, headers: Mapping[str, str]) -> bool:
        """Return whether this viewer's page itself has sent an order."""
        ...


class LocalGate:
    """Lets in those who have a key that this process has made."""

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

    def enter(self, key: str) -> Entry | None:
        """Exchange a key."""
        known = [each for each in self._keys if _equal(each, key)]
        if not known:
            return None
        self._keys.clear()
        if len(self._viewers) >= VIEWERS_MAX:
            del self._viewers[next(iter(self._viewers))]
        value, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._viewers[value] = secret
        cookie = f"{self._name}={value}; Path=/; HttpOnly; SameSite=Strict"
        return Entry(cookie, secret)

    def source(self, headers: Mapping[str, str]) -> PoolSource | None:
        """Return the pool for one who has the cookie."""
        return self._source if self._secret(headers) is not None else None

    def may_order(self, headers: Mapping[str, str]) -> bool:
        """Return whether the page's own secret came as well, and from the page's origin."""
        secret = self._secret(headers)
        if secret is None or not _equal(secret, headers.get(ORDER_HEADER, "")):
            return False
        origin = headers.get("origin")
        return origin is None or origin == f"http://{headers.get('host', '')}"

    def _secret(self, headers: Mapping[str, str]) -> str | None:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        morsel = cookies.get(self._name)
        given = morsel.value if morsel is not None else ""
        for value, secret in self._viewers.items():
            if _equal(value, given):
                return secret
        return None


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
