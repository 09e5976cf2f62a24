"""Logs in the creator of a pool: writes the credentials file of the user that started the server.

A server that gives up root's privileges cannot write there any more. So it forks off a process that
can before it does, and that takes one login, writes it to the one place that was given before, and
ends.
"""

import json
import os
import socket
from collections.abc import Callable

from gpupool.pool.errors import GpupoolError, StorageError
from gpupool.remoting.client.credentials import (
    FILE_SIZE_MAX,
    Credentials,
    credentials_path,
    from_text,
    to_text,
)
from gpupool.remoting.local.logins import file_beside, first_login, store_login
from gpupool.remoting.privileges.forked import ForkedProcess, fork

SaveLogin = Callable[[Credentials], str]
"""Writes a login; returns a sentence with its place, and the fate of a former login."""


def save_login(credentials: Credentials) -> str:
    """Write a login where this process's environment says; one to another pool stays in use.

    Raises:
        StorageError: when it cannot be written.
    """
    wanted = credentials_path(os.environ)
    path = file_beside(credentials, wanted)
    kept = store_login(credentials, path)
    who = f"You ({credentials.user}) are logged in as its operator."
    if path != wanted:
        how = f"--credentials {path}"
        if wanted == first_login():
            how = f"gpupool use {path.stem}"
        return f"{who} Your login to another pool stays in use; for this one: {how}"
    if kept is not None:
        return f"{who} Your former login was kept as {kept}."
    return who


class LoginWriter(ForkedProcess):
    """The server's side of the process that writes one login."""

    def __init__(self) -> None:
        """Fork it off."""
        super().__init__(*fork(socket.SOCK_STREAM, _serve))

    def save(self, credentials: Credentials) -> str:
        """Write a login, once; return the sentence of ``save_login``.

        Raises:
            StorageError: when it cannot be written.
        """
        try:
            self._socket.sendall(to_text(credentials).encode())
            self._socket.shutdown(socket.SHUT_WR)
            answer = json.loads(_read_all(self._socket) or b"[]")
        except OSError as error:
            raise StorageError("the login cannot be written", why=str(error)) from error
        finally:
            self.end()
        if len(answer) != 1:
            what, why = answer or ("the login cannot be written", "")
            raise StorageError(what, why=why)
        return str(answer[0])


def _serve(sock: socket.socket) -> None:
    data = _read_all(sock)
    if not data:
        return  # It was not needed.
    try:
        answer = [save_login(from_text(data))]
    except (ValueError, GpupoolError) as error:
        said = error if isinstance(error, GpupoolError) else None
        answer = [said.what if said else "the login makes no sense", said.why if said else ""]
    sock.sendall(json.dumps(answer).encode())
    sock.close()


def _read_all(sock: socket.socket) -> bytes:
    data = b""
    while len(data) <= FILE_SIZE_MAX and (more := sock.recv(65536)):
        data += more
    return data
