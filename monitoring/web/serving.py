"""Serves the page on a socket of the loopback, as a server's exporter does to the network."""

import logging
import socket

import trio

from gpupool.monitoring.http.http_connection import serve_http
from gpupool.monitoring.web.page_app import Guarded

CONNECTIONS_MAX = 256
"""Of all browsers of this machine, each of which has six at most."""

LOG = logging.getLogger("gpupool.web")


def loopback_socket(port: int) -> socket.socket:
    """Return a listening socket on the loopback; port 0 takes a free one.

    Raises:
        OSError: when the port is in use.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(100)
    except OSError:
        made.close()
        raise
    return made


async def serve_page(
    app: Guarded,
    listener: socket.socket,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; ``listener`` is closed then."""
    open_count = 0

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal open_count
        if open_count == CONNECTIONS_MAX:
            return
        open_count += 1
        try:
            await serve_http(stream, app, client="127.0.0.1", number=0)
        except Exception:
            LOG.exception("a request could not be answered")
        finally:
            open_count -= 1

    listening = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    await trio.serve_listeners(answer, [listening], task_status=task_status)
