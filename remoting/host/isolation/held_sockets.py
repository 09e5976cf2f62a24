"""Sockets of workers, held to the machines that they may speak with by a filter of packets.

A worker without a network has the connection of its client, which belongs to the machine's network.
It can take such a socket off its client (``connect`` with ``AF_UNSPEC``), and connect or listen
with it again. So each connection has a filter of packets (socket(7), ``SO_ATTACH_FILTER``) before a
worker gets it. The filter drops every segment that comes from another address than the client's.
TCP then ignores the answer of another one, or its first segment, so no connection to it is
established. Nobody can take the filter off (``SO_LOCK_FILTER``), and sockets that are accepted
have that of the socket which listens.

Workers that run NCCL make sockets of TCP themselves, for the servers of their lease. A filter of
system calls sees an address as a pointer, behind which the worker can change it after a look
(seccomp_unotify(2)). So it stops ``socket`` alone, whose arguments are numbers, and asks this
process (``SECCOMP_RET_USER_NOTIF``, linux/seccomp.h)::

    worker: socket(AF_INET, ...) ──► kernel ──► serve: makes it, attaches and locks the filter
                 ▲                                 │
                 └── descriptor ◄── SECCOMP_IOCTL_NOTIF_ADDFD
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import sys
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import trio

from gpupool.pool.errors import UsageError

Network = IPv4Network | IPv6Network
Socket = socket.socket | trio.socket.SocketType

VARIABLE = "GPUPOOL_NCCL_NETWORKS"
"""Networks, with commas between, that NCCL between servers may use beside their addresses."""

NETWORK_COUNT_MAX = 256
"""Networks of one filter; the kernel takes 4,096 instructions, and one of IPv6 needs nine."""

SOCKET_PAUSE_S = 0.0005
"""Between two sockets of a worker: code in it must not keep the server busy."""

# linux/filter.h and linux/bpf_common.h: classic BPF over a packet
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE, _AND = 0x20, 0x28, 0x30, 0x54
_JUMP, _IF_EQUAL, _RETURN = 0x05, 0x15, 0x06
_NETWORK_HEADER = 0xFFF0_0000  # SKF_NET_OFF
_INTERFACE = 0xFFFF_F008  # SKF_AD_OFF + SKF_AD_IFINDEX
_IPV4_SOURCE, _IPV6_SOURCE = _NETWORK_HEADER + 12, _NETWORK_HEADER + 8
_DROP, _ACCEPT = 0, 0xFFFF_FFFF
_LOOPBACK = 1  # the number of ``lo``, always; include/net/net_namespace.h
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44  # asm-generic/socket.h

# linux/seccomp.h
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # seccomp_notif with its seccomp_data
_RESPONSE = struct.Struct("=QqiI")  # seccomp_notif_resp
_ADD_DESCRIPTOR = struct.Struct("=QIIII")  # seccomp_notif_addfd
_RECEIVE, _SEND, _ADD = 0xC050_2100, 0xC018_2101, 0x4018_2103
_ADD_AND_ANSWER = 1 << 1  # SECCOMP_ADDFD_FLAG_SEND, Linux 5.14

_INT = 0xFFFF_FFFF
_FAMILIES = (socket.AF_INET, socket.AF_INET6)

Instruction = tuple[int, int, int, int]


def networks(text: str) -> tuple[Network, ...]:
    """Return the networks that ``VARIABLE`` names.

    Raises:
        UsageError: when one is none, or there are too many.
    """
    found: list[Network] = []
    for word in text.replace(",", " ").split():
        try:
            found.append(ip_network(word))
        except ValueError as error:
            raise UsageError(
                f"{VARIABLE} names {word!r}",
                why=str(error),
                hint=f"name networks with commas between, as {VARIABLE}=10.1.0.0/24,fd00:1::/64",
            ) from error
    if len(found) > NETWORK_COUNT_MAX // 2:
        raise UsageError(f"{VARIABLE} names {len(found)} networks", hint="name fewer, wider ones")
    return tuple(found)


def of_addresses(addresses: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks of one address each, of numeric addresses as sockets give them."""
    found: list[Network] = []
    for address in addresses:
        plain = ip_address(address.partition("%")[0])
        # A socket of IPv6 shows IPv4 by such an address; the packets are those of IPv4.
        mapped = plain.ipv4_mapped if isinstance(plain, IPv6Address) else None
        found.append(ip_network(mapped or plain))
    return tuple(found)


