"""The filter of system calls that a worker puts on all of its threads (seccomp(2)).

The filter is a program of classic BPF over ``struct seccomp_data``, made here from the tables of
``syscall_table``. It is a tree of comparisons, because CUDA makes many calls; the kernel keeps a
map besides of those that are always allowed.
"""

import ctypes
import errno
import os
import platform
import re
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.remoting.worker.syscall_table import ALLOWED, CHECKED, FOR_GPUS, FORBIDDEN

# linux/filter.h and linux/bpf_common.h
AND = 0x54
LOAD, JUMP, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_ANY_BIT, RETURN = (
    *(0x20, 0x05, 0x15, 0x35, 0x45),
    0x06,
)

# linux/seccomp.h
ALLOW, KILL, ASK = 0x7FFF_0000, 0x8000_0000, 0x7FC0_0000
_ERRNO = 0x0005_0000
_SET_MODE_FILTER, _GET_ACTION_AVAILABLE = 1, 2
_ALL_THREADS, _NO_SPECULATION_PENALTY = 1 << 0, 1 << 2
_ALL_THREADS_AND_LISTENER = _ALL_THREADS | 1 << 3 | 1 << 4  # a thread that cannot: ESRCH
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_SECOND_ARGUMENT_AT, _THIRD_ARGUMENT_AT, _FOURTH_ARGUMENT_AT = 24, 32, 40

_X32_FIRST = 0x4000_0000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF
_NETLINK_ROUTE, _IPPROTO_TCP = 0, 6
_MSG_FASTOPEN, _FASTOPEN_OPTIONS = 0x2000_0000, (23, 30, 33, 34)
"""TCP Fast Open (linux/socket.h, linux/tcp.h): bytes would leave before any answer has come, and
Landlock does not see a connection that sending makes."""
_F_SETLEASE = 1024
"""Opening a file with a lease blocks, for 45 s by default (fcntl(2))."""
_OF_A_PROCESS = {"setpriority": 0, "getpriority": 0, "ioprio_set": 1, "ioprio_get": 1}
"""Value of the first argument with which the second one is a process, not a group or a user."""
_FLAGS_OF_SENDS = {
    "sendto": _FOURTH_ARGUMENT_AT,
    "sendmsg": _THIRD_ARGUMENT_AT,
    "sendmmsg": _FOURTH_ARGUMENT_AT,
}

LISTENER_RELEASE = (5, 14)
"""The first Linux that puts a descriptor into a process and answers its call at once."""
_CLONE_NEW = 0x7E02_0000
"""All of CLONE_NEW*; that for time is no flag of ``clone``."""
_CLONE_VM = 0x100
"""A thread, or a child that shares the memory until it executes a program, as ``vfork``'s."""
_CLONE_FILES, _CLONE_THREAD, _CLOSE_RANGE_UNSHARE = 0x400, 0x1_0000, 2
"""A thread with separate descriptors could hide files: the host looks at each process's."""

_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFF_FFFF)
"""As Docker's: Linux, 32 bits, an older version's number, and the query of the current value."""


def _refuse(error: int) -> int:
    return _ERRNO | error


