"""``--wait`` covers servers that are being restarted; without it, they are an error."""

import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from tests.cli.conftest import LivePool
from tests.remoting.control.control_kit import SeededRng, make_authority

from gpupool.pool.errors import AuthenticationError, GpupoolError, UnreachableError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.protocol.addresses import Address


async def refusal(error: GpupoolError, patience_s: float) -> tuple[float, str, list[str]]:
    """Return the time until a client gives up, its error, and its messages."""
    told: list[str] = []

    async def dial(*_arguments: Any, **_words: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise error

    pem = make_authority().certificate_pem.decode()
    addresses = (Address("10.0.0.1"), Address("10.0.0.2"))
    credentials = Credentials("c", "lab", "ada", TokenId("0" * 12), bytes(32), pem, addresses)
    began = trio.current_time()
    with pytest.raises(type(error)) as caught:
        async with connect_pool(
            credentials, dial=dial, rng=SeededRng(), patience_s=patience_s, on_wait=told.append
        ):
            raise AssertionError("there is no pool")
    return trio.current_time() - began, str(caught.value), told


async def test_a_client_waits_for_servers_as_long_as_it_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gone = UnreachableError("cannot reach the pool", why="connection refused")
    took_s, text, told = await refusal(gone, 0.0)
    assert took_s < 1
    assert "connection refused" in text
    assert told == []
    took_s, text, told = await refusal(gone, 30.0)
    assert 30 <= took_s < 31
    assert "connection refused" in text
    where = "tried 10.0.0.1:7470, 10.0.0.2:7470"
    assert told == [f"waiting for a server of the pool to answer: connection refused; {where}"]


async def test_no_wait_helps_a_client_that_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    took_s, _, told = await refusal(AuthenticationError("the token is refused"), 30.0)
    assert took_s < 1
    assert told == []


@pytest.mark.long
def test_run_and_alloc_wait_for_a_server_that_is_restarted() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-waiting-"))
    pool = LivePool(folder)
    server = pool.servers["a"]
    try:
        server.start("--pool-name", "lab")
        server.wait_for_log("is listening")
        assert server.end(signal.SIGTERM) == 0
        failed = pool.run("run", "-p", "0.1", "--", "true")
        assert failed.returncode == 125
        assert "connection refused" in failed.stderr
        began = time.monotonic()
        late = pool.run("run", "--wait", "2s", "-p", "0.1", "--", "true")
        assert time.monotonic() - began >= 2
        assert late.returncode == 125
        assert "connection refused" in late.stderr
        waiting = pool.spawn("run", "--wait", "60s", "-p", "0.1", "--", "echo", "ran")
        held = pool.spawn("alloc", "--wait", "60s", "-p", "0.1", "--json")
        assert waiting.stderr is not None
        line = waiting.stderr.readline()
        assert "waiting for a server of the pool to answer: connection refused" in line
        server.start()
        assert waiting.wait(60) == 0
        assert waiting.stdout is not None
        assert waiting.stdout.read() == "ran\n"
        assert held.wait(60) == 0
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)
