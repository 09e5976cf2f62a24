"""The filter of system calls that a worker puts on all of its threads (seccomp(2)).

The filter is a program of classic BPF over ``struct seccomp_data``, made here from the tables of
``syscall_table``. It is a tree of comparisons, because CUDA makes many calls; the kernel keeps a
map besides of those that are always allowed.
"""

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.remoting.worker.syscall_table import ALLOWED, CHECKED, FORBIDDEN

# linux/filter.h and linux/bpf_common.h
AND = 0x54
LOAD, JUMP, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_ANY_BIT, RETURN = (
    *(0x20, 0x05, 0x15, 0x35, 0x45),
    0x06,
)

# linux/seccomp.h
ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
_ERRNO = 0x0005_0000
_SET_MODE_FILTER = 1
_ALL_THREADS, _NO_SPECULATION_PENALTY = 1 << 0, 1 << 2
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_SECOND_ARGUMENT_AT, _THIRD_ARGUMENT_AT = 24, 32

_X32_FIRST = 0x4000_0000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_TYPE_MASK = 1, 0xF
_NETLINK_ROUTE, _IPPROTO_TCP = 0, 6
_CLONE_NEW = 0x7E02_0000
"""All of CLONE_NEW*; that for time is no flag of ``clone``."""
_CLONE_VM = 0x100
"""A thread, or a child that shares the memory until it executes a program, as ``vfork``'s."""
_CLONE_FILES, _CLONE_THREAD, _CLOSE_RANGE_UNSHARE = 0x400, 0x1_0000, 2
"""A thread with descriptors of its own could hide files: the host looks at each process's."""

_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFF_FFFF)
"""As Docker's: Linux, 32 bits, an older version's number, and to ask which it is."""


def _refuse(error: int) -> int:
    return _ERRNO | error


MISSING = _refuse(errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of those whose numbers are known."""

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


def program(architecture: Architecture, *, tcp: bool = False) -> list[Instruction]:
    """Return the filter for one architecture; what another one calls ends the process.

    ``tcp``: whether sockets of TCP may be made, and the machine's addresses be asked for.
    """
    leaves: dict[int, list[Instruction]] = {}
    for table, action in ((ALLOWED, ALLOW), (FORBIDDEN, _refuse(errno.EPERM))):
        for numbers in table.values():
            number = numbers[architecture.column]
            if number is not None:
                leaves[number] = [(RETURN, 0, 0, action)]
    for name, numbers in CHECKED.items():
        number = numbers[architecture.column]
        if number is not None:
            leaves[number] = _tcp_checks() if tcp and name == "socket" else _checks(name)
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


def _checks(name: str) -> list[Instruction]:
    """Return what decides on one call by the lower half of an argument."""
    load = (LOAD, 0, 0, _FIRST_ARGUMENT_AT)
    allow = (RETURN, 0, 0, ALLOW)
    forbid = (RETURN, 0, 0, _refuse(errno.EPERM))
    if name in ("socket", "socketpair"):
        refuse = (RETURN, 0, 0, _refuse(errno.EAFNOSUPPORT))
        return [load, (JUMP_IF_EQUAL, 0, 1, _AF_UNIX), allow, refuse]
    if name == "clone":
        # A child with a copy of the memory is fork's: thousands of copies of copies wait for each
        # other in the kernel, for minutes, and slow down the whole machine (docs/security.md).
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
    if name == "personality":
        wanted = [(JUMP_IF_EQUAL, 0, 1, value) for value in _PERSONALITIES]
        return [load, *(each for test in wanted for each in (test, allow)), forbid]
    # clone3's flags are in memory, where no filter can look; the C library then uses clone.
    return [(RETURN, 0, 0, MISSING)]


def _tcp_checks() -> list[Instruction]:
    """Return what decides on ``socket`` for a worker that may use TCP, and nothing else of IP."""
    allow, refuse = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, _refuse(errno.EAFNOSUPPORT))
    # Landlock's rules for ports hold for TCP alone: no MPTCP and no SCTP.
    return [
        (LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 11, 0, _AF_UNIX),
        (JUMP_IF_EQUAL, 4, 0, _AF_INET),
        (JUMP_IF_EQUAL, 3, 0, _AF_INET6),
        (JUMP_IF_EQUAL, 0, 9, _AF_NETLINK),  # getifaddrs(3) asks by that
        (LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 6, 7, _NETLINK_ROUTE),
        (LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        (AND, 0, 0, _SOCK_TYPE_MASK),
        (JUMP_IF_EQUAL, 0, 4, _SOCK_STREAM),
        (LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 1, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, _IPPROTO_TCP),
        allow,
        refuse,
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


def install(*, tcp: bool = False) -> None:
    """Put the filter on every thread of this process, and on all that it starts, for good.

    Needs ``no_new_privs``. ``tcp`` is ``program``'s.

    Raises:
        OSError: when it does not hold for all of them.
    """
    architecture = here()
    if architecture is None:
        raise OSError(errno.ENOSYS, "no filter of system calls for this machine")
    code = b"".join(struct.pack("=HBBI", *each) for each in program(architecture, tcp=tcp))
    buffer = ctypes.create_string_buffer(code, len(code))
    length = struct.pack("=H6x", len(code) // 8)
    address = struct.pack("=Q", ctypes.addressof(buffer))
    # Before Linux 5.16 a filter slows down a process's speculation unless it says otherwise.
    for flags in (_ALL_THREADS | _NO_SPECULATION_PENALTY, _ALL_THREADS):
        result, error = _seccomp(architecture, flags, length + address)
        if result == 0:
            return
        if result > 0:
            raise OSError(errno.EBUSY, f"thread {result} cannot have the filter")
        if error != errno.EINVAL:
            break
    raise OSError(error, "the filter of system calls cannot be installed")


def _seccomp(architecture: Architecture, flags: int, argument: bytes | None) -> tuple[int, int]:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(architecture.seccomp),
        ctypes.c_uint(_SET_MODE_FILTER),
        ctypes.c_uint(flags),
        argument,
    )
    return result, ctypes.get_errno()
