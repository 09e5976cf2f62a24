"""The filter of system calls as a program, on both machines that it knows."""

import errno
import re
from itertools import product
from pathlib import Path

import pytest

from gpupool.remoting.worker import syscall_filter
from gpupool.remoting.worker.syscall_filter import ALLOW, ARCHITECTURES, KILL, Architecture
from gpupool.remoting.worker.syscall_table import ALLOWED, CHECKED, FOR_GPUS, FORBIDDEN

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
GENERIC_HEADER = Path("/usr/include/asm-generic/unistd.h")
X86_64, AARCH64 = ARCHITECTURES
TABLES = {**ALLOWED, **FOR_GPUS, **FORBIDDEN, **CHECKED}
EVERYWHERE = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)


def refused(error: int) -> int:
    return 0x0005_0000 | error


def decide(
    architecture: Architecture,
    number: int,
    argument: int = 0,
    audit: int = 0,
    *,
    others: tuple[int, ...] = (0, 0, 0),
    few: bool = False,
    tcp: bool = False,
    asks: bool = False,
) -> int:
    """Run the program as the kernel does."""
    program = syscall_filter.program(architecture, few=few, tcp=tcp, asks=asks)
    data = {0: number, 4: audit or architecture.audit, 16: argument & 0xFFFF_FFFF}
    data |= {24 + 8 * place: value for place, value in enumerate(others)}
    at, value = 0, 0
    while True:
        code, true, false, operand = program[at]
        at += 1
        match code:
            case syscall_filter.LOAD:
                value = data[operand]
            case syscall_filter.AND:
                value &= operand
            case syscall_filter.RETURN:
                return operand
            case syscall_filter.JUMP:
                at += operand
            case syscall_filter.JUMP_IF_EQUAL:
                at += true if value == operand else false
            case syscall_filter.JUMP_IF_AT_LEAST:
                at += true if value >= operand else false
            case syscall_filter.JUMP_IF_ANY_BIT:
                at += true if value & operand else false
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize("few", [False, True])
@EVERYWHERE
def test_every_call_is_treated_as_its_table_says(architecture: Architecture, *, few: bool) -> None:
    known = {numbers[architecture.column]: name for name, numbers in TABLES.items()}
    for number in range(600):
        name = known.get(number)
        if name in CHECKED:
            continue
        expected = refused(errno.ENOSYS)
        if name is not None:
            allowed = name in ALLOWED or (name in FOR_GPUS and not few)
            expected = ALLOW if allowed else refused(errno.EPERM)
        assert decide(architecture, number, few=few) == expected, (number, name)


TAKES_A_PROCESS = {
    # What it gets, for any process: numbers that /proc shows as well.
    "read": "capget getpgid getsid sched_getaffinity sched_getattr sched_getparam "
    "sched_getscheduler sched_rr_get_interval",
    # Landlock or a uid of its own lets a worker signal itself and its children alone.
    "signal": "kill tgkill tkill",
    "child": "setpgid wait4 waitid",  # the kernel lets no other be named
    "refused": "get_robust_list kcmp migrate_pages move_pages perf_event_open pidfd_getfd "
    "pidfd_open pidfd_send_signal process_madvise process_mrelease process_vm_readv "
    "process_vm_writev ptrace rt_sigqueueinfo rt_tgsigqueueinfo",
    "refused to emulated GPUs": "sched_setaffinity sched_setattr sched_setparam sched_setscheduler",
    "itself": "getpriority ioprio_get ioprio_set prlimit64 setpriority",
}
"""All calls of Linux 6.18 that take the number of a process, except as a mere receiver."""


