"""Hears that the lease goes to another server, and brings this process's session along.

A thread has a connection of its own to ``gpupool run``, because calls of the program read the other
one without waiting. It waits there, and costs the program nothing. ``moving`` does the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import Any

from cupy._door.errors import DoorError, visible
from cupy._door.session import Session
from cupy._door.transport.link import ENDED, AgentLines

CONNECT_S = 10.0

_sockets: list[socket.socket] = []
"""Of this process; a forked one closes them, so that the agent hears of the end of its parent."""


def start(session: Session) -> None:
    """Follow the lease with the only session of a process, where its worker can be left."""
    path = os.environ.get("GPUPOOL_AGENT")
    if not path or session.offer is None or "peer.prepare" not in session.operations:
        return
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(CONNECT_S)
    try:
        connection.connect(path)
    except OSError:
        connection.close()  # the session works without it, and stays where it is
        return
    connection.settimeout(None)
    _sockets.append(connection)
    name = "gpupool-following"
    threading.Thread(target=_follow, args=(session, connection), name=name, daemon=True).start()


def after_fork() -> None:
    """Close the parent's connections."""
    for connection in _sockets:
        connection.close()
    _sockets.clear()


def _follow(session: Session, connection: socket.socket) -> None:
    """Wait for orders until the agent, or the session, is gone."""
    with contextlib.suppress(OSError, ValueError, DoorError), connection:
        agent = _Agent(connection)
        if session.offer is None or not agent.ask(op="follow", session=session.offer["session"]):
            return  # an older `gpupool run`
        while session.failure is None:
            line = agent.order()
            if line.get("op") == "move":
                agent.ask(op="moved", stays=_go(session, line["offer"], agent))


def _go(session: Session, offer: dict[str, Any], agent: _Agent) -> str:
    """Go on with the worker of an offer; return why not, empty when that is done."""
    from cupy._door import moving

    def commit() -> None:
        answer = agent.ask(op="go-on")
        if answer is None or answer.get("stays"):
            raise DoorError(visible((answer or {}).get("stays", "gpupool run does not answer")))

    try:
        moving.go_on(session, offer, commit)
    except moving.MoveRefusedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the session did not go
        return f"{type(error).__name__}: {visible(error)}"
    return ""


class _Agent(AgentLines):
    """Questions to ``gpupool run``, one at a time, and its orders."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._orders: list[dict[str, Any]] = []

    def ask(self, **fields: str) -> dict[str, Any] | None:
        """Return the answer to a question; None when it is refused."""
        self.socket.sendall(json.dumps(fields).encode() + b"\n")
        while "ok" not in (line := self._message()):
            self._orders.append(line)
        return line if line["ok"] else None

    def order(self) -> dict[str, Any]:
        """Wait for the next message that the agent sends by itself."""
        return self._orders.pop(0) if self._orders else self._message()

    def _message(self) -> dict[str, Any]:
        found = self.line()
        if found is None or found.get("op") == "lost":
            raise DoorError(ENDED)
        return found
