"""Receives bytes and file descriptors from a Unix socket (SCM_RIGHTS); a host and its worker do."""

import array
import os
import socket

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