@EVERYWHERE
def test_no_call_changes_another_process(architecture: Architecture) -> None:
    kinds = {name: kind for kind, names in TAKES_A_PROCESS.items() for name in names.split()}
    for name, kind in kinds.items():
        number = TABLES[name][architecture.column]
        assert number is not None
        place = {"setpriority": 0, "getpriority": 0, "ioprio_set": 1, "ioprio_get": 1}.get(name)
        others = (0, 0, 0) if place is None else (4711, 0, 0)
        first = 4711 if place is None else place
        decided = decide(architecture, number, first, others=others, few=True)
        may = kind in ("read", "signal", "child")
        assert decided == (ALLOW if may else refused(errno.EPERM)), name
        if kind != "itself":
            continue
        assert decide(architecture, number, place or 0, few=True) == ALLOW
        for group in (1, 2, 3) if place is not None else ():
            whole = decide(architecture, number, group, few=True)
            assert whole == (ALLOW if group == place else refused(errno.EPERM)), name


@EVERYWHERE
def test_a_worker_of_emulated_gpus_makes_pairs_with_two_ends_and_no_other_sockets(
    architecture: Architecture,
) -> None:
    """Each datagram has an address, in memory, where no filter can look."""
    for name, kinds in (("socket", set[int]()), ("socketpair", {1, 5})):
        number = CHECKED[name][architecture.column]
        assert number is not None
        found = {
            (family, kind & 0xF)
            for family in range(46)
            for kind in (1, 2, 3, 4, 5, 6, 10, 1 | 0o2004000, 2 | 0o2004000)
            if decide(architecture, number, family, others=(kind, 0), few=True) == ALLOW
        }
        assert found == {(1, kind) for kind in kinds}
    lease = CHECKED["fcntl"][architecture.column]
    assert lease is not None
    assert decide(architecture, lease, 3, others=(1024, 0)) == refused(errno.EPERM)
    assert decide(architecture, lease, 3, others=(4, 0)) == ALLOW


@EVERYWHERE
def test_a_worker_that_may_use_tcp_makes_no_other_sockets(architecture: Architecture) -> None:
    number = CHECKED["socket"][architecture.column]
    assert number is not None
    stream, datagram, raw, flags = 1, 2, 3, 0o2004000  # non-blocking, closed by exec
    protocols = (0, 6, 9, 17, 132, 262)
    allowed = {
        (family, kind, protocol)
        for family in range(46)
        for kind in (stream, datagram, raw, stream | flags, raw | flags)
        for protocol in protocols
        if decide(architecture, number, family, others=(kind, protocol), tcp=True) == ALLOW
    }
    kinds = (stream, datagram, raw, stream | flags, raw | flags)
    expected = {(1, kind, protocol) for kind in kinds for protocol in protocols}
    expected |= {(16, kind, 0) for kind in kinds}
    expected |= {
        (family, kind, protocol)
        for family in (2, 10)
        for kind in (stream, stream | flags)
        for protocol in (0, 6)
    }
    assert allowed == expected


@EVERYWHERE
def test_the_host_is_asked_for_sockets_of_tcp_alone(architecture: Architecture) -> None:
    number = CHECKED["socket"][architecture.column]
    assert number is not None
    for family, kind, protocol in product((1, 2, 10, 16), (1, 2, 3, 0o2004001), (0, 6, 17)):
        others = (kind, protocol)
        without = decide(architecture, number, family, others=others, tcp=True)
        asked = without == ALLOW and family in (2, 10)
        assert decide(architecture, number, family, others=others, tcp=True, asks=True) == (
            syscall_filter.ASK if asked else without
        )


@EVERYWHERE
def test_nothing_is_sent_before_a_connection_is_there(architecture: Architecture) -> None:
    fast_open, other_flag = 0x2000_0000, 0x4000
    for name, place in (("sendto", 2), ("sendmsg", 1), ("sendmmsg", 2)):
        number = CHECKED[name][architecture.column]
        assert number is not None
        for flags, tcp in product(
            (0, other_flag, fast_open, fast_open | other_flag), (True, False)
        ):
            others = [0, 0, 0]
            others[place] = flags
            decided = decide(architecture, number, others=tuple(others), tcp=tcp)
            assert decided == (refused(errno.EPERM) if flags & fast_open else ALLOW)
    number = CHECKED["setsockopt"][architecture.column]
    assert number is not None
    for level, option, tcp in product((0, 1, 6, 41), range(64), (True, False)):
        refuses = level == 6 and option in (23, 30, 33, 34)
        decided = decide(architecture, number, others=(level, option), tcp=tcp)
        assert decided == (refused(errno.EPERM) if refuses else ALLOW)


