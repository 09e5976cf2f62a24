"""The agent: the Unix socket on which the program's processes ask ``gpupool run`` for sessions.

One JSON object per line each way. A connection lives as long as the process that made it; news of
the lease is pushed on it.

A library of the array door that can be moved has a second connection to the agent, to follow its
lease to another server. It says there which session is its own::

    process                                   agent
    {"op": "follow", "session": HEX}          {"ok": true}
                                              {"op": "move", "offer": {...}}
    (sends its state to the new worker)
    {"op": "go-on"}                           {"ok": true, "stays": WHY}, empty: it goes on there
    {"op": "moved", "stays": WHY}             {"ok": true}
"""

import math
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.codec import CodecError, decode
from gpupool.pool.model.policy import DataEncryption
from gpupool.remoting.client.session_answer import (
    OpenedSession,
    SessionAnswer,
    has_emulated,
    to_plain,
)
from gpupool.remoting.program.json_lines import (
    LineReader,
    LineTooLongError,
    line_of,
    object_of,
    words_of,
)
from gpupool.remoting.program.program_lease import SessionRequest
from gpupool.remoting.program.tls_relay import offer_relay
from gpupool.remoting.protocol.driver_variables import allowed_environment

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
        """Tell a session's process to move to another session; return the reason if it stays."""
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


LINE_LENGTH_MAX = 64 * 1024
CONNECTION_COUNT_MAX = 1024
PUSH_TIMEOUT_S = 2.0
OPEN_TIMEOUT_S = 30.0

OpenSession = Callable[[SessionRequest], Awaitable[list[SessionAnswer]]]
Describe = Callable[[], Awaitable[dict[str, object]]]
Check = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class DevicesWanted:
    """NVML's library, or ``nvidia-smi``, asks for the devices of the lease."""


@dataclass(frozen=True, slots=True)
class SessionBroken:
    """A process of the program reports that its session is broken."""

    what: str
    pid: int = 0


@dataclass(frozen=True, slots=True)
class CheckLease:
    """A process of the program has lost a worker, and asks whether the lease is lost with it."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A ``gpupool run --lease`` asks for the lease's record, and for notices from now on."""


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """A ``gpupool release`` wants the lease given back."""


REQUESTS: dict[str, type[object]] = {
    "session": SessionRequest,
    "broken": SessionBroken,
    "nvml": DevicesWanted,
    "check": CheckLease,
    "watch": Watch,
    "release": ReleaseLease,
    "follow": FollowLease,
    "go-on": AskToGoOn,
    "moved": MoveDone,
}
LENGTHS = {"door": 40, "session": 64, "program": 300, "what": 300, "stays": 300}
"""A text that is longer is cut: a library of another version may send it."""

# --- lines, without any socket --------------------------------------------------------------------


def parse_request(line: bytes) -> object:
    """Return the request in one line.

    Raises:
        ValueError: with a sentence, when it is not a request of ours.
    """
    try:
        body = object_of(line)
    except ValueError as error:
        raise ValueError(f"the request {error}") from None
    kind = REQUESTS.get(str(body.get("op")))
    if kind is None:
        raise ValueError(f"unknown request {str(body.get('op'))[:40]!r}")
    fields = {n: v[: LENGTHS.get(n)] if isinstance(v, str) else v for n, v in body.items()}
    settings, fields["settings"] = body.get("settings", {}), None
    if isinstance(settings, dict):  # and not pairs, as the codec has maps
        known = allowed_environment(cast("dict[str, object]", settings))
        fields["settings"] = [list(each) for each in known.items()]
    try:
        return decode(kind, fields, unknown_fields=True)
    except CodecError:
        raise ValueError("a field of the request has the wrong type") from None


def success_line(lease: str, sessions: list[SessionAnswer], notices: list[str]) -> bytes:
    """Return the answer that carries the sessions."""
    plain = [to_plain(each) for each in sessions]
    return line_of({"ok": True, "lease": lease, "notices": notices, "sessions": plain})


def failure_line(error: GpupoolError) -> bytes:
    """Return the answer that says why there is no session."""
    return line_of({"ok": False} | words_of(error))


def lost_line(what: str) -> bytes:
    """Return the push that says that the lease is gone."""
    return line_of({"op": "lost", "what": what})


