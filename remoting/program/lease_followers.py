"""Processes of a program that follow their lease to another server, as the agent has them.

A library of the array door that can be moved has a second connection to the agent, and says there
which session is its own. One JSON object a line, as on every connection of the agent::

    process                                   agent
    {"op": "follow", "session": HEX}          {"ok": true}
                                              {"op": "move", "offer": {...}}
    (sends its state to the new worker)
    {"op": "go-on"}                           {"ok": true, "stays": WHY}, empty: it goes on there
    {"op": "moved", "stays": WHY}             {"ok": true}
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from gpupool.remoting.client.session_answer import OpenedSession, to_plain
from gpupool.remoting.program.json_lines import line_of

PATIENCE_S = 840.0
"""A program that is not done by then stays: the pool gives the order up after 15 min."""

Ask = Callable[[], Awaitable[str]]
Send = Callable[[trio.SocketStream, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FollowLease:
    """A process says that it can bring this session along to another server."""

    session: str


@dataclass(frozen=True, slots=True)
class AskToGoOn:
    """Its state is with the new worker, and it asks whether to go on there."""


@dataclass(frozen=True, slots=True)
class MoveDone:
    """It goes on there, or says why it stays."""

    stays: str


FollowRequest = FollowLease | AskToGoOn | MoveDone


def move_line(offer: OpenedSession) -> bytes:
    """Return the order to go on with the worker of an offer."""
    return line_of({"op": "move", "offer": to_plain(offer)})


@dataclass(slots=True)
class _Move:
    """One process that was told to go."""

    ask: Ask
    over: trio.Event = field(default_factory=trio.Event)
    stays: str = "its process has ended"


class Followers:
    """See the module."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sessions: dict[str, trio.SocketStream] = {}
        self._moves: dict[trio.SocketStream, _Move] = {}

    async def bring(self, session: bytes, offer: OpenedSession, ask: Ask) -> str:
        """Have the process with a session go on with another one; return why it stays."""
        stream = self._sessions.get(session.hex())
        if stream is None:
            return "its program uses an older cupy of gpupool, or does not run on this machine"
        move = self._moves[stream] = _Move(ask)
        try:
            with trio.move_on_after(PATIENCE_S) as patience:
                await self._send(stream, move_line(offer))
                await move.over.wait()
        finally:
            del self._moves[stream]
        if patience.cancelled_caught:
            return f"its program has not gone within {PATIENCE_S / 60:.0f} min"
        if not move.stays and stream in self._sessions.values():
            self._sessions[offer.session.hex()] = stream
        return move.stays

    async def answer(
        self, request: FollowRequest, stream: trio.SocketStream | None
    ) -> dict[str, object]:
        """Return the answer to a process."""
        if stream is None:
            return {"ok": False}
        if isinstance(request, FollowLease):
            self._sessions[request.session] = stream
            return {"ok": True}
        move = self._moves.get(stream)
        if move is None:
            return {"ok": True, "stays": "nobody told it to go"}
        if isinstance(request, AskToGoOn):
            return {"ok": True, "stays": await move.ask()}
        move.stays = request.stays
        move.over.set()
        return {"ok": True}

    def left(self, stream: trio.SocketStream) -> None:
        """Forget a process that has ended."""
        for session in [name for name, each in self._sessions.items() if each is stream]:
            del self._sessions[session]
        move = self._moves.get(stream)
        if move is not None:
            move.over.set()
