"""Receives bytes and file descriptors from a Unix socket (SCM_RIGHTS); a host and its worker do."""

import array
import os
import socket
from collections.abc import Sequence

import trio

#: Descriptors that one read takes; the host sends one with a message.
DESCRIPTOR_COUNT_MAX = 8

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def receive_with_descriptors(
    sock: socket.socket, size: int, count: int, flags: int = 0
) -> tuple[bytes, list[int]]:
    """Receive bytes and the descriptors that come with them, none of them inheritable.

    ``socket.recv_fds`` ignores its flags in Python 3.11.
    """
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(count * descriptors.itemsize)
    data, ancillary, _flags, _address = sock.recvmsg(size, space, flags | _CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, list(descriptors)


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
    """Return the next packet, as ``receive_with_descriptors`` does; no bytes at the end."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            return receive_with_descriptors(sock, size, count)
        except BlockingIOError:
            continue