def notice_line(text: str) -> bytes:
    """Return a push with something that the user should know."""
    return line_of({"op": "notice", "text": text})


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


# --- the socket -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HolderActions:
    """Further requests that the agent of a held lease answers, for other ``gpupool`` commands."""

    #: Returns the record of the lease.
    describe: Callable[[], dict[str, object]]
    #: Gives the lease back, and returns once that is confirmed.
    release: Callable[[], Awaitable[None]]


class Agent:
    """Answers the program's processes from one lease."""

    def __init__(
        self,
        folder: Path,
        *,
        lease: str,
        open_session: OpenSession,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        held: HolderActions | None = None,
        describe: Describe | None = None,
        check: Check | None = None,
    ) -> None:
        """Make an agent that does not listen yet.

        Args:
            folder: for its socket and its relays.
            lease: the lease's name, for the program.
            open_session: has a session opened on the servers of the lease; see ``ProgramLease``.
            open_timeout_s: how long that may take; infinite where it waits for free GPUs.
            held: set when the lease outlives programs, and ``gpupool run --lease`` asks.
            describe: returns the devices of the lease, for NVML and ``nvidia-smi``.
            check: asks the servers of the lease for a word, and returns why the lease is lost;
                empty while it is held.
        """
        self._folder = folder
        self.path = folder / f"agent-{secrets.token_hex(4)}.sock"
        self._open_timeout_s = open_timeout_s
        self._held = held
        self._watchers: set[trio.SocketStream] = set()
        self._opening: set[trio.SocketStream] = set()  # that wait for a session
        self._lease = lease
        self._open_session = open_session
        self._describe = describe
        self._check = check
        self._pids: set[int] = set()  # of processes that opened a session
        self._lost = ""
        self._clients: set[trio.SocketStream] = set()
        self._sending: dict[trio.SocketStream, trio.Lock] = {}
        self.followers = Followers(self._send)
        self.opened = 0
        self.broken = ""
        """Error text of the first process with a broken session, though the lease goes on."""
        self.notices: list[str] = []
        self.log: Callable[[str], None] = lambda _: None
        self.on_emulated: Callable[[], None] = lambda: None
        """Called when a program asks for emulated GPUs by the CUDA door, which cannot have them."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled."""
        listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        with listener:
            await listener.bind(str(self.path))
            os.chmod(self.path, 0o600)
            listener.listen(128)
            async with trio.open_nursery() as nursery:
                task_status.started()
                await trio.serve_listeners(
                    self._serve_client, [trio.SocketListener(listener)], handler_nursery=nursery
                )

    async def lost(self, what: str, *, final: bool = True) -> None:
        """Tell every process of the program that the lease is gone.

        Further sessions are refused, unless that is not ``final``: then they may get a new lease.
        """
        self._lost = what if final else ""
        await self._push_all(self._clients, lost_line(what))

    def found(self, lease: str) -> None:
        """Take note of a lease that ``open_session`` got at its first use."""
        self._lease = lease

    async def notify(self, text: str) -> None:
        """Send a notice for its users to all watchers of the lease."""
        await self._push_all(self._watchers, notice_line(text))

    async def tell_waiting(self, text: str) -> None:
        """Tell the processes that wait for a session the reason of the wait."""
        await self._push_all(self._opening, notice_line(text))

    def watcher_count(self) -> int:
        """Return how many ``gpupool run --lease`` there are now."""
        return len(self._watchers)

    async def drained(self) -> None:
        """Wait until nobody is connected any more."""
        while self._clients:  # noqa: ASYNC110 - the caller sets a deadline of a second
            await trio.sleep(0.01)

    async def _push_all(self, streams: set[trio.SocketStream], line: bytes) -> None:
        async with trio.open_nursery() as nursery:
            for stream in list(streams):
                nursery.start_soon(self._push, stream, line)

    async def _push(self, stream: trio.SocketStream, line: bytes) -> None:
        # A process that reads nothing must not hold the news back from the others.
        with trio.move_on_after(PUSH_TIMEOUT_S):
            await self._send(stream, line)

    async def _send(self, stream: trio.SocketStream, line: bytes) -> None:
        lock = self._sending.get(stream)
        if lock is None:
            return
        async with lock:
            try:
                await stream.send_all(line)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the process is gone, and its reader notices

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        async with stream:
            if len(self._clients) >= CONNECTION_COUNT_MAX:
                return
            self._clients.add(stream)
            self._sending[stream] = trio.Lock()
            try:
                await self._read_lines(stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            finally:
                self._clients.discard(stream)
                self._watchers.discard(stream)
                self._opening.discard(stream)
                self.followers.left(stream)
                del self._sending[stream]

    async def _read_lines(self, stream: trio.SocketStream) -> None:
        lines = LineReader(stream, LINE_LENGTH_MAX)
        try:
            while (line := await lines.next()) is not None:
                answer = await self.answer(line, stream)
                self._opening.discard(stream)
                await self._send(stream, answer)
        except LineTooLongError:
            too_long = GpupoolError("the request is too long", why="more than 64 KiB")
            await self._send(stream, failure_line(too_long))

    async def answer(self, line: bytes, stream: trio.SocketStream | None = None) -> bytes:
        """Return the answer to one line; never raises for an error in the line."""
        try:
            request = parse_request(line)
        except ValueError as error:
            return failure_line(GpupoolError("the program's library sent nonsense", why=str(error)))
        if isinstance(request, SessionBroken):
            self.log(f"the session of process {request.pid} broke: {request.what}")
            self.broken = self.broken or request.what
            return line_of({"ok": True})
        if isinstance(request, Watch | ReleaseLease):
            return await self._answer_holder(request, stream)
        if isinstance(request, FollowLease | AskToGoOn | MoveDone):
            return line_of(await self.followers.answer(request, stream))
        if isinstance(request, DevicesWanted):
            return await self._answer_devices()
        if isinstance(request, CheckLease):
            check = self._check
            lost = self._lost or (await check() if check is not None else "")
            return line_of({"ok": True, "lost": lost})
        assert isinstance(request, SessionRequest)
        if self._lost:
            failure = GpupoolError(self._lost)
            failure.code = "lease-lost"
            return failure_line(failure)
        self.log(f"process {request.pid} opens a session for the {request.door} door")
        if stream is not None:
            self._opening.add(stream)
        try:
            with trio.fail_after(self._open_timeout_s):
                sessions = await self._open_session(request)
        except GpupoolError as error:
            return failure_line(error)
        except trio.TooSlowError:
            late = GpupoolError(
                "the server opened no session", why=f"no answer for {math.ceil(OPEN_TIMEOUT_S)} s"
            )
            return failure_line(late)
        # Of a held lease, it is ``gpupool run --lease`` that asks, which makes its own relay.
        if request.door == "cuda" and self._held is None:
            if any(has_emulated(session) for session in sessions):
                self.on_emulated()
                return success_line(self._lease, [], self.notices)  # CUDA finds no device
            try:
                sessions = [
                    self._with_relay(session) if isinstance(session, OpenedSession) else session
                    for session in sessions
                ]
            except OSError as error:
                return failure_line(GpupoolError("no relay can be made", why=str(error)))
        self.opened += 1
        self._pids.add(request.pid)
        return success_line(self._lease, sessions, self.notices)

    async def _answer_holder(
        self, request: Watch | ReleaseLease, stream: trio.SocketStream | None
    ) -> bytes:
        if self._held is None:
            return failure_line(GpupoolError("this lease ends with its program"))
        if isinstance(request, Watch):
            if stream is not None:
                self._watchers.add(stream)
            return line_of({"ok": True, "lost": self._lost} | self._held.describe())
        users = self.watcher_count()
        await self._held.release()
        return line_of({"ok": True, "users": users})

    async def _answer_devices(self) -> bytes:
        if self._describe is None:
            return failure_line(GpupoolError("this run does not describe its devices"))
        try:
            with trio.fail_after(OPEN_TIMEOUT_S):
                fields = await self._describe()
        except GpupoolError as error:
            return failure_line(error)
        except trio.TooSlowError:
            return failure_line(GpupoolError("no server describes the devices"))
        alive = sorted(filter(_is_alive, self._pids))
        return line_of({"ok": True, "lease": self._lease, "processes": alive} | fields)

    def _with_relay(self, session: OpenedSession) -> OpenedSession:
        """Offer to encrypt for a library that may not be able to."""
        if session.encryption == DataEncryption.OFF:
            return session
        return offer_relay(session, self._folder, self.log)
