"""Asks the holder of a lease, through its agent's socket: JSON objects, one per line.

``HeldLease`` watches the lease on a connection that lives as long as the program; every request
has a connection of its own, so that a slow answer delays no notice.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import cast

import trio

from gpupool.pool.errors import GpupoolError, LeaseLostError
from gpupool.remoting.client.session_answer import SessionAnswer, from_plain
from gpupool.remoting.program.agent import LINE_LENGTH_MAX
from gpupool.remoting.program.held_leases import HeldRecord, find_held
from gpupool.remoting.program.json_lines import (
    LineReader,
    LineTooLongError,
    error_of,
    line_of,
    object_of,
)
from gpupool.remoting.program.program_lease import ProgramLease, SessionRequest

ANSWER_TIMEOUT_S = 10.0


class HeldLease(ProgramLease):
    """A lease of a holder on this machine, as a program that runs on it sees it."""

    def __init__(self, record: HeldRecord) -> None:
        self.record = record
        self.idle_timeout_s = record.idle_timeout_s
        self.on_notice: Callable[[str], None] = lambda _text: None
        self.lost = ""
        self._over = trio.Event()
        self._lines: _Lines | None = None

    @property
    def name(self) -> str:
        """Return the name of the lease."""
        return self.record.lease

    async def __aenter__(self) -> "HeldLease":
        """Watch it from now on.

        Raises:
            LeaseLostError: when it is over.
        """
        lines = await _connect(self.record)
        try:
            answer = await lines.ask({"op": "watch"})
            if lost := str(answer.get("lost", "")):
                raise LeaseLostError(lost)
        except BaseException:
            await lines.aclose()
            raise
        self._lines = lines
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._lines is not None
        await self._lines.aclose()

    async def listen(self) -> None:
        """Receive news of the lease, until cancelled or the lease is over."""
        assert self._lines is not None
        what = "the process that held it on this machine has ended"
        with contextlib.suppress(GpupoolError):  # a holder that dies says nothing
            while (pushed := await self._lines.receive()) is not None:
                if pushed.get("op") == "notice":
                    self.on_notice(str(pushed.get("text", "")))
                elif pushed.get("op") == "lost":
                    what = str(pushed.get("what", what))
                    break
        self.lost = what
        self._over.set()

    def server_names(self) -> tuple[str, ...]:
        """Return the names of the servers of this lease."""
        return self.record.servers

    async def wait_lost(self) -> str:
        """Wait until the lease is over, and return why."""
        await self._over.wait()
        return self.lost

    async def check(self) -> str:
        """Return why the holder's lease has ended; empty while it is held."""
        try:
            return str((await self.ask({"op": "check"})).get("lost", ""))
        except LeaseLostError:
            with trio.move_on_after(ANSWER_TIMEOUT_S):
                await self._over.wait()  # the holder is gone, which `listen` notices too
            return self.lost
        except GpupoolError:
            return ""  # a holder of an older version has no such operation

    async def ask(self, request: dict[str, object]) -> dict[str, object]:
        """Return the holder's answer to a request on a new connection.

        Raises:
            GpupoolError: the holder answers with an error.
        """
        return await _ask(self.record, request)

    async def open_session(self, request: SessionRequest) -> list[SessionAnswer]:
        """Ask the holder to open sessions for one process of the program.

        Raises:
            GpupoolError: the holder answers with an error.
        """
        fields: dict[str, object] = {"op": "session", "door": request.door}
        fields |= {"program": request.program, "pid": os.getpid()}
        fields |= {} if request.visible is None else {"visible": request.visible}
        fields |= {"settings": request.settings} if request.settings else {}
        answer = await self.ask(fields)
        try:
            return [from_plain(each) for each in cast("list[object]", answer.get("sessions", []))]
        except (TypeError, ValueError) as error:
            raise GpupoolError("the lease's holder makes no sense", why=str(error)) from error

    async def describe(self) -> dict[str, object]:
        """Return the devices of the lease, as the holder describes them.

        Raises:
            GpupoolError: the holder answers with an error.
        """
        answer = await self.ask({"op": "nvml"})
        return {key: answer[key] for key in ("driver", "cuda", "devices") if key in answer}


async def release_held(record: HeldRecord) -> int:
    """Release a held lease; return the number of programs that used it.

    Raises:
        GpupoolError: when its holder does not answer.
    """
    users = (await _ask(record, {"op": "release"})).get("users", 0)
    return users if isinstance(users, int) else 0


async def _ask(record: HeldRecord, request: Mapping[str, object]) -> dict[str, object]:
    lines = await _connect(record)
    try:
        return await lines.ask(request)
    finally:
        await lines.aclose()


async def _connect(record: HeldRecord) -> "_Lines":
    try:
        return _Lines(await trio.open_unix_socket(record.socket), record)
    except OSError as error:
        why = f"its holder, process {record.pid}, does not answer: {error.strerror or error}"
        raise _has_ended(record) or LeaseLostError(
            f"lease {record.lease} cannot be used", why=why
        ) from error


def _has_ended(record: HeldRecord) -> LeaseLostError | None:
    """Return that a lease has ended, and why; None if its holder has written no such thing.

    A holder writes it before it hangs up, so a client that gets no answer finds the reason here.
    """
    found = find_held(record.lease, record.cluster_id)
    if found is None or found.record.pid != record.pid or not found.record.ended:
        return None
    hint = 'take a new one with "gpupool alloc"'
    return LeaseLostError(f"lease {record.lease} has ended", why=found.record.ended, hint=hint)


class _Lines:
    """A connection to a holder's agent: JSON objects, one per line."""

    def __init__(self, stream: trio.SocketStream, record: HeldRecord) -> None:
        self.stream = stream
        self._record = record
        self._lines = LineReader(stream, 16 * LINE_LENGTH_MAX)

    async def ask(self, request: Mapping[str, object]) -> dict[str, object]:
        """Return the answer to a request; skip messages that are pushed meanwhile.

        Raises:
            GpupoolError: the holder answers with an error, or not at all.
        """
        answer: dict[str, object] | None = None
        with trio.move_on_after(60.0 if request["op"] == "session" else ANSWER_TIMEOUT_S):
            try:
                await self.stream.send_all(line_of(request))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise self._gone() from None
            answer = await self.receive()
            while answer is not None and "ok" not in answer:
                answer = await self.receive()
        if answer is None:
            raise self._gone()
        if answer.get("ok") is not True:
            raise error_of(answer)
        return answer

    async def receive(self) -> dict[str, object] | None:
        """Return the next line; None at the end.

        Raises:
            GpupoolError: when it is none of ours.
        """
        try:
            line = await self._lines.next()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        except LineTooLongError:
            raise GpupoolError("the holder sent a line that is too long") from None
        try:
            return None if line is None else object_of(line)
        except ValueError:
            raise GpupoolError("the holder sent nonsense") from None

    async def aclose(self) -> None:
        """Hang up."""
        await trio.aclose_forcefully(self.stream)

    def _gone(self) -> LeaseLostError:
        why = "its holder does not answer"
        return _has_ended(self._record) or LeaseLostError(
            f"lease {self._record.lease} is void", why=why
        )
