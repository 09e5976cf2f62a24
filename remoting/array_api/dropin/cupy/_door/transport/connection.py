"""The connection to one worker, and the one reason for which its session ended.

A session ends once. `Connection.failure` is then set and never changes again; every later use of
the session raises it. All other parts of a session read it here and report a loss here.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from cupy._door.cuda_errors import ConnectionLostError
from cupy._door.errors import visible
from cupy._door.transport.link import Agent, Link

DEVICES_UNAVAILABLE = 46
"""The status of a session that is lost, and of copies from and to one: CUDA's own."""
WORKER_ENDED = "the GPU server closed the connection: its worker ended"


class Connection:
    """The socket to the worker, the agent of this machine, and the state of the session."""

    def __init__(self, link: Link, agent: Agent | None) -> None:
        self.link = link
        self.agent = agent
        self.failure: BaseException | None = None  # set once; ends the session
        #: An item wakes the thread that flushes: records wait, or the session has ended. A signal
        #: breaks no such queue, as it may break an Event, whose lock it can leave held.
        self.wakes: SimpleQueue[None] = SimpleQueue()

    def lose(self, reason: str) -> BaseException:
        """End the session for a reason; return the exception that its use raises from now on."""
        if self.failure is None:
            lost = f"{visible(reason)}; the arrays of this session are gone"
            self.end(ConnectionLostError(DEVICES_UNAVAILABLE, lost))
            self.wakes.put(None)
        assert self.failure is not None
        return self.failure

    def end(self, failure: BaseException) -> None:
        """End the session with ``failure``, and the stream with it.

        The socket stays open until ``close``: another thread may be reading from it, and a new
        file must not get its number meanwhile.
        """
        self.failure = failure
        self.link.shut_down()

    def close(self, failure: BaseException) -> None:
        """Close the socket, and end the session with ``failure`` if it has not ended before."""
        self.failure = self.failure or failure
        self.link.close()

    def cut_off(self, reason: str) -> BaseException:
        """End the session after the loss of its socket, and all others if the lease is lost."""
        if self.failure is None and self.agent is not None and self.agent.check():
            return self._lose_lease()
        return self.lose(reason)

    def or_lost(self, error: BaseException) -> BaseException:
        """Return the loss of the lease in place of an error that follows from it.

        When a server is lost, the workers of the other servers may notice it before this process.
        """
        if getattr(error, "status", None) == DEVICES_UNAVAILABLE:
            if self.failure is None and self.agent is not None and self.agent.check():
                return self._lose_lease()
            return self.failure or error
        return error

    def hear_agent(self) -> None:
        """Read the agent's notices without waiting; raise if the lease is lost."""
        assert self.agent is not None
        if self.agent.hear():
            raise self._lose_lease()

    def agent_is_in(self, ready: set[int]) -> bool:
        """Say whether the agent's socket is among the descriptors that are ready."""
        return self.agent is not None and self.agent.socket.fileno() in ready

    def _lose_lease(self) -> BaseException:
        """End the sessions with all servers, because a lease is lost as a whole."""
        assert self.agent is not None
        reason = self.agent.lost
        sessions: list[Any] = self.agent.sessions
        for session in sessions:
            session.lose(reason)
        return self.lose(reason)
