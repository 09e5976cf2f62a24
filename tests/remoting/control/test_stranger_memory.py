"""Connections that have ended have no TLS left, without the garbage collector's help.

The collector looks at old objects rarely, so a flood of strangers would fill the memory meanwhile.
"""

import gc
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from tests.remoting.control.control_cluster import FakeReplicatedLog, server_id
from tests.remoting.control.control_kit import until
from tests.remoting.control.test_control_trust import (
    DEADLINE_S,
    QUICK,
    first_flight,
    refusal_of,
    start_lab,
)

from gpupool.remoting.transport.client_tls import first_contact_context

COUNT = 4


def tls_of_servers() -> int:
    """Return how many TLS connections there are of which this process is the server."""
    found = [each for each in gc.get_objects() if isinstance(each, ssl.SSLObject)]
    return sum(each.server_side for each in found)


def ends_of_servers() -> int:
    """Return that, and the tasks but those of the fake log, which end when they have committed."""
    tasks = [each for each in gc.get_objects() if isinstance(each, trio.lowlevel.Task)]
    return tls_of_servers() + sum(FakeReplicatedLog.__name__ not in each.name for each in tasks)


@contextmanager
def nothing_collected() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def say_nothing_more(_tls: "trio.SSLStream[trio.SocketStream]") -> None:
    """Leave it to the server to end."""


async def hang_up(tls: "trio.SSLStream[trio.SocketStream]") -> None:
    await trio.aclose_forcefully(tls)


async def talk_nonsense(tls: "trio.SSLStream[trio.SocketStream]") -> None:
    await tls.send_all(b"\xff" * 64)


async def say_half_of_it(tls: "trio.SSLStream[trio.SocketStream]") -> None:
    await tls.send_all(b"\0\0")


@pytest.mark.parametrize("go_on", [say_nothing_more, hang_up, talk_nonsense, say_half_of_it])
async def test_one_without_a_token_leaves_no_tls_behind(
    tmp_path: Path, go_on: Callable[["trio.SSLStream[trio.SocketStream]"], Awaitable[None]]
) -> None:
    """The exception of the time limit kept the TLS alive: 37 KiB for each stranger."""
    async with start_lab(tmp_path, 1, QUICK) as lab:
        with nothing_collected():
            before = ends_of_servers()
            for _ in range(COUNT):
                tls = await lab.tls(first_contact_context(), "control.gpupool")
                await tls.do_handshake()
                await go_on(tls)
            with trio.fail_after(DEADLINE_S):
                await until(lambda: ends_of_servers() == before)


@pytest.mark.parametrize("name", ["control.gpupool", "{}.server.gpupool"])
async def test_one_that_goes_on_with_half_a_handshake_leaves_no_tls_behind(
    tmp_path: Path, name: str
) -> None:
    async with start_lab(tmp_path, 1, QUICK) as lab:
        name = name.format(server_id(1))
        with nothing_collected():
            before = ends_of_servers()
            for _ in range(COUNT):
                stream = await lab.tcp()
                await stream.send_all(first_flight(name))
                assert await stream.receive_some()
                await stream.send_all(b"\x17\3\3")  # of the record that ends the handshake
            with trio.fail_after(DEADLINE_S):
                await until(lambda: ends_of_servers() == before)


async def test_one_that_goes_for_another_leaves_no_tls_behind(tmp_path: Path) -> None:
    """Strangers have TLS a bounded number of times, and lose it after the handshake, too."""
    settings = replace(QUICK, unauthenticated_timeout_s=DEADLINE_S, unauthenticated_tls_count_max=1)
    async with start_lab(tmp_path, 1, settings) as lab:
        with nothing_collected():
            before = ends_of_servers()
            for _ in range(COUNT):
                tls = await lab.tls(first_contact_context(), "control.gpupool")
                await tls.do_handshake()
            with trio.fail_after(DEADLINE_S):
                await until(lambda: ends_of_servers() == before + 2)


async def test_one_with_a_wrong_token_leaves_no_tls_behind(tmp_path: Path) -> None:
    async with start_lab(tmp_path, 1, QUICK) as lab:
        wrong = replace(lab.credentials(), secret=bytes(32))
        with nothing_collected():
            before = tls_of_servers()
            for _ in range(COUNT):
                await refusal_of(wrong)
            with trio.fail_after(DEADLINE_S):
                await until(lambda: tls_of_servers() == before)