MISSING = _refuse(errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture with known system call numbers."""

    name: str  # as ``uname`` says it
    audit: int  # AUDIT_ARCH_* of linux/audit.h
    column: int  # of ``syscall_table``
    seccomp: int  # the number of seccomp(2) itself


ARCHITECTURES = (
    Architecture("x86_64", 0xC000_003E, 0, 317),
    Architecture("aarch64", 0xC000_00B7, 1, 277),
)

Instruction = tuple[int, int, int, int]
"""Code, how many instructions to skip if true and if false, and the operand."""


def program(
    architecture: Architecture, *, few: bool = False, tcp: bool = False, asks: bool = False
) -> list[Instruction]:
    """Return the filter for one architecture; a call of another architecture ends the process.

    Args:
        architecture: that of the calls.
        few: whether those of ``FOR_GPUS`` are refused, and all that makes a socket but pairs of
            streams and of packets: a datagram has an address, which no filter can see.
        tcp: whether sockets of TCP may be made, and the machine's addresses be asked for.
        asks: whether the host makes these sockets, whom the filter's listener tells of the call.
    """
    leaves: dict[int, list[Instruction]] = {}
    forbid = _refuse(errno.EPERM)
    tables = ((ALLOWED, ALLOW), (FOR_GPUS, forbid if few else ALLOW), (FORBIDDEN, forbid))
    for table, action in tables:
        for numbers in table.values():
            number = numbers[architecture.column]
            if number is not None:
                leaves[number] = [(RETURN, 0, 0, action)]
    for name, numbers in CHECKED.items():
        number = numbers[architecture.column]
        if number is not None:
            leaves[number] = _checks(name, _socket_checks(tcp=tcp, asks=asks), few=few)
    # A call that a tracer has replaced has the number -1, which is none of x32's.
    last = 0xFFFF_FFFF
    ranges = _ranges(leaves)
    if architecture.name == "x86_64":
        ranges += [(_X32_FIRST, [(RETURN, 0, 0, KILL)]), (last, [(RETURN, 0, 0, MISSING)])]
    return [
        (LOAD, 0, 0, _ARCHITECTURE_AT),
        (JUMP_IF_EQUAL, 1, 0, architecture.audit),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER_AT),
        *_tree(ranges),
    ]


def _checks(name: str, of_socket: list[Instruction], *, few: bool) -> list[Instruction]:
    """Return the BPF instructions that judge one call by the lower half of an argument.

    Args:
        name: of the call.
        of_socket: what decides on ``socket``.
        few: as of ``program``.
    """
    load = (LOAD, 0, 0, _FIRST_ARGUMENT_AT)
    allow = (RETURN, 0, 0, ALLOW)
    forbid = (RETURN, 0, 0, _refuse(errno.EPERM))
    if name == "socket":
        return [(RETURN, 0, 0, _refuse(errno.EAFNOSUPPORT))] if few else of_socket
    if name == "socketpair":
        return _CONNECTED_PAIRS if few else _UNIX_ALONE
    if name == "prlimit64":
        return [load, (JUMP_IF_EQUAL, 1, 0, 0), forbid, allow]
    if name in _OF_A_PROCESS:
        second = (LOAD, 0, 0, _SECOND_ARGUMENT_AT)
        is_process = (JUMP_IF_EQUAL, 0, 2, _OF_A_PROCESS[name])
        return [load, is_process, second, (JUMP_IF_EQUAL, 1, 0, 0), forbid, allow]
    if name == "clone":
        # A child with a copy of the memory is fork's: thousands of copies of copies wait for each
        # other in the kernel, for minutes, and slow down the whole machine.
        return [
            load,
            (JUMP_IF_ANY_BIT, 3, 0, _CLONE_NEW),
            (JUMP_IF_ANY_BIT, 0, 2, _CLONE_VM),
            (JUMP_IF_ANY_BIT, 0, 2, _CLONE_THREAD),
            (JUMP_IF_ANY_BIT, 1, 0, _CLONE_FILES),
            forbid,
            allow,
        ]
    if name == "close_range":
        flags = (LOAD, 0, 0, _THIRD_ARGUMENT_AT)
        return [flags, (JUMP_IF_ANY_BIT, 0, 1, _CLOSE_RANGE_UNSHARE), forbid, allow]
    if name == "fcntl":
        command = (LOAD, 0, 0, _SECOND_ARGUMENT_AT)
        return [command, (JUMP_IF_EQUAL, 0, 1, _F_SETLEASE), forbid, allow]
    if name in _FLAGS_OF_SENDS:
        flags = (LOAD, 0, 0, _FLAGS_OF_SENDS[name])
        return [flags, (JUMP_IF_ANY_BIT, 0, 1, _MSG_FASTOPEN), forbid, allow]
    if name == "setsockopt":
        tests = [(JUMP_IF_EQUAL, 0, 1, option) for option in _FASTOPEN_OPTIONS]
        return [
            (LOAD, 0, 0, _SECOND_ARGUMENT_AT),
            (JUMP_IF_EQUAL, 1, 0, _IPPROTO_TCP),
            allow,
            (LOAD, 0, 0, _THIRD_ARGUMENT_AT),
            *(each for test in tests for each in (test, forbid)),
            allow,
        ]
    if name == "personality":
        wanted = [(JUMP_IF_EQUAL, 0, 1, value) for value in _PERSONALITIES]
        return [load, *(each for test in wanted for each in (test, allow)), forbid]
    # clone3's flags are in memory, where no filter can look; the C library then uses clone.
    return [(RETURN, 0, 0, MISSING)]


_UNIX_ALONE: list[Instruction] = [
    (LOAD, 0, 0, _FIRST_ARGUMENT_AT),
    (JUMP_IF_EQUAL, 0, 1, _AF_UNIX),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, _refuse(errno.EAFNOSUPPORT)),
]

_CONNECTED_PAIRS: list[Instruction] = [
    (LOAD, 0, 0, _SECOND_ARGUMENT_AT),
    (AND, 0, 0, _SOCK_TYPE_MASK),
    (JUMP_IF_EQUAL, 1, 0, _SOCK_STREAM),
    (JUMP_IF_EQUAL, 0, 4, _SOCK_SEQPACKET),
    *_UNIX_ALONE,
    (RETURN, 0, 0, _refuse(errno.EAFNOSUPPORT)),
]


def _socket_checks(*, tcp: bool, asks: bool) -> list[Instruction]:
    """Return the checks of ``socket``: Unix alone, or TCP as well and nothing else of IP."""
    if not tcp:
        return _UNIX_ALONE
    # Landlock's rules for ports hold for TCP alone: no MPTCP and no SCTP.
    return [
        (LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 12, 0, _AF_UNIX),
        (JUMP_IF_EQUAL, 4, 0, _AF_INET),
        (JUMP_IF_EQUAL, 3, 0, _AF_INET6),
        (JUMP_IF_EQUAL, 0, 10, _AF_NETLINK),  # getifaddrs(3) asks by that
        (LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 7, 8, _NETLINK_ROUTE),
        (LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        (AND, 0, 0, _SOCK_TYPE_MASK),
        (JUMP_IF_EQUAL, 0, 5, _SOCK_STREAM),
        (LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 1, 0, 0),
        (JUMP_IF_EQUAL, 0, 2, _IPPROTO_TCP),
        (RETURN, 0, 0, ASK if asks else ALLOW),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, _refuse(errno.EAFNOSUPPORT)),
    ]


def _ranges(leaves: dict[int, list[Instruction]]) -> list[tuple[int, list[Instruction]]]:
    """Return where each run of numbers with the same treatment starts; the first one at 0."""
    missing = [(RETURN, 0, 0, MISSING)]
    found: list[tuple[int, list[Instruction]]] = []
    for number in range(max(leaves) + 2):
        leaf = leaves.get(number, missing)
        if not found or found[-1][1] != leaf:
            found.append((number, leaf))
    return found


def _tree(ranges: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _tree(ranges[:middle]), _tree(ranges[middle:])
    if len(below) <= 0xFF:
        return [(JUMP_IF_AT_LEAST, len(below), 0, ranges[middle][0]), *below, *above]
    # A conditional jump skips 255 instructions at most.
    return [
        (JUMP_IF_AT_LEAST, 0, 1, ranges[middle][0]),
        (JUMP, 0, 0, len(below)),
        *below,
        *above,
    ]


def here() -> Architecture | None:
    """Return this process's architecture, if its numbers are known."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    return next((each for each in ARCHITECTURES if each.name == platform.machine()), None)


def available() -> bool:
    """Return whether ``install`` will work; installs nothing.

    The kernel complains about the missing program only when it knows the operation and its flags.
    """
    architecture = here()
    if architecture is None:
        return False
    result, error = _seccomp(architecture, _ALL_THREADS, None)
    return result != 0 and error == errno.EFAULT


def can_ask() -> bool:
    """Return whether the kernel lets a host make the sockets of a worker; installs nothing.

    Where an outer container has a listener of its own, ``install`` fails all the same.
    """
    architecture = here()
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if architecture is None or release is None:
        return False
    if (int(release[1]), int(release[2])) < LISTENER_RELEASE:
        return False
    result, _ = _seccomp(architecture, 0, struct.pack("=I", ASK), _GET_ACTION_AVAILABLE)
    return result == 0


def install(
    *, few: bool = False, tcp: bool = False, listener_to: socket.socket | None = None
) -> None:
    """Put the filter on every thread of this process, and on all that it starts, for good.

    Needs ``no_new_privs``.

    Args:
        few: as of ``program``.
        tcp: likewise.
        listener_to: over which the filter's listener is sent to the host, which then makes the
            sockets of TCP. This process must not keep it: code of clients could answer itself.

    Raises:
        OSError: when it does not hold for all of them.
    """
    architecture = here()
    if architecture is None:
        raise OSError(errno.ENOSYS, "no filter of system calls for this machine")
    wanted = program(architecture, few=few, tcp=tcp, asks=listener_to is not None)
    code = b"".join(struct.pack("=HBBI", *each) for each in wanted)
    buffer = ctypes.create_string_buffer(code, len(code))
    length = struct.pack("=H6x", len(code) // 8)
    address = struct.pack("=Q", ctypes.addressof(buffer))
    always = _ALL_THREADS if listener_to is None else _ALL_THREADS_AND_LISTENER
    # Before Linux 5.16 a filter slows down a process's speculation unless it says otherwise.
    for flags in (always | _NO_SPECULATION_PENALTY, always):
        result, error = _seccomp(architecture, flags, length + address)
        if listener_to is not None and result >= 0:
            socket.send_fds(listener_to, [b"\0"], [result])
            os.close(result)
            return
        if result == 0:
            return
        if result > 0:
            raise OSError(errno.EBUSY, f"thread {result} cannot have the filter")
        if error == errno.EBUSY and listener_to is not None:
            raise OSError(error, "a container around this server has such a filter already")
        if error != errno.EINVAL:
            break
    raise OSError(error, "the filter of system calls cannot be installed")


def _seccomp(
    architecture: Architecture,
    flags: int,
    argument: bytes | None,
    operation: int = _SET_MODE_FILTER,
) -> tuple[int, int]:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(architecture.seccomp),
        ctypes.c_uint(operation),
        ctypes.c_uint(flags),
        argument,
    )
    return result, ctypes.get_errno()