@EVERYWHERE
def test_arguments_decide_on_some(architecture: Architecture) -> None:
    def call(name: str, argument: int) -> int:
        number = CHECKED[name][architecture.column]
        assert number is not None
        return decide(architecture, number, argument)

    for name in ("socket", "socketpair"):
        assert call(name, 1) == ALLOW
        assert {call(name, family) for family in range(46) if family != 1} == {
            refused(errno.EAFNOSUPPORT)
        }
    assert call("clone", 0x3D0F00) == ALLOW  # as the C library starts a thread
    assert call("clone", 0x4111) == ALLOW  # a child, with CLONE_VM and CLONE_VFORK
    assert call("clone", 0x120_0011) == refused(errno.EPERM)  # as the C library forks
    for bit in (17, 25, 26, 27, 28, 29, 30):  # CLONE_NEW*
        assert call("clone", 1 << bit | 0x111) == refused(errno.EPERM)
    assert call("clone", 0x3D0B00) == refused(errno.EPERM)  # a thread with its own descriptors
    number = CHECKED["close_range"][architecture.column]
    assert number is not None
    for flags in (0, 4):
        assert decide(architecture, number, 3, others=(9, flags)) == ALLOW
        assert decide(architecture, number, 3, others=(9, flags | 2)) == refused(errno.EPERM)
    assert call("clone3", 0) == refused(errno.ENOSYS)
    assert call("personality", 0xFFFF_FFFF) == ALLOW
    assert call("personality", 0x0040_0000) == refused(errno.EPERM)  # READ_IMPLIES_EXEC


@EVERYWHERE
def test_calls_of_another_architecture_end_the_process(architecture: Architecture) -> None:
    assert decide(architecture, 0, audit=0x4000_0003) == KILL  # 32 bits
    assert decide(architecture, 0xFFFF_FFFF) == refused(errno.ENOSYS)


def test_calls_of_x32_end_the_process() -> None:
    assert decide(X86_64, 0x4000_0000) == KILL
    assert decide(X86_64, 0x4000_0000 + 41, 2) == KILL


def test_no_call_is_in_two_tables() -> None:
    assert len(TABLES) == sum(map(len, (ALLOWED, FOR_GPUS, FORBIDDEN, CHECKED)))
    for architecture in ARCHITECTURES:
        numbers = [n for each in TABLES.values() if (n := each[architecture.column]) is not None]
        assert len(numbers) == len(set(numbers))


def test_the_filter_is_a_program_that_the_kernel_takes() -> None:
    for architecture, few in product(ARCHITECTURES, (False, True)):
        program = syscall_filter.program(architecture, few=few)
        assert len(program) <= 4096
        assert max(max(true, false) for _, true, false, _ in program) <= 0xFF


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers are not installed")
def test_numbers_of_x86_64_are_those_of_the_header() -> None:
    found = dict(re.findall(r"^#define __NR_(\w+)\s+(\d+)$", HEADER.read_text(), re.MULTILINE))
    for name, (number, _) in TABLES.items():
        if number is not None and (name in found or number < 335):
            assert int(found[name]) == number, name


@pytest.mark.skipif(not GENERIC_HEADER.exists(), reason="the kernel's headers are not installed")
def test_numbers_of_aarch64_are_those_of_the_generic_header() -> None:
    rows = re.findall(
        r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", GENERIC_HEADER.read_text(), re.MULTILINE
    )
    found = {"newfstatat" if name == "fstatat" else name: int(number) for name, number in rows}
    for name, (_, number) in TABLES.items():
        if number is not None and (name in found or number < 292):
            assert found[name] == number, name
