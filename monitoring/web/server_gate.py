"""Access to the page of a server: for a token's holder, as long as the token is good.

A browser logs in with a token, or with a key that ``gpupool web --on`` got for one. It gets a
cookie, and a second secret that it sends with every order. Sessions are in memory alone: twelve
hours, one hour without a request, and no longer than the **server** finds the token good, which is
asked with every request. The token stays in memory for the connections of ``LentSource``.

Wrong log-ins are not counted: a count would keep out those who are right. Secrets and keys have 128
random bits at least, so nobody guesses one, and ``token_checks`` bounds what a wrong one costs.
"""

import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field

from starlette.requests import Request

from gpupool.monitoring.http.token_checks import Judgement
from gpupool.monitoring.web.gate import (
    ORDER_HEADER,
    Entry,
    NoEntry,
    cookie_of,
    equal,
    is_own_origin,
)
from gpupool.monitoring.web.lent_source import LentSource
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import AuthenticationError, UnreachableError, UsageError
from gpupool.pool.fair_access import UserBound

SESSION_S, IDLE_S = 12 * 3600.0, 3600.0
SESSIONS_MAX, SESSION_BOUND = 64, UserBound(user=8, token=6)
"""Of all, and of one user or token: with one more, the one of theirs unused for longest ends."""
KEY_S, KEYS_MAX, KEY_BOUND = 60.0, 64, UserBound(user=8, token=6)
"""Of all, and of one user or token: with one more, the oldest one of theirs is good no more. When
all are taken, the user with the most loses the oldest."""

COOKIE = "__Host-gpupool"
COOKIE_RULES = "Path=/; Secure; HttpOnly; SameSite=Strict"

Judge = Callable[[str, int], Awaitable[Judgement]]
Lend = Callable[[str, Judgement], LentSource]


@dataclass(slots=True)
class _Session:
    text: str = field(repr=False)  # the token
    user: str
    order_secret: str = field(repr=False)
    source: LentSource
    began: float
    used: float


@dataclass(frozen=True, slots=True)
class _Key:
    text: str = field(repr=False)  # the token
    user: str
    until: float


