"""Sockets of workers, held to the machines that they may speak with by a filter of packets.

A worker without a network has the connection of its client, which belongs to the machine's network.
It can take such a socket off its client (``connect`` with ``AF_UNSPEC``), and connect or listen
with it again. So each connection has a filter of packets before a worker gets it (socket(7),
``SO_ATTACH_BPF``). The filter drops every segment with SYN. No connection begins without one, so
neither the answer of another machine nor the first segment of one ever arrives. Nobody can take the
filter off (``SO_LOCK_FILTER``).

Workers that run NCCL make sockets of TCP themselves, for the servers of their lease. A filter of
system calls sees an address as a pointer, behind which the worker can change it after a look
(seccomp_unotify(2)). So it stops ``socket`` alone, whose arguments are numbers, and asks this
process (``SECCOMP_RET_USER_NOTIF``, linux/seccomp.h)::

    worker: socket(AF_INET, ...) ──► kernel ──► serve: makes it, attaches and locks a filter
                 ▲                                 │
                 └── descriptor ◄── SECCOMP_IOCTL_NOTIF_ADDFD

That filter drops what comes from other machines than those of the lease. Sockets that are accepted
have the filter of the socket that listens.

The programs are extended BPF, which root loads (bpf(2)); to attach a loaded one takes no privilege.
Linux 6.18.44 wants ``CAP_NET_ADMIN`` for one of classic BPF on a socket of TCP, and older kernels
want none, so a server that is not root tries that for its connections.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
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
"""Networks of one filter: a jump reaches over 32,767 instructions, and one of IPv6 has 14."""

SOCKET_PAUSE_S = 0.0005
"""Between two sockets of a worker: code in it must not keep the server busy."""

# linux/bpf.h and linux/bpf_common.h: a program has the packet's context in register 1, and leaves
# in register 0 how many bytes to keep. Loads from the packet take the context from register 6.
_INSTRUCTION = struct.Struct("=BBhi")  # code, registers, jump, operand
_LOAD_WORD, _LOAD_BYTE, _LOAD_FIELD = 0x20, 0x30, 0x61
_AND, _SET, _COPY, _EXIT = 0x54, 0xB7, 0xBF, 0x95
_JUMP, _IF_NOT_EQUAL, _IF_EQUAL, _IF_ANY_BIT = 0x05, 0x56, 0x16, 0x45
_NETWORK_HEADER = -0x10_0000  # SKF_NET_OFF; other offsets count from the header of TCP
_IPV4_SOURCE, _IPV6_SOURCE = _NETWORK_HEADER + 12, _NETWORK_HEADER + 8
_TCP_FLAGS, _SYN = 13, 0x02
_INTERFACE = 40  # ``ifindex`` of ``__sk_buff``
_LOOPBACK = 1  # the number of ``lo``, always; include/net/net_namespace.h
_DROP, _KEEP = 0, 0x7FFF_FFFF
_PROGRAM_LOAD, _SOCKET_FILTER = 5, 1
_ATTRIBUTES = struct.Struct("=IIQQIIQII16s")
_BPF_CALLS = {"x86_64": 321, "aarch64": 280}

_CLASSIC = b"".join(  # the same as ``connection_program``
    struct.pack("=HBBI", *each)
    for each in ((0x30, 0, 0, _TCP_FLAGS), (0x45, 0, 1, _SYN), (0x06, 0, 0, 0), (0x06, 0, 0, _KEEP))
)
_SO_ATTACH_FILTER, _SO_LOCK_FILTER, _SO_ATTACH_BPF = 26, 44, 50  # asm-generic/socket.h

# linux/seccomp.h
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # seccomp_notif with its seccomp_data
_RESPONSE = struct.Struct("=QqiI")  # seccomp_notif_resp
_ADD_DESCRIPTOR = struct.Struct("=QIIII")  # seccomp_notif_addfd
_RECEIVE, _SEND, _ADD = 0xC050_2100, 0xC018_2101, 0x4018_2103
_ADD_AND_ANSWER = 1 << 1  # SECCOMP_ADDFD_FLAG_SEND, Linux 5.14

_INT = 0xFFFF_FFFF
_FAMILIES = (socket.AF_INET, socket.AF_INET6)

Instruction = tuple[int, int, int, int]

CLASSIC = -1
"""In place of a descriptor of ``load``: the filter of connections that needs no loaded program."""


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
    if len(found) > NETWORK_COUNT_MAX // 2:  # the rest is for servers' addresses
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


def connection_program() -> bytes:
    """Return the program that keeps all packets of a connection, and none that begins one."""
    return _encoded(
        [
            (_COPY, 0x16, 0, 0),
            (_LOAD_BYTE, 0, 0, _TCP_FLAGS),
            (_IF_ANY_BIT, 0, 2, _SYN),
            *_end(_KEEP),
            *_end(_DROP),
        ]
    )


def lease_program(allowed: Sequence[Network]) -> bytes:
    """Return the program that keeps packets from ``allowed`` networks and this machine, no others.

    This machine's addresses are known by their way, which is ``lo``; but not 127.0.0.0/8 and ::1,
    on which programs listen that no other machine may reach.
    """
    kept = allowed[:NETWORK_COUNT_MAX]
    four = _of_family(kept, IPv4Network("127.0.0.0/8"), _IPV4_SOURCE)
    six = _of_family(kept, IPv6Network("::1/128"), _IPV6_SOURCE)
    return _encoded(
        [
            (_COPY, 0x16, 0, 0),
            (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
            (_AND, 0, 0, 0xF0),
            (_IF_EQUAL, 0, 1, 0x40),
            (_JUMP, 0, len(four), 0),
            *four,
            *six,
        ]
    )


def _of_family(allowed: Sequence[Network], loopback: Network, source: int) -> list[Instruction]:
    code: list[Instruction] = []
    for network in allowed:
        if network.version == loopback.version:
            code += _rule(network, source, _KEEP)
    code += _rule(loopback, source, _DROP)
    code += [(_LOAD_FIELD, 0x60, _INTERFACE, 0), (_IF_NOT_EQUAL, 0, 2, _LOOPBACK)]
    return [*code, *_end(_KEEP), *_end(_DROP)]


def _rule(network: Network, source: int, result: int) -> list[Instruction]:
    """Return BPF instructions that exit with ``result`` for a packet from ``network``."""
    code = _end(result)
    for at in reversed(range(0, network.max_prefixlen // 8, 4)):
        mask = int.from_bytes(network.netmask.packed[at : at + 4], "big")
        value = int.from_bytes(network.network_address.packed[at : at + 4], "big")
        if mask:
            test: list[Instruction] = [(_LOAD_WORD, 0, 0, source + at), (_AND, 0, 0, mask)]
            code = [*test, (_IF_NOT_EQUAL, 0, len(code), value), *code]
    return code


def _end(result: int) -> list[Instruction]:
    return [(_SET, 0, 0, result), (_EXIT, 0, 0, 0)]


def _encoded(program: Sequence[Instruction]) -> bytes:
    half, whole = 1 << 31, 1 << 32
    signed = ((*each[:3], (each[3] + half) % whole - half) for each in program)
    return b"".join(_INSTRUCTION.pack(*each) for each in signed)


def load(program: bytes) -> int:
    """Load a program, and return a descriptor of it.

    Raises:
        OSError: when the kernel does not let this process do that.
    """
    number = _BPF_CALLS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    code, license_name = (ctypes.create_string_buffer(each) for each in (program, b"GPL"))
    attributes = _ATTRIBUTES.pack(
        *(_SOCKET_FILTER, len(program) // _INSTRUCTION.size, ctypes.addressof(code)),
        *(ctypes.addressof(license_name), 0, 0, 0, 0, 0, b"gpupool"),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_uint(len(attributes))
    found = libc.syscall(ctypes.c_long(number), ctypes.c_int(_PROGRAM_LOAD), attributes, size)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.set_inheritable(found, False)
    return found


def can_load() -> bool:
    """Return whether this process may load programs."""
    try:
        os.close(load(connection_program()))
    except OSError:
        return False
    return True


def hold(sock: Socket, program: int) -> None:
    """Give a socket of TCP a filter for good; do nothing to a socket of another family.

    Args:
        sock: a connection, or a new socket.
        program: a descriptor of ``load``, or ``CLASSIC``, which is for connections alone.

    Raises:
        OSError: when the kernel does not let this process do that.
    """
    if sock.family not in _FAMILIES:
        return
    if program >= 0:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, program)
    else:
        code = ctypes.create_string_buffer(_CLASSIC, len(_CLASSIC))
        where = struct.pack("=H6xQ", len(_CLASSIC) // 8, ctypes.addressof(code))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, where)
    sock.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def can_hold(program: int) -> bool:
    """Return whether this process may attach the program."""
    if sys.platform != "linux":
        return False
    try:
        with socket.socket() as sock:
            hold(sock, program)
    except OSError:
        return False
    return True


def make(family: int, kind: int, protocol: int, program: int) -> socket.socket:
    """Return a new socket of TCP that has a filter for good.

    Args:
        family: as of ``socket``.
        kind: likewise; ``SOCK_NONBLOCK`` may be in it.
        protocol: likewise.
        program: as of ``hold``.

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
        hold(made, program)
    except BaseException:
        made.close()
        raise
    return made


async def serve(listener: int, program: int) -> None:
    """Make the sockets for which a worker asks, until it has ended.

    Args:
        listener: of the worker's filter of system calls; stays the caller's.
        program: as of ``hold``; likewise.
    """
    while True:
        await trio.lowlevel.wait_readable(listener)
        if not _has_question(listener):
            return
        answer(listener, program)
        await trio.sleep(SOCKET_PAUSE_S)


def _has_question(listener: int) -> bool:
    """Return whether a call waits; the kernel says that nobody is left by a hang-up."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def answer(listener: int, program: int) -> None:
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
        with make(family & _INT, kind & _INT, protocol & _INT, program) as made:
            cloexec = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
            add = _ADD_DESCRIPTOR.pack(name, _ADD_AND_ANSWER, made.fileno(), 0, cloexec)
            fcntl.ioctl(listener, _ADD, add)
    except OSError as error:
        refusal = _RESPONSE.pack(name, 0, -(error.errno or errno.EACCES), 0)
        with contextlib.suppress(OSError):  # It does not wait any more.
            fcntl.ioctl(listener, _SEND, refusal)
