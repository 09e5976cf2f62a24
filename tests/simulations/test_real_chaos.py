"""Chaos on real processes, and the proxy that stands between them."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from tests.simulations.chaos.fault_proxy import FaultProxy, inode_of_connection
from tests.simulations.chaos.left_behind import Instants
from tests.simulations.chaos.real_chaos import Chaos
from tests.simulations.chaos.wrong_clocks import WrongClocks


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def test_proxy_cuts_holds_back_and_resets(nursery: trio.Nursery) -> None:
    listeners = await nursery.start(trio.serve_tcp, echo, 0)
    port = listeners[0].socket.getsockname()[1]
    me = os.getpid()
    proxy = FaultProxy(lambda pid: "me" if pid == me else None)
    front = await nursery.start(proxy.serve, "server", lambda: port)
    async with await trio.open_tcp_stream("127.0.0.1", front) as stream:
        await stream.send_all(b"1")
        assert await stream.receive_some(10) == b"1"
        proxy.cut("me", "server")
        await stream.send_all(b"2")
        with trio.move_on_after(0.1) as waited:
            await stream.receive_some(10)
        assert waited.cancelled_caught, "nothing gets through"
        proxy.mend(("me", "server"))
        assert await stream.receive_some(10) == b"2"
        proxy.reset("me", "server")
        with trio.fail_after(2):
            with contextlib.suppress(trio.BrokenResourceError):
                assert await stream.receive_some(10) == b""
    nursery.cancel_scope.cancel()


async def test_proxy_holds_new_connections_back(nursery: trio.Nursery) -> None:
    listeners = await nursery.start(trio.serve_tcp, echo, 0)
    port = listeners[0].socket.getsockname()[1]
    proxy = FaultProxy(lambda _pid: "me")
    front = await nursery.start(proxy.serve, "server", lambda: port)
    proxy.cut("server", "me")
    async with await trio.open_tcp_stream("127.0.0.1", front) as stream:
        await stream.send_all(b"1")
        with trio.move_on_after(0.1) as waited:
            await stream.receive_some(10)
        assert waited.cancelled_caught
        proxy.mend()
        assert await stream.receive_some(10) == b"1"
    nursery.cancel_scope.cancel()


async def test_proxy_looks_again_for_a_client_that_it_missed(nursery: trio.Nursery) -> None:
    """On a busy machine a client was taken for a stranger, and nothing was cut off from it."""
    listeners = await nursery.start(trio.serve_tcp, echo, 0)
    port = listeners[0].socket.getsockname()[1]
    names = iter([None, "me"])
    proxy = FaultProxy(lambda _pid: next(names, None))
    proxy.cut("me", "server")
    front = await nursery.start(proxy.serve, "server", lambda: port)
    async with await trio.open_tcp_stream("127.0.0.1", front) as stream:
        await stream.send_all(b"1")
        with trio.move_on_after(0.1) as waited:
            await stream.receive_some(10)
        assert waited.cancelled_caught
    nursery.cancel_scope.cancel()


def test_an_ended_connection_from_the_same_port_is_not_taken_for_the_client() -> None:
    """The kernel gives a port again while an older connection from it waits as TIME_WAIT."""
    rest = "00000000:00000000 03:00001000 00000000"
    table = "\n".join(
        [
            "  sl  local_address rem_address st",
            f" 0: 0100007F:9C40 0100007F:1D2E 06 {rest} 0 0 0 3 0000",
            f" 1: 0100007F:9C40 0100007F:1F90 01 {rest} 0 0 4711 1 0000",
            f" 2: 0100007F:1F90 0100007F:9C40 01 {rest} 0 0 4712 1 0000",
        ]
    )
    assert inode_of_connection(table, 0x9C40, 0x1F90) == "4711"
    assert inode_of_connection(table, 0x9C40, 0x1D2E) == ""


def test_an_entry_lies_between_the_grants_around_it_whatever_the_pools_clock_says() -> None:
    rows = [(10, 1.0, 2.0), (20, 4.0, 9.0), (30, 5.0, 6.0)]
    lines = [{"event": "granted", "lease": n, "called_at": c, "at": a} for n, c, a in rows]
    instants = Instants([*lines, {"event": "over", "lease": 10, "called_at": 7.0, "at": 7.0}])
    assert instants.around(5, -1.0, 99.0) == (-1.0, 2.0)
    assert instants.around(10, -1.0, 99.0) == (1.0, 2.0)
    assert instants.around(15, -1.0, 99.0) == (1.0, 6.0)
    assert instants.around(20, -1.0, 99.0) == (4.0, 6.0)
    assert instants.around(31, -1.0, 99.0) == (5.0, 99.0)


def test_a_process_has_the_wrong_clock_that_is_set_and_another_one_the_right(
    tmp_path: Path,
) -> None:
    clocks = WrongClocks(tmp_path)
    clocks.set("a", -3 * 86_400.0)
    ahead_s: dict[str, float] = {}
    for name in ("a", "b"):
        env = os.environ | clocks.environment(name)
        argv = [sys.executable, "-c", "import time; print(time.time())"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        ahead_s[name] = float(done.stdout) - time.time()
    assert abs(ahead_s["a"] + 3 * 86_400.0) < 60.0
    assert abs(ahead_s["b"]) < 60.0


@pytest.mark.slow
async def test_real_processes_keep_the_rules() -> None:
    chaos = Chaos(5, servers=3, clients=3, duration_s=20.0, say=lambda _text: None)
    report = await chaos.run()
    assert report.failures == []
    assert report.granted > 5
    assert {"SuspendLease", "ResumeLease"} <= set(report.orders)
