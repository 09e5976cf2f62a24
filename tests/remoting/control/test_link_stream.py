"""Connections between servers that write at once: order, back-pressure, ends, over real TLS."""

import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.remoting.control.control_kit import make_authority, make_identity, until

from gpupool.pool.model.ids import ServerId
from gpupool.remoting.transport.link_stream import NOW_SIZE_MAX, LinkStream
from gpupool.remoting.transport.peer_dial import proven_peer
from gpupool.remoting.transport.pki import peer_client_context, peer_server_context, server_name

A, B = ServerId("aaaaaaaaaaaa"), ServerId("bbbbbbbbbbbb")


async def tcp_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection with small buffers."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    far = await listener.accept()
    await listener.aclose()
    for each in (near, far):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    return near, far


@asynccontextmanager
async def linked(folder: Path) -> AsyncGenerator[tuple[LinkStream, LinkStream]]:
    """Give both ends of a link, the first of which has dialled."""
    authority = make_authority()
    near_tcp, far_tcp = await tcp_pair()
    dialling = peer_client_context(make_identity(folder / "a", authority, A))
    serving = peer_server_context(make_identity(folder / "b", authority, B))
    near = LinkStream.dialled(near_tcp, dialling, server_name(B))
    far = LinkStream.accepted(far_tcp, serving)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.do_handshake)
        nursery.start_soon(far.do_handshake)
    try:
        yield near, far
    finally:
        for each in (near, far):
            await trio.aclose_forcefully(each)


async def read(stream: LinkStream, size: int) -> bytes:
    data = b""
    with trio.fail_after(20):
        while len(data) < size and (part := await stream.receive_some()):
            data += part
    return data


async def test_both_ends_are_proven_and_a_write_has_left_when_it_returns(tmp_path: Path) -> None:
    async with linked(tmp_path) as (near, far):
        assert (proven_peer(near), proven_peer(far)) == (B, A)
        for one, other in ((near, far), (far, near)):
            assert one.send_now(b"at once")
            assert not one.has_rest
            assert await read(other, 7) == b"at once"
            await one.send_all(b"and later")
            assert await read(other, 9) == b"and later"


async def test_all_that_was_taken_arrives_once_and_in_order(tmp_path: Path) -> None:
    """While the other end reads nothing, data that does not fit is kept, or not taken."""
    rng = random.Random(1)
    sent = bytearray()
    async with linked(tmp_path) as (near, far):
        for _ in range(10):
            data = rng.randbytes(rng.choice((1, 100, 5_000, 40_000)))
            while near.send_now(data):
                sent += data
                data = rng.randbytes(rng.choice((1, 100, 5_000, 40_000)))
            assert near.has_rest
            assert not near.send_now(b"x"), "it would overtake the rest"
            data = rng.randbytes(300_000)  # more than the kernel takes meanwhile
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.send_all, data)
                await trio.testing.wait_all_tasks_blocked()
                assert not near.send_now(b"x"), "a task is writing"
                with pytest.raises(trio.BusyResourceError):
                    await near.send_all(b"x")
                sent += data
                assert await read(far, len(sent)) == sent
            assert not near.has_rest
            sent.clear()


async def test_a_long_write_is_left_to_a_task(tmp_path: Path) -> None:
    async with linked(tmp_path) as (near, _far):
        assert not near.send_now(bytes(NOW_SIZE_MAX + 1))
        assert near.send_now(bytes(10))


async def test_the_other_end_closes(tmp_path: Path) -> None:
    async with linked(tmp_path) as (near, far):
        assert far.send_now(b"the last")
        await trio.aclose_forcefully(far)
        assert await read(near, 8) == b"the last"
        assert await near.receive_some() == b""

        def is_refused() -> bool:
            return not near.send_now(b"nobody reads it")

        await until(is_refused, within_s=5)
        assert not near.send_now(b"x"), "it stays broken"
        with pytest.raises(trio.BrokenResourceError):
            await near.send_all(b"x")


async def test_this_end_is_closed_while_a_task_reads(tmp_path: Path) -> None:
    async with linked(tmp_path) as (near, _far):

        async def reads() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await near.receive_some()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads)
            await trio.testing.wait_all_tasks_blocked()
            await trio.aclose_forcefully(near)
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some()
        assert not near.send_now(b"x")
        with pytest.raises(trio.BrokenResourceError):
            await near.send_all(b"x")


async def test_a_cancelled_write_breaks_the_connection(tmp_path: Path) -> None:
    """A part of a record may have gone, so nothing can follow it."""
    async with linked(tmp_path) as (near, _far):
        with trio.move_on_after(0.05) as scope:
            await near.send_all(bytes(3_000_000))
        assert scope.cancelled_caught
        assert not near.send_now(b"x")
        with pytest.raises(trio.BrokenResourceError):
            await near.send_all(b"x")


async def test_noise_in_the_connection_breaks_it(tmp_path: Path) -> None:
    async with linked(tmp_path) as (near, far):
        await far.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some()


async def test_a_server_of_another_pool_is_refused(tmp_path: Path) -> None:
    near_tcp, far_tcp = await tcp_pair()
    dialling = peer_client_context(make_identity(tmp_path / "a", make_authority(), A))
    serving = peer_server_context(make_identity(tmp_path / "b", make_authority(), B))
    near = LinkStream.dialled(near_tcp, dialling, server_name(B))
    far = LinkStream.accepted(far_tcp, serving)
    failures: list[str] = []

    async def shake(stream: LinkStream) -> None:
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            failures.append(type(error.__cause__).__name__)
        await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shake, near)
        nursery.start_soon(shake, far)
    assert "SSLCertVerificationError" in failures