class ServerGate:
    """Lets in holders of a token."""

    entry = "token"  # what lets a browser in, by a form that asks for one
    hint = "log in with a token"

    def __init__(self, judge: Judge, lend: Lend, clock: Callable[[], float]) -> None:
        """Make it.

        Args:
            judge: returns the server's word on a token that came over a connection.
            lend: returns the pool by a token.
            clock: tells the time of sessions.
        """
        self._judge = judge
        self._lend = lend
        self._clock = clock
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._keys: OrderedDict[bytes, _Key] = OrderedDict()

    def host_is_ours(self, host: str) -> bool:
        """Return True for any name: a browser checks the certificate's, and sends it its cookie."""
        return bool(host)

    async def enter(self, request: Request, given: Mapping[str, object]) -> Entry | NoEntry:
        """Let a browser in by a token or a key."""
        if ORDER_HEADER not in request.headers or not is_own_origin(request, "https"):
            return NoEntry(AuthenticationError("another site's page has asked"), 403)
        text = str(given.get("token", "")).strip()
        if key := str(given.get("key", "")):
            found = self._keys.pop(_digest(key), None)
            text = found.text if found is not None and self._clock() <= found.until else ""
        if not text:
            wrong = "this address was used already, or is older than a minute"
            what = wrong if key else "this is no token"
            return NoEntry(AuthenticationError(what, hint=self.hint))
        judgement = await self._judge(text, request.state.connection)
        if not judgement.kind:
            return NoEntry(AuthenticationError(judgement.why), judgement.status)
        value, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        now = self._clock()
        self._drop_old(now)
        source = self._source_of(text) or self._lend(text, judgement)
        self._make_room(judgement.user, text)
        session = _Session(text, judgement.user, secret, source, now, now)
        self._sessions[_digest(value)] = session
        return Entry(f"{COOKIE}={value}; {COOKIE_RULES}", secret)

    async def invite(self, request: Request) -> str | NoEntry:
        """Return a key for a client that shows a token, as ``gpupool web --on`` does."""
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not text.strip():
            return NoEntry(UsageError("this takes a token: Authorization: Bearer gpupool-..."), 401)
        judgement = await self._judge(text.strip(), request.state.connection)
        if not judgement.kind:
            return NoEntry(AuthenticationError(judgement.why), judgement.status)
        key = secrets.token_urlsafe(32)
        self._make_room_for_key(judgement.user, text.strip())
        self._keys[_digest(key)] = _Key(text.strip(), judgement.user, self._clock() + KEY_S)
        return key

    def leave(self, request: Request) -> str:
        """Forget the session."""
        self._sessions.pop(_digest(cookie_of(request, COOKIE)), None)
        return f"{COOKIE}=; {COOKIE_RULES}; Max-Age=0"

    async def source(self, request: Request) -> PoolSource | None:
        """Return the pool for a request with a good cookie and token.

        Raises:
            UnreachableError: when the server cannot judge the token now.
        """
        digest = _digest(cookie_of(request, COOKIE))
        self._drop_old(self._clock())
        session = self._sessions.get(digest)
        if session is None:
            return None
        judgement = await self._judge(session.text, request.state.connection)
        if judgement.status == 503 and not judgement.kind:
            raise UnreachableError("the log-in cannot be checked now", why=judgement.why)
        if not judgement.kind:
            self._sessions.pop(digest, None)
            return None
        if digest in self._sessions:
            session.used = self._clock()
            self._sessions.move_to_end(digest)
        await session.source.look()
        return session.source

    def may_order(self, request: Request) -> bool:
        """Return whether the page's own secret came as well, and from the page's origin."""
        session = self._sessions.get(_digest(cookie_of(request, COOKIE)))
        given = request.headers.get(ORDER_HEADER, "")
        known = session is not None and equal(session.order_secret, given)
        return known and is_own_origin(request, "https")

    def _source_of(self, text: str) -> LentSource | None:
        """Return the source of a session with this token: one set of connections is enough."""
        return next((each.source for each in self._sessions.values() if each.text == text), None)

    def _make_room(self, user: str, text: str) -> None:
        """Let the sessions go for which one more has no place, those unused for longest first."""
        _drop_own(self._sessions, SESSION_BOUND, user, text)
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)

    def _drop_old(self, now: float) -> None:
        for digest, session in list(self._sessions.items()):
            if now - session.began > SESSION_S or now - session.used > IDLE_S:
                del self._sessions[digest]

    def _make_room_for_key(self, user: str, text: str) -> None:
        """Forget the keys that have ended, and those for which one more has no place."""
        now = self._clock()
        for digest, key in list(self._keys.items()):
            if now > key.until:
                del self._keys[digest]
        _drop_own(self._keys, KEY_BOUND, user, text)
        if len(self._keys) >= KEYS_MAX:
            busiest = Counter(key.user for key in self._keys.values()).most_common(1)[0][0]
            del self._keys[next(d for d, key in self._keys.items() if key.user == busiest)]


def _drop_own(
    held: MutableMapping[bytes, _Key] | MutableMapping[bytes, _Session],
    bound: UserBound,
    user: str,
    text: str,
) -> None:
    """Drop the first ones of a user and of a token, so that there is room for one more."""
    for most, of_token in ((bound.token, True), (bound.user, False)):
        own = [
            digest
            for digest, each in held.items()
            if each.user == user and (each.text == text or not of_token)
        ]
        for digest in own[: max(0, len(own) - most + 1)]:
            del held[digest]


def _digest(value: str) -> bytes:
    """Return a secret's lookup key, so that looking tells nothing of its bytes."""
    return hashlib.sha256(value.encode(errors="replace")).digest()
