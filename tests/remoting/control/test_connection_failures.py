"""How a connection fails is said in words."""

import socket

import pytest
import trio

from gpupool.remoting.transport.connections import explain


async def test_nobody_listens_is_connection_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="all attempts to connect") as caught:
        await trio.open_tcp_stream("127.0.0.1", port)
    assert explain(caught.value) == "connection refused"
    with pytest.raises(OSError, match="all attempts to connect") as caught:
        await trio.open_tcp_stream("localhost", port)
    assert explain(caught.value) == "connection refused"
