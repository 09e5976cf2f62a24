"""Packets with descriptors over a socket that does not block, under trio."""

import socket
from collections.abc import Sequence

import trio

from gpupool.remoting.transport.descriptor_passing import receive_with_descriptors


async def send_packet(sock: socket.socket, packet: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one packet, however slow the other end is; the descriptors stay the caller's."""
    while True:
        try:
            socket.send_fds(sock, [packet], descriptors)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
        else:
            return


async def receive_packet(sock: socket.socket, size: int, count: int) -> tuple[bytes, list[int]]:
    """Return what comes next, as ``receive_with_descriptors`` does; no bytes at the end."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return receive_with_descriptors(sock, size, count)
        except BlockingIOError:
            continue
