"""Clients as separate processes: stopped, killed, and their kernel's timeouts on a socket."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from tests.remoting.control.control_kit import until
from tests.remoting.control.test_control_trust import Lab, start_lab

from gpupool.remoting.client.credentials import save_credentials
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.transport.connections import tune

AT_ONCE_S = 5.0
"""Half of the limit for silent clients: the kernel says it at once, on a busy machine too."""

CLIENT = """
import sys, trio
from pathlib import Path
from gpupool.pool.model.state import Request
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.client.credentials import load_credentials

async def main():
    async with connect_pool(load_credentials(Path(sys.argv[1]))) as pool:
        hold = await pool.allocate(Request(pool.new_request_id(), 1, 0.5), wait_s=0)
        print(hold.lease, flush=True)
        print(await hold.wait_lost(), flush=True)

trio.run(main)
"""


@asynccontextmanager
async def client_process(lab: Lab, folder: Path) -> AsyncGenerator["subprocess.Popen[str]", None]:
    path = folder / "credentials.json"
    save_credentials(path, lab.credentials())
    process = subprocess.Popen(  # noqa: ASYNC220 - starting one takes no time
        [sys.executable, "-c", CLIENT, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = await trio.to_thread.run_sync(process.stdout.readline)
        assert json.loads(line) in lab.state.leases
        yield process
    finally:
        process.kill()
        await trio.to_thread.run_sync(process.wait)
        assert process.stdout is not None
        process.stdout.close()


async def test_a_killed_client_is_gone_at_once(tmp_path: Path) -> None:
    async with start_lab(tmp_path) as lab, client_process(lab, tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        with trio.fail_after(AT_ONCE_S):
            await until(lambda: not lab.state.leases)


@pytest.mark.slow
async def test_a_stopped_client_keeps_its_lease(tmp_path: Path) -> None:
    """Its kernel goes on answering ours, however long the program is stopped with Ctrl-Z."""
    settings = ServerSettings(client_timeout_s=2.0)
    async with start_lab(tmp_path, 1, settings) as lab, client_process(lab, tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        await trio.sleep(7)
        assert lab.state.leases
        os.kill(process.pid, signal.SIGCONT)
        await trio.sleep(0.5)
        assert lab.state.leases
        os.kill(process.pid, signal.SIGKILL)
        with trio.fail_after(AT_ONCE_S):
            await until(lambda: not lab.state.leases)


@pytest.mark.parametrize("timeout_s", [1.0, 5.0, 10.0, 60.0])
def test_the_kernel_is_told_to_notice_in_time(timeout_s: float) -> None:
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("needs Linux")
    with socket.socket() as sock:
        tune(sock, timeout_s=timeout_s)

        def option(name: str) -> int:
            return sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option("TCP_NODELAY")
        limit_ms = option("TCP_USER_TIMEOUT")
        idle_s, interval_s = option("TCP_KEEPIDLE"), option("TCP_KEEPINTVL")
    # tcp(7): with TCP_USER_TIMEOUT the connection ends at the first probe after that time.
    ends_at = float(idle_s)
    while ends_at * 1000 < limit_ms:
        ends_at += interval_s
    assert ends_at <= max(timeout_s, 2.0)
    assert limit_ms <= timeout_s * 1000
