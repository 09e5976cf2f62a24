"""Serves the page on a socket of the loopback, by Hypercorn on trio."""

import logging
import socket

import trio
from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType]

from gpupool.monitoring.web.page_app import Guarded

HEADERS_MAX = 16 * 1024
KEEP_ALIVE_S = 75.0
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
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; ``listener`` is Hypercorn's from now on."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None
    config.errorlog = LOG
    config.include_server_header = False
    config.h11_max_incomplete_size = HEADERS_MAX
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.graceful_timeout = 0.2
    config.shutdown_timeout = 0.5
    config.websocket_max_message_size = 0
    await serve(
        app,  # pyright: ignore[reportArgumentType]  its types are asyncio's
        config,
        shutdown_trigger=trio.sleep_forever,
        task_status=task_status,
        mode="asgi",
    )