def packet_filter(allowed: Sequence[Network], *, own: bool) -> list[Instruction]:
    """Return the program that keeps packets from ``allowed`` machines, and no others.

    Args:
        allowed: networks of theirs.
        own: whether this machine is one of them. Its addresses are known by their way, which is
            ``lo``; but not 127.0.0.0/8 and ::1, on which programs listen that no other machine
            may reach.
    """
    kept = allowed[:NETWORK_COUNT_MAX]
    four = _of_family(kept, IPv4Network("127.0.0.0/8"), _IPV4_SOURCE, own=own)
    six = _of_family(kept, IPv6Network("::1/128"), _IPV6_SOURCE, own=own)
    return [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_AND, 0, 0, 0xF0),
        (_IF_EQUAL, 1, 0, 0x40),
        (_JUMP, 0, 0, len(four)),
        *four,
        *six,
    ]


def _of_family(
    allowed: Sequence[Network], loopback: Network, source: int, *, own: bool
) -> list[Instruction]:
    code: list[Instruction] = []
    for network in allowed:
        if network.version == loopback.version:
            code += _rule(network, source, _ACCEPT)
    if own:
        code += _rule(loopback, source, _DROP)
        code += [(_LOAD_WORD, 0, 0, _INTERFACE), (_IF_EQUAL, 0, 1, _LOOPBACK)]
        code += [(_RETURN, 0, 0, _ACCEPT)]
    return [*code, (_RETURN, 0, 0, _DROP)]


def _rule(network: Network, source: int, action: int) -> list[Instruction]:
    """Return what ends the program with ``action`` for a packet from ``network``."""
    size = network.max_prefixlen // 8
    code: list[Instruction] = [(_RETURN, 0, 0, action)]
    for at in reversed(range(0, size, 4)):
        mask = int.from_bytes(network.netmask.packed[at : at + 4], "big")
        value = int.from_bytes(network.network_address.packed[at : at + 4], "big")
        if mask:
            test: list[Instruction] = [(_LOAD_WORD, 0, 0, source + at), (_AND, 0, 0, mask)]
            code = [*test, (_IF_EQUAL, 0, len(code), value), *code]
    return code


def make(family: int, kind: int, protocol: int, allowed: Sequence[Network]) -> socket.socket:
    """Return a socket of TCP that is held to ``allowed`` for good.

    Args:
        family: as of ``socket``.
        kind: likewise; ``SOCK_NONBLOCK`` may be in it.
        protocol: likewise.
        allowed: the machines of the lease.

    Raises:
        OSError: when there is no such socket, or it cannot be held.
    """
    flags = kind & (socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    if family not in _FAMILIES or kind & ~flags != socket.SOCK_STREAM:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    if protocol not in (0, socket.IPPROTO_TCP):
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))
    made = socket.socket(family, socket.SOCK_STREAM | flags, protocol)
    try:
        _attach(made, packet_filter(allowed, own=True))
    except BaseException:
        made.close()
        raise
    return made


def hold(connection: Socket) -> None:
    """Hold a connection of TCP to its other end, for good.

    Raises:
        OSError: when there is none any more.
    """
    if sys.platform == "linux" and connection.family in _FAMILIES:
        address, port = connection.getpeername()[:2]
        one_port = [
            (_LOAD_HALF, 0, 0, 0),  # the header of TCP begins with the port of who sent it
            (_IF_EQUAL, 1, 0, port),
            (_RETURN, 0, 0, _DROP),
        ]
        _attach(connection, [*one_port, *packet_filter(of_addresses([address]), own=False)])


def _attach(sock: Socket, program: Sequence[Instruction]) -> None:
    code = b"".join(struct.pack("=HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    where = struct.pack("=H6xQ", len(program), ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, where)
    sock.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


async def serve(listener: int, allowed: Sequence[Network]) -> None:
    """Make the sockets for which a worker asks, until it has ended.

    Args:
        listener: of the worker's filter of system calls; stays the caller's.
        allowed: the machines of its lease.
    """
    while True:
        await trio.lowlevel.wait_readable(listener)
        if not _has_question(listener):
            return
        answer(listener, allowed)
        await trio.sleep(SOCKET_PAUSE_S)


def _has_question(listener: int) -> bool:
    """Return whether a call waits; the kernel says that nobody is left by a hang-up."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def answer(listener: int, allowed: Sequence[Network]) -> None:
    """Answer one call of a worker, which waits for it."""
    question = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, question)
    except OSError:
        return  # The thread has ended, or a signal came.
    name, _pid, _flags, _number, _architecture, _at, family, kind, protocol, *_ = (
        _NOTIFICATION.unpack(question)
    )
    try:
        # The kernel takes them as numbers of 32 bits.
        with make(family & _INT, kind & _INT, protocol & _INT, allowed) as made:
            cloexec = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
            add = _ADD_DESCRIPTOR.pack(name, _ADD_AND_ANSWER, made.fileno(), 0, cloexec)
            fcntl.ioctl(listener, _ADD, add)
    except OSError as error:
        refusal = _RESPONSE.pack(name, 0, -(error.errno or errno.EACCES), 0)
        with contextlib.suppress(OSError):  # It does not wait any more.
            fcntl.ioctl(listener, _SEND, refusal)
