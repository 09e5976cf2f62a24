"""The exporter's side of judging tokens: it asks the server, and caches the answers.

A good word holds for as long as the server says, twice a second, that no token has changed; when it
has said nothing for a second, it is asked again. So a scraper that comes again and again does not
wait for the server's loop, and a revoked token is refused within 2 s. A refusal is kept for less.

Strangers may not have the server asked as often as they like. Tokens that were not good within the
hour wait for their turn: ``ASKED_PER_S`` of all, a source network after the other. So a flood of
wrong ones keeps no good one from being checked, even when this process has just begun and knows
none.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio

from gpupool.monitoring.http.http_frames import TokenAnswered, TokenAsked, TokensSeen
from gpupool.pool.errors import GpupoolError
from gpupool.pool.fair_access import NetworkTurns
from gpupool.remoting.protocol.token_text import TEXT_LENGTH_MAX, parse_token
from gpupool.remoting.transport.message_stream import OpenCalls

KEPT_S = 1.0
"""For which any word is kept."""
SEEN_FOR_S = 1.2
"""For which the server's word that no token has changed is taken: revoked tokens are refused within
2 s, which is this, the tick of the table, and the way."""
GOOD_FOR_S = 3600.0
CONNECTIONS_MAX = 128
"""Remembered connections of one token; the server has heard of their proof."""
REMEMBERED_MAX = 1024
ASKED_PER_S = 100.0
"""Each costs the server's loop some 0.1 ms. Strangers begin up to 150 connections a second, and
three of four turns are for networks that had none, so a line of these is short."""
BURST = 20.0
WAIT_S = 10.0
"""For a turn."""
WAITING_MAX, WAITING_OF_NETWORK_MAX = 2048, 512
"""Tokens that wait for their turn: one of each connection at most."""
ANSWER_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The server's word on a token: ``kind`` is empty when it is refused."""

    user: str = ""
    kind: str = ""
    why: str = ""
    status: int = 401  # of HTTP, when it is refused


@dataclass(slots=True)
class _Known:
    judgement: Judgement
    at: float
    good_at: float
    tokens: int  # the number of the server's tokens
    expires_at: int
    connections: dict[int, None]  # over which it was found good, the oldest first


class TokenChecks:
    """Asks the server for its word on tokens."""

    def __init__(self, ask: Callable[[TokenAsked], None], clock: Callable[[], float]) -> None:
        """Make it; ``ask`` sends a question, and the answer comes to ``answered``."""
        self._ask = ask
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._open = OpenCalls[TokenAnswered]()
        self._budget, self._budget_at = BURST, clock()
        self._waiting = NetworkTurns[trio.Event]()
        self._has_waiting = trio.Event()
        self._seen: TokensSeen | None = None

    async def pace(self) -> None:
        """Give turns to those that wait for one, until cancelled."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting = trio.Event()
            while self._waiting.size:
                if self._take():
                    self._waiting.pop().set()
                else:
                    await trio.sleep(1 / ASKED_PER_S)

    async def judge(self, text: str, connection: int, network: str) -> Judgement:
        """Return the server's word on the token ``text``, which came over a connection."""
        if len(text) > TEXT_LENGTH_MAX:
            return Judgement(why="this is no token")
        try:
            parse_token(text)  # a mistyped one costs the server nothing
        except GpupoolError as error:
            return Judgement(why=str(error))
        digest, now = hashlib.sha256(text.encode()).digest(), self._clock()
        known = self._known.get(digest)
        # The server hears of each connection's first good token, which frees its place.
        if known is not None and self._holds(known, connection, now):
            return known.judgement
        was_good = known is not None and now - known.good_at < GOOD_FOR_S
        if not was_good and not await self._turn(network):
            return Judgement(why="too many tokens are tried", status=429)
        answer = await self._asked(text, connection)
        judgement = _judgement(answer)
        if answer is not None and judgement.status != 503:
            good_at = known.good_at if known is not None else float("-inf")
            connections = known.connections if known is not None else {}
            if judgement.kind:
                good_at = self._clock()
                connections = {**connections, connection: None}
                if len(connections) > CONNECTIONS_MAX:
                    del connections[next(iter(connections))]
            new = _Known(
                judgement, self._clock(), good_at, answer.tokens, answer.expires_at, connections
            )
            self._remember(digest, new)
        return judgement

    def seen(self, seen: TokensSeen) -> None:
        """Take the server's word that its tokens are those of a number."""
        self._seen = seen

    def answered(self, answer: TokenAnswered) -> None:
        """Take an answer of the server."""
        self._open.answered(answer.number, answer)

    def _holds(self, known: _Known, connection: int, now: float) -> bool:
        """Return whether a token's judgement still holds."""
        if not known.judgement.kind:
            return now - known.at < KEPT_S
        if connection not in known.connections:
            return False
        seen = self._seen
        return now - known.at < KEPT_S or (
            seen is not None
            and seen.tokens == known.tokens
            and now - seen.seen_s < SEEN_FOR_S
            and seen.at + 1000 * (now - seen.seen_s) < known.expires_at
            and now - known.good_at < GOOD_FOR_S
        )

    async def _asked(self, text: str, connection: int) -> TokenAnswered | None:
        with self._open.opened() as call:
            self._ask(TokenAsked(call.number, connection, text))
            return await call.wait(ANSWER_TIMEOUT_S)

    async def _turn(self, network: str) -> bool:
        """Wait until the server may be asked for a network; False: too many wait."""
        if not self._waiting.size and self._take():
            return True
        count = self._waiting.count(network)
        if self._waiting.size >= WAITING_MAX or count >= WAITING_OF_NETWORK_MAX:
            return False
        turn = trio.Event()
        self._waiting.add(network, turn)
        self._has_waiting.set()
        try:
            with trio.move_on_after(WAIT_S):
                await turn.wait()
        finally:
            self._waiting.remove(network, turn)
        return turn.is_set()

    def _take(self) -> bool:
        now = self._clock()
        self._budget = min(BURST, self._budget + (now - self._budget_at) * ASKED_PER_S)
        self._budget_at = now
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    def _remember(self, digest: bytes, known: _Known) -> None:
        self._known[digest] = known
        self._known.move_to_end(digest)
        if len(self._known) > REMEMBERED_MAX:
            # Those that never were good go first.
            never = (each for each, it in self._known.items() if it.good_at == float("-inf"))
            del self._known[next(never, next(iter(self._known)))]


def _judgement(answer: TokenAnswered | None) -> Judgement:
    if answer is None:
        return Judgement(why="the server does not answer", status=503)
    if answer.kind:
        return Judgement(answer.user, answer.kind)
    return Judgement(why=answer.why, status=503 if answer.later else 401)
