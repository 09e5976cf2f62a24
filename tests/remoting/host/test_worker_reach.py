"""The reach of code in a worker: network, system calls, devices, shared memory.

Each attack is tried in a worker without the property as well, where it must succeed: a test that
cannot fail shows nothing.
"""

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import kernel_probes
import pytest
import trio
from fake_nvml import FakeNvml, device
from host_kit import GIB, SERVER, EchoClient, HostKit, MakeHost, unix_address
from kernel_probes import landlock_version
from test_host_sessions import TcpFront
from test_worker_confinement import as_root, stranger, with_landlock

from gpupool.pool.errors import UsageError
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.state import Lease, Partition
from gpupool.pool.model.suspension import USES_NCCL
from gpupool.remoting.host import host_memory
from gpupool.remoting.host.inventory import Inventory, emulated_gpus
from gpupool.remoting.host.isolation import confinement, users
from gpupool.remoting.host.isolation.lease_cgroups import LeaseCgroups
from gpupool.remoting.host.measuring.nvml import mig_nodes
from gpupool.remoting.host.privileged_helper import OwnHelper
from gpupool.remoting.host.suspension import kept_workers
from gpupool.remoting.protocol import helper_messages
from gpupool.remoting.worker import sandbox, syscall_filter
from gpupool.remoting.worker.syscall_table import ALLOWED, CHECKED, FOR_GPUS, FORBIDDEN

pytestmark = pytest.mark.long  # CI runs these as root

__all__ = ["stranger"]

with_filter = pytest.mark.skipif(
    not kernel_probes.filters(), reason="this kernel has no filter of system calls"
)
ALL = frozenset(confinement.PROPERTIES)
SOCKETS = ALL - {"few-calls"}
"""The confinement of workers of real GPUs, which make sockets."""


async def attack(client: EchoClient, code: str) -> str:
    """Run code in the worker; return its answer, or the name of its error."""
    lines = "\n".join("    " + line for line in code.strip().splitlines())
    wrapped = (
        "import ctypes, errno, os, socket, struct, subprocess\n"
        f"try:\n{lines}\nexcept OSError as error:\n    answer = errno.errorcode[error.errno]\n"
    )
    return (await client.ask(b"x", wrapped.encode())).decode()


def having(kit: HostKit, name: str) -> None:
    """Fail if this is not claimed, and skip the rest where the kernel cannot give it."""
    said = [line for line in kit.log if "confined" in line]
    kernel_probes.must_claim(name, kit.host.confinement(), said)


def test_what_is_not_claimed_fails_where_the_kernel_can_give_it() -> None:
    """Else each of these tests would be green with a confinement that is broken."""
    kernel_probes.must_claim("no-network", {"no-network"}, can=lambda: True)
    with pytest.raises(pytest.fail.Exception, match="this kernel can"):
        kernel_probes.must_claim("no-network", set(), can=lambda: True)
    with pytest.raises(pytest.skip.Exception, match="no no-network here: none"):
        kernel_probes.must_claim("no-network", set(), ["none"], can=lambda: False)


# --- the network --------------------------------------------------------------------------------

CONNECT = "s = socket.socket()\ns.connect(('127.0.0.1', {port}))\nanswer = 'connected'"
LISTEN = "s = socket.create_server(('127.0.0.1', 0))\nanswer = 'listening'"
DATAGRAM = "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nanswer = 'made'"
ABSTRACT = "s = socket.socket(socket.AF_UNIX)\ns.connect({name!r})\nanswer = 'connected'"


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def abstract_name() -> Iterator[str]:
    name = f"\0gpupool-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        yield name


async def test_without_confinement_a_worker_reaches_the_network(
    make_host: MakeHost, port: int, abstract_name: str
) -> None:
    kit = await make_host(confine=frozenset[str]())
    client, _ = await kit.connect(kit.lease())
    assert await attack(client, CONNECT.format(port=port)) == "connected"
    assert await attack(client, LISTEN) == "listening"
    assert await attack(client, DATAGRAM) == "made"
    assert await attack(client, ABSTRACT.format(name=abstract_name)) == "connected"
    await kit.logged("a network namespace without interfaces (left out by GPUPOOL_UNCONFINED)")


@as_root
async def test_a_worker_has_a_network_of_its_own_that_reaches_nothing(
    make_host: MakeHost, port: int, abstract_name: str
) -> None:
    kit = await make_host(confine=frozenset({"network"}))
    client, _ = await kit.connect(kit.lease())
    having(kit, "no-network")
    assert await attack(client, CONNECT.format(port=port)) == "ENETUNREACH"
    assert await attack(client, ABSTRACT.format(name=abstract_name)) == "ECONNREFUSED"
    interfaces = await attack(client, "answer = [n for _, n in socket.if_nameindex()]")
    assert interfaces == "['lo']"


@as_root
async def test_workers_of_a_lease_share_its_network_and_no_others_do(make_host: MakeHost) -> None:
    """CUDA finds the processes of one program by Unix sockets that belong to a network."""
    kit = await make_host(confine=SOCKETS)
    clients = [(await kit.connect(kit.lease(number)))[0] for number in (1, 1, 2)]
    having(kit, "no-network")
    look = "answer = os.readlink('/proc/thread-self/ns/net')"
    one, sibling, other = [await attack(client, look) for client in clients]
    assert one == sibling
    assert len({one, other, os.readlink("/proc/self/ns/net")}) == 3
    listen = (
        "socket.kept = socket.socket(socket.AF_UNIX)\n"
        "socket.kept.bind('\\0cuda-like')\nsocket.kept.listen()\nanswer = 'listening'"
    )
    assert await attack(clients[0], listen) == "listening"
    reach = ABSTRACT.format(name="\0cuda-like")
    assert await attack(clients[1], reach) == "connected"
    assert await attack(clients[2], reach) == "ECONNREFUSED"


@with_landlock
async def test_landlock_shuts_tcp_for_a_server_that_is_not_root(
    make_host: MakeHost, port: int, abstract_name: str
) -> None:
    kit = await make_host(confine=frozenset({"landlock-network"}), own_uids=False)
    client, _ = await kit.connect(kit.lease())
    having(kit, "no-tcp")
    assert await attack(client, CONNECT.format(port=port)) == "EACCES"
    assert await attack(client, LISTEN) == "EACCES"
    if landlock_version() >= 6:
        assert await attack(client, ABSTRACT.format(name=abstract_name)) == "EPERM"


def at(host: str) -> Callable[[ServerId], str]:
    """Return a function that places each server at this host."""
    return lambda _server: f"{host}:7470"


def over_two_servers(kit: HostKit) -> Lease:
    other = Partition(ServerId("b" * 12), GpuId("GPU-1"), 1 << 30)
    return replace(kit.lease(2), partitions=(*kit.lease(2).partitions, other))


@as_root
@with_filter
@pytest.mark.skipif(landlock_version() < 4, reason="this kernel's Landlock knows no ports")
async def test_leases_over_several_servers_alone_may_use_tcp_and_few_ports(
    make_host: MakeHost,
) -> None:
    """NCCL between servers took workers without any confinement of their network."""
    first, last = 32768, 60999  # as the kernel chooses ports by itself
    kit = await make_host(ports=(first, last), confine=SOCKETS, address_of=at("127.0.0.1"))
    one, both = kit.lease(1), over_two_servers(kit)
    with socket.create_server(("127.0.0.1", 0)) as near:
        port = near.getsockname()[1]
        assert first <= port <= last
        alone, _ = await kit.connect(one)
        having(kit, "no-network")
        assert await attack(alone, CONNECT.format(port=port)) == "EAFNOSUPPORT"
        info = await kit.host.open_session(both, both.partitions[:1], door="echo", program="x.py")
        across = await kit.dial(unix_address(info))
        assert await attack(across, CONNECT.format(port=port)) == "connected"
        assert await attack(across, LISTEN) == "listening"
        assert await attack(across, "answer = bool(socket.if_nameindex())") == "True"
        assert await attack(across, DATAGRAM) == "EAFNOSUPPORT"
        assert await attack(across, CONNECT.format(port=22)) == "EACCES"
        listen = "s = socket.create_server(('127.0.0.1', 8443))\nanswer = 'listening'"
        assert await attack(across, listen) == "EACCES"
    assert "NCCL_PORTS" not in "\n".join(kit.host.unconfined())


FAST_OPEN = (
    "s = socket.socket()\ns.sendto(b'x', 0x20000000, ('127.0.0.1', {port}))\nanswer = 'sent'"
)
REACH = """
s = socket.socket()
s.settimeout(0.5)
try:
    s.connect(({address!r}, {port}))
    answer = "connected"
except TimeoutError:
    answer = "nothing"
"""
ACCEPT = """
socket.kept = socket.create_server(("", 0))
answer = socket.kept.getsockname()[1]
"""
ACCEPTED = """
socket.kept.settimeout(0.5)
try:
    answer = socket.kept.accept()[1][0]
except TimeoutError:
    answer = "nothing"
"""


@as_root
@with_filter
async def test_nccls_sockets_speak_with_the_servers_of_the_lease_alone(make_host: MakeHost) -> None:
    """Nothing held the addresses, and on Linux 6.18 sending connected past Landlock's ports."""
    kit = await make_host(
        ports=(32768, 60999),
        confine=SOCKETS,
        address_of=at("127.0.0.2"),
        networks=confinement.nccl_networks({"GPUPOOL_NCCL_NETWORKS": "127.0.3.0/24"}),
    )
    both = over_two_servers(kit)
    info = await kit.host.open_session(both, both.partitions[:1], door="echo", program="x.py")
    client = await kit.dial(unix_address(info))
    having(kit, "lease-addresses")
    with socket.create_server(("", 0)) as near:
        port = near.getsockname()[1]
        for address, answer in (
            ("127.0.0.2", "connected"),
            ("127.0.3.7", "connected"),
            ("127.0.0.1", "nothing"),
            ("127.0.0.3", "nothing"),
        ):
            assert await attack(client, REACH.format(address=address, port=port)) == answer
        assert await attack(client, FAST_OPEN.format(port=port)) == "EPERM"
        option = "s = socket.socket()\ns.setsockopt(6, 34, 1)\nanswer = 'set'"
        assert await attack(client, option) == "EPERM"
    for option in (26, 27, 44):  # to attach, detach and unlock a filter
        change = f"s = socket.socket()\ns.setsockopt(1, {option}, bytes(16))\nanswer = 'changed'"
        assert await attack(client, change) in ("EPERM", "EINVAL")
    port = int(await attack(client, ACCEPT))
    for address, answer in (("127.0.0.3", "nothing"), ("127.0.0.2", "127.0.0.2")):
        with socket.socket() as caller:
            caller.bind((address, 0))
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
            assert await attack(client, ACCEPTED) == answer


@as_root
@with_filter
async def test_sockets_that_the_server_made_have_the_flags_and_limits_of_any(
    make_host: MakeHost,
) -> None:
    kit = await make_host(ports=(32768, 60999), confine=SOCKETS, address_of=at("127.0.0.2"))
    both = over_two_servers(kit)
    info = await kit.host.open_session(both, both.partitions[:1], door="echo", program="x.py")
    client = await kit.dial(unix_address(info))
    having(kit, "lease-addresses")
    look = (
        "s = socket.socket({family}, socket.SOCK_STREAM | {flags})\n"
        "answer = (s.getblocking(), s.get_inheritable())"
    )
    assert await attack(client, look.format(family=2, flags=0)) == "(True, False)"
    nonblocking = look.format(family=10, flags=int(socket.SOCK_NONBLOCK))
    assert await attack(client, nonblocking) == "(False, False)"
    many = "kept = [socket.socket() for _ in range(5000)]\nanswer = 'made'"
    assert await attack(client, many) == "EMFILE"
    assert await attack(client, look.format(family=2, flags=0)) == "(True, False)"


@as_root
async def test_without_the_property_nccls_sockets_reach_everybody(make_host: MakeHost) -> None:
    kit = await make_host(
        ports=(32768, 60999),
        confine=SOCKETS - {"lease-addresses"},
        address_of=at("127.0.0.2"),
    )
    both = over_two_servers(kit)
    info = await kit.host.open_session(both, both.partitions[:1], door="echo", program="x.py")
    client = await kit.dial(unix_address(info))
    with socket.create_server(("", 0)) as near:
        port = near.getsockname()[1]
        assert await attack(client, REACH.format(address="127.0.0.3", port=port)) == "connected"
    assert "TCP with the servers of its lease alone" in "\n".join(kit.host.unconfined())


TURNED = """
import ctypes, os, socket, stat, sys, time
for name in os.listdir("/proc/self/fd"):
    try:
        if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            continue
        found = socket.socket(fileno=os.dup(int(name)))
    except OSError:
        continue
    if found.family == socket.AF_INET:
        break
{code}
"""
ELSEWHERE = """
ctypes.CDLL(None).connect(found.fileno(), bytes(16), 16)
found.settimeout(0.5)
found.connect(("127.0.0.1", {port}))
found.sendall(b"hello")
"""
LISTENS = """
ctypes.CDLL(None).connect(found.fileno(), bytes(16), 16)
found.listen()
print("listens at", found.getsockname()[1], file=sys.stderr, flush=True)
time.sleep(1)
"""


@pytest.mark.parametrize("held", [True, False])
async def test_a_worker_cannot_turn_its_clients_connection_to_others(
    make_host: MakeHost, *, held: bool
) -> None:
    """A socket taken off its client connected from the machine's network, and listened there."""
    confine = {"network", "system-calls", *(["held-connections"] if held else [])}
    kit = await make_host(confine=frozenset(confine), landlock=False)

    async def over_tcp(number: int) -> EchoClient:
        info = await kit.open(kit.lease(number))
        front = TcpFront(kit, info.session)
        kit.closers.append(front.listener.close)
        kit.nursery.start_soon(front.run)
        return await kit.dial(front.address(info, "tls"))

    with socket.create_server(("127.0.0.1", 0)) as other:
        client = await over_tcp(1)
        if held:
            having(kit, "held-connections")
        else:
            assert "held-connections" not in kit.host.confinement()
        code = ELSEWHERE.format(port=other.getsockname()[1])
        await client.send(b"x", TURNED.format(code=code).encode())
        other.settimeout(1)
        if held:
            with pytest.raises(TimeoutError):
                other.accept()
        else:
            reached, _address = other.accept()
            with reached:
                assert reached.recv(5) == b"hello"
    client = await over_tcp(2)
    await client.send(b"x", TURNED.format(code=LISTENS).encode())
    await kit.logged("listens at")
    port = int("".join(kit.log).partition("listens at ")[2].split()[0])
    with socket.socket() as caller:
        caller.settimeout(0.5)
        found = caller.connect_ex(("127.0.0.1", port))
    assert (found == 0) is not held


def test_ports_for_nccl_are_checked() -> None:
    assert confinement.nccl_ports({}) == ()
    assert confinement.nccl_ports({"GPUPOOL_NCCL_PORTS": " 32768-60999"}, lambda: None) == (
        32768,
        60999,
    )
    for text in ("any", "1-2", "2000-1999", "2000", "2000-70000", "2000-x"):
        with pytest.raises(UsageError, match="GPUPOOL_NCCL_PORTS"):
            confinement.nccl_ports({"GPUPOOL_NCCL_PORTS": text})


@pytest.mark.parametrize("text", ["21000-21200", "33000-60999", "32768-60998"])
def test_ports_on_which_nccl_cannot_listen_are_refused(text: str) -> None:
    """With others NCCL said "unhandled system error", and nothing else, on two H100s."""
    with pytest.raises(UsageError) as refused:
        confinement.nccl_ports({"GPUPOOL_NCCL_PORTS": text}, lambda: (32768, 60999))
    assert "set GPUPOOL_NCCL_PORTS=32768-60999" in refused.value.hint
    for wide in ("32768-60999", "2000-65535"):
        assert confinement.nccl_ports({"GPUPOOL_NCCL_PORTS": wide}, lambda: (32768, 60999))
    assert confinement.kernel_ports() is not None


@with_filter
@pytest.mark.parametrize(
    "family", ["AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"]
)
async def test_a_worker_makes_no_sockets_but_unix(make_host: MakeHost, family: str) -> None:
    kit = await make_host(confine=frozenset({"system-calls"}))
    client, _ = await kit.connect(kit.lease())
    made = f"socket.socket(socket.{family}, socket.SOCK_DGRAM)\nanswer = 'made'"
    assert await attack(client, made) == "EAFNOSUPPORT"
    assert await attack(client, "socket.socketpair()\nanswer = 'made'") == "made"


# --- system calls -------------------------------------------------------------------------------

CALL = """
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall({number}, *[ctypes.c_long(0)] * 6)
answer = "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


@with_filter
async def test_a_worker_makes_no_calls_that_it_does_not_need(make_host: MakeHost) -> None:
    architecture = syscall_filter.here()
    assert architecture is not None
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    assert "system-call-filter" in kit.host.confinement()
    for name in FORBIDDEN:
        number = FORBIDDEN[name][architecture.column]
        if number is not None:
            assert await attack(client, CALL.format(number=number)) == "EPERM", name
    # Newer than the tables: libraries go on without.
    assert await attack(client, CALL.format(number=999)) == "ENOSYS"
    assert await attack(client, CALL.format(number=435)) == "ENOSYS"  # clone3
    for flag in (0x0002_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000):
        clone = f"libc.syscall({220 if architecture.column else 56}, {flag} | 17, 0, 0, 0, 0)"
        code = f"libc = ctypes.CDLL(None, use_errno=True)\nr = {clone}\nif r == 0: os._exit(0)\n"
        code += "answer = 'done' if r > 0 else errno.errorcode[ctypes.get_errno()]"
        assert await attack(client, code) == "EPERM"


@with_filter
async def test_a_worker_of_emulated_gpus_makes_fewer_calls(make_host: MakeHost) -> None:
    """It connected to the D-Bus session bus of the server's user, a way to start programs."""
    architecture = syscall_filter.here()
    assert architecture is not None
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    assert "few-system-calls" in kit.host.confinement()
    numbers = [number for each in FOR_GPUS.values() if (number := each[architecture.column])]
    answers = [await attack(client, CALL.format(number=number)) for number in numbers]
    assert set(answers) == {"EPERM"}, list(zip(FOR_GPUS, answers, strict=False))
    for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
        assert await attack(client, f"socket.socket(1, socket.{kind})") == "EAFNOSUPPORT"
    pair = "a, b = socket.socketpair(1, socket.{})\na.send(b'x')\nanswer = b.recv(1)"
    assert await attack(client, pair.format("SOCK_STREAM")) == "b'x'"
    assert await attack(client, pair.format("SOCK_SEQPACKET")) == "b'x'"
    assert await attack(client, pair.format("SOCK_DGRAM")) == "EAFNOSUPPORT"


WALK = """
import ctypes, os, signal, sys, threading
libc = ctypes.CDLL(None)
number, victim = int(sys.argv[1]), int(sys.argv[2])
signal.alarm(2)  # for what waits
ones, zeros = (ctypes.create_string_buffer(each * 256) for each in (b"\\x01" + bytes(7), bytes(8)))
for first in (victim, 0, 1):
    for second in (0, 5, 8, 9):
        for at in (ones, zeros):
            words = (victim, second) if first == victim else (first, victim)
            last = ctypes.addressof(at) if first == victim else 19 + second
            libc.syscall(number, *map(ctypes.c_long, (*words, last, 0)))
"""
WALK_ALL = """
import concurrent.futures
def one(number):
    words = [sys.executable, "-ISc", {walk!r}, str(number), str({pid})]
    null = subprocess.DEVNULL
    return subprocess.run(words, stdin=null, stdout=null, stderr=null, cwd=os.environ["TMPDIR"])
with concurrent.futures.ThreadPoolExecutor(4) as threads:
    answer = len(list(threads.map(one, {numbers!r})))
"""


def facts_of(pid: int) -> list[object]:
    """Return all that a process of the same user could change of another one."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kept = [line for line in lines if line.startswith(("TracerPid", "Cpus", "Mems", "Sig", "Shd"))]
    priorities = os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)
    return [*kept, *priorities, Path(f"/proc/{pid}/limits").read_text()]


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.read(1) == b"x"  # it is started, and waits
        yield process
        process.kill()


@with_filter
@pytest.mark.parametrize("confined", [True, False])
async def test_no_call_of_a_worker_changes_a_process_of_the_same_user(
    make_host: MakeHost, victim: "subprocess.Popen[bytes]", *, confined: bool
) -> None:
    """By prlimit(2) a kernel ended its server, and by other calls it took its processors away."""
    if confined and landlock_version() < 6:
        pytest.skip("this kernel keeps no worker from signalling the processes of its user")
    kit = await make_host(
        own_uids=False, landlock=confined, confine=ALL if confined else frozenset[str]()
    )
    client, _ = await kit.connect(kit.lease())
    architecture = syscall_filter.here()
    assert architecture is not None
    tables = (*ALLOWED.items(), *FOR_GPUS.items(), *FORBIDDEN.items(), *CHECKED.items())
    found = {name: number for name, each in tables if (number := each[architecture.column])}
    walked = sorted(found.values()) if confined else [found["prlimit64"]]
    before = facts_of(victim.pid)
    code = WALK_ALL.format(walk=WALK, pid=victim.pid, numbers=walked)
    assert await attack(client, "import sys\n" + code) == str(len(walked))
    assert (facts_of(victim.pid) == before) is confined
    assert victim.poll() is None


async def test_without_the_filter_a_worker_makes_them(make_host: MakeHost) -> None:
    kit = await make_host(confine=ALL - {"system-calls"})
    client, _ = await kit.connect(kit.lease())
    made = "libc = ctypes.CDLL(None)\nanswer = libc.syscall(250, 0, -3, 0) > 0"  # keyctl
    if os.uname().machine == "x86_64":
        assert await attack(client, made) == "True"
    assert "system-call-filter" not in kit.host.confinement()


@with_filter
async def test_the_filter_holds_for_all_threads(make_host: MakeHost) -> None:
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    look = (
        "from pathlib import Path\n"
        "lines = []\n"
        "for path in Path('/proc/self/task').glob('*/status'):\n"
        "    try: lines += path.read_text().splitlines()\n"
        "    except (FileNotFoundError, ProcessLookupError): pass\n"
        "answer = sorted({line.split()[1] for line in lines if line.startswith('Seccomp:')})"
    )
    assert await attack(client, look) == "['2']"


@with_filter
async def test_programs_and_threads_start_under_the_filter(make_host: MakeHost) -> None:
    """CUDA starts threads, and Triton's and NVRTC's users start ptxas."""
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    run = "answer = subprocess.run(['/bin/echo', 'x'], capture_output=True).stdout.decode()"
    assert await attack(client, run) == "x\n"
    start = (
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()\nanswer = 'ran'"
    )
    assert await attack(client, start) == "ran"


@with_filter
async def test_a_worker_has_no_children_with_a_copy_of_its_memory(make_host: MakeHost) -> None:
    """Thousands of them, of one another, wait for each other in the kernel for minutes."""
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    assert await attack(client, "os.fork() or os._exit(0)\nanswer = 'forked'") == "EPERM"


# --- the processors -----------------------------------------------------------------------------

RAISE = "os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)\nanswer = 'yes'"
OWN, HAS_AUTOGROUPS = Path("/proc/self"), sandbox.AUTOGROUP.exists()
OTHER_SESSION = """
try: subprocess.run(["/bin/true"], start_new_session=True, check=True)
except OSError as error: answer = error.errno
else: answer = 0
"""


@with_filter
async def test_a_worker_gives_way_to_the_server_and_cannot_change_that(
    make_host: MakeHost,
) -> None:
    """Else hundreds of processes of a worker keep the server from answering for seconds."""
    kit = await make_host(confine=ALL - {"cgroup"})
    client, worker = await kit.connect(kit.lease())
    having(kit, "low-priority")
    assert nices_of(worker.process.pid) == {min(nice_of(OWN) + sandbox.NICE, 19)}
    assert await attack(client, RAISE) in {"EACCES", "EPERM"}
    if HAS_AUTOGROUPS:
        group = trio.Path(f"/proc/{worker.process.pid}/autogroup")
        assert (await group.read_text()).split()[2] == str(sandbox.NICE)
        # In a session of its own, a process would be compared with the whole of the server's.
        assert await attack(client, OTHER_SESSION) == str(errno.EPERM)
        up = "fd = os.open('/proc/self/autogroup', os.O_WRONLY)\nanswer = os.write(fd, b'-5')"
        assert await attack(client, up) in {"EPERM", "EACCES"}


async def test_without_the_property_a_worker_has_the_processors_as_the_server(
    make_host: MakeHost,
) -> None:
    kit = await make_host(confine=ALL - {"priority", "system-calls", "cgroup"})
    client, worker = await kit.connect(kit.lease())
    assert nice_of(OWN) == nice_of(Path(f"/proc/{worker.process.pid}"))
    assert await attack(client, OTHER_SESSION) == "0"
    assert "low-priority" not in kit.host.confinement()
    assert any("left out by" in line and "processors" in line for line in kit.log)


def test_a_group_with_a_weight_is_enough(tmp_path: Path) -> None:
    one = confinement.Confinement()
    assert "priority" in one.asked(None)
    assert "priority" in one.asked(LeaseCgroups(tmp_path, frozenset({"memory"})))
    weighs = LeaseCgroups(tmp_path, frozenset({"cpu", "memory"}))
    assert "priority" not in one.asked(weighs)
    assert "cpu-weight" in one.complete((), os.getpid(), weighs)


def nices_of(pid: int) -> set[int]:
    """Return those of a process's threads; one may end meanwhile."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.add(nice_of(task))
    return found


def nice_of(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[16])


# --- devices ------------------------------------------------------------------------------------

NODES = ("/dev/nvidia97", "/dev/nvidia98", "/dev/nvidia99")


@pytest.fixture
def nodes() -> Iterator[tuple[str, ...]]:
    """Make device nodes with the names of GPUs, behind which is the null device."""
    made: list[str] = []
    try:
        for node in NODES:
            os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            Path(node).chmod(0o666)
            made.append(node)
    except OSError as error:
        pytest.skip(f"no device nodes can be made here: {error}")
    else:
        yield NODES
    finally:
        for node in made:
            Path(node).unlink()


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes count as known although no driver has made the common ones."""
    monkeypatch.setattr(confinement, "NEEDED_NODES", ())


def inventory_of(nodes: tuple[str, ...]) -> Inventory:
    gpus = emulated_gpus(SERVER, len(nodes), 8 * GIB)
    return Inventory(gpus, nodes={gpu.id: (node,) for gpu, node in zip(gpus, nodes, strict=True)})


def use(path: str) -> str:
    return f"os.write(os.open({path!r}, os.O_RDWR), b'x')\nanswer = 'used'"


@as_root
async def test_a_worker_has_the_devices_of_its_lease_only(
    make_host: MakeHost, nodes: tuple[str, ...]
) -> None:
    kit = await make_host(inventory_of(nodes))
    client, _ = await kit.connect(kit.lease(gpus=2))
    having(kit, "private-devices")
    assert [await attack(client, use(node)) for node in nodes] == ["used", "used", "ENOENT"]
    assert await attack(client, use("/dev/null")) == "used"
    seen = set((await attack(client, "answer = ' '.join(os.listdir('/dev'))")).split())
    common = {Path(node).name for node in confinement.COMMON_NODES}
    assert seen - common == {
        *("null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm"),
        *("nvidia97", "nvidia98"),
    }
    # The machine's own are as they were.
    assert all(stat.S_ISCHR(os.stat(node).st_mode) for node in nodes)


@as_root
async def test_a_worker_that_is_moved_has_the_device_of_its_new_gpu_instead(
    make_host: MakeHost, nodes: tuple[str, ...]
) -> None:
    kit = await make_host(inventory_of(nodes))
    client, worker = await kit.connect(kit.lease(gpus=2))
    uses = [use(node) for node in nodes]
    first, second, third = (gpu.id for gpu in emulated_gpus(SERVER, len(nodes), 8 * GIB))
    assert isinstance(kit.host.helper, OwnHelper)
    helper, kept = kit.host.helper.helper, kit.kept(worker)
    # One GPU stays; the driver looks for the others from inside of the worker.
    seen: list[list[str]] = []
    refuses = False

    def resume(*_: object) -> helper_messages.Moved:
        root = Path(f"/proc/{kept.process.pid}/root")
        seen.append([node for node in nodes if Path(f"{root}{node}").exists()])
        return helper_messages.Moved("no", unmoved=True) if refuses else helper_messages.Moved()

    def maps_nccl(process: int, part: str) -> bool:
        return (process, part) == (kept.process.pid, "/libnccl.so")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_workers, "resume", resume)
        request = helper_messages.ResumeWorkers((), (worker.number,), 0, GIB)
        helper.carry_out(replace(request, moves={first: third, second: second}), ())
        assert [await attack(client, each) for each in uses] == ["ENOENT", "used", "used"]
        refuses = True
        helper.carry_out(replace(request, moves={third: first, second: second}), ())
        assert host_memory.maps(os.getpid(), "/libc.so")
        assert not host_memory.maps(os.getpid(), "/libnccl.so")
        patch.setattr(host_memory, "maps", maps_nccl)
        found, _ = helper.carry_out(replace(request, moves={third: first, second: second}), ())
        assert found == helper_messages.Moved(USES_NCCL, unmoved=True)
        saved = helper_messages.SuspendWorkers((), (worker.number,), 0, GIB, GIB)
        assert helper.carry_out(saved, ()) == (helper_messages.Moved(USES_NCCL), -1)
    assert seen == [list(nodes), list(nodes)]
    assert [await attack(client, each) for each in uses] == ["ENOENT", "used", "used"]


@as_root
async def test_without_confinement_a_worker_uses_any_device(
    make_host: MakeHost, nodes: tuple[str, ...]
) -> None:
    kit = await make_host(inventory_of(nodes[:2]), confine=frozenset({"system-calls"}))
    client, _ = await kit.connect(kit.lease())
    assert [await attack(client, use(node)) for node in nodes] == ["used"] * 3


@with_landlock
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
async def test_landlock_lists_the_devices_where_mounts_are_not_to_be_had(
    nodes: tuple[str, ...],
) -> None:
    """At a worker's start its GPUs are not known, so it may open all that are offered."""
    code = (
        "import os, sys\nfrom gpupool.remoting.worker import namespaces, sandbox\n"
        "devices = (*namespaces.STANDARD_DEVICES, *sys.argv[1:3])\n"
        "sandbox.forbid_new_privileges()\n"
        "assert sandbox.restrict_files((sys.prefix, sys.base_prefix), (), devices)\n"
        "for path in ('/dev/null', *sys.argv[1:]):\n"
        "    try: os.open(path, os.O_RDWR); print('used')\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "print('null' in os.listdir('/dev'))\n"
    )
    done = await trio.run_process([sys.executable, "-c", code, *nodes], capture_stdout=True)
    assert done.stdout.decode().split() == ["used", "used", "used", "PermissionError", "True"]


async def test_devices_are_not_narrowed_when_nvml_does_not_name_them(make_host: MakeHost) -> None:
    for nodes in (None, {GpuId("GPU-1"): ("/dev/nvidia-not-there",)}):
        limits = confinement.Confinement(nodes=nodes)
        assert "devices" not in limits.asked(None)
        assert any("NVML does not name" in line for line in limits.lacking(()))
    kit = await make_host(inventory_of(("/dev/nvidia-not-there",)))
    await kit.connect(kit.lease())
    assert not {"private-devices", "listed-devices"} & set(kit.host.confinement())


def test_what_does_not_confine_is_said_without_a_second_no() -> None:
    """The lines follow "not confined by"."""
    limits = confinement.Confinement(ports=(32768, 60999))
    lines = limits.lacking(())
    assert len(lines) > 5
    assert not [line for line in lines if line.startswith("no ")]


@as_root
async def test_a_host_that_may_not_enter_a_workers_mounts_claims_less(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement.worker_mounts, "may_enter", lambda _pid: False)  # pyright: ignore
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    assert await client.ask(b"e", b"x") == b"x"
    assert not {"private-devices", "private-shared-memory"} & set(kit.host.confinement())
    await kit.logged("a private /dev")


def test_the_nodes_of_a_mig_instance_are_read_from_the_drivers_files(tmp_path: Path) -> None:
    instance = tmp_path / "gpu3" / "mig" / "gi2"
    (instance / "ci0").mkdir(parents=True)
    assert mig_nodes(3, 2, 0, tmp_path) == ()
    text = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    (instance / "access").write_text(text.format(21))
    (instance / "ci0" / "access").write_text(text.format(22))
    nodes = ("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    assert mig_nodes(3, 2, 0, tmp_path) == nodes
    (instance / "access").write_text("something else")
    assert mig_nodes(3, 2, 0, tmp_path) == ()


def test_the_inventory_knows_device_nodes_of_all_real_gpus_or_says_none() -> None:
    named = [replace(device(n), nodes=(f"/dev/nvidia{n}",)) for n in range(2)]
    whole = Inventory.discover(SERVER, FakeNvml(named), emulated_count=1)
    assert dict(whole.device_nodes() or {}) == {
        GpuId("GPU-0"): ("/dev/nvidia0",),
        GpuId("GPU-1"): ("/dev/nvidia1",),
    }
    part = Inventory.discover(SERVER, FakeNvml(named), only=("1",))
    assert list(part.device_nodes() or {}) == [GpuId("GPU-1")]
    assert Inventory.discover(SERVER, FakeNvml([named[0], device(1)])).device_nodes() is None
    assert Inventory.discover(SERVER, None, emulated_count=1).device_nodes() == {}


# --- shared memory ------------------------------------------------------------------------------


@as_root
async def test_workers_of_a_lease_share_memory_files_and_no_others_see_them(
    make_host: MakeHost,
) -> None:
    kit = await make_host()
    (one, worker), (sibling, _) = [await kit.connect(kit.lease()) for _ in range(2)]
    other, _ = await kit.connect(kit.lease(2))
    having(kit, "private-shared-memory")
    outside = f"/dev/shm/gpupool-outside-{os.getpid()}"
    os.close(os.open(outside, os.O_CREAT | os.O_WRONLY))
    try:
        write = "open('/dev/shm/cuda.shm.1', 'w').write('mine')\nanswer = 'written'"
        assert await attack(one, write) == "written"
        look = "answer = os.listdir('/dev/shm')"
        assert await attack(one, look) == "['cuda.shm.1']"
        assert await attack(sibling, "answer = open('/dev/shm/cuda.shm.1').read()") == "mine"
        assert await attack(other, look) == "[]"
    finally:
        os.unlink(outside)
    user = kit.kept(worker).user
    assert user is not None
    memory = user.memory
    assert memory is not None
    assert memory.parent == users.SHARED_MEMORY
    await kit.host.kill_lease(kit.lease().id, "the test ends")
    assert not memory.exists()


@as_root
async def test_what_a_dead_worker_left_in_its_leases_memory_goes_with_it(
    make_host: MakeHost,
) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    other, _ = await kit.connect(kit.lease())
    having(kit, "private-shared-memory")
    name = f"cuda.shm.{worker.session.uid:x}.{worker.process.pid:x}.1"
    await attack(client, f"open('/dev/shm/{name}', 'w').write('x')")
    await attack(client, "open('/dev/shm/others', 'w').write('x')")
    worker.kill("the test")
    await worker.ended.wait()
    assert await attack(other, "answer = os.listdir('/dev/shm')") == "['others']"


# --- what is said -------------------------------------------------------------------------------


async def test_the_host_says_once_what_does_not_confine_its_workers(make_host: MakeHost) -> None:
    kit = await make_host(confine=ALL - {"network"}, warm_workers=2)
    await kit.logged("workers are not confined by")
    await kit.connect(kit.lease())
    lines = [line for line in kit.log if "workers are not confined by" in line]
    assert len(lines) == 1
    assert "left out by GPUPOOL_UNCONFINED" in lines[0]


def test_the_environment_leaves_out_properties_by_name() -> None:
    assert confinement.wanted({}) == ALL
    assert confinement.wanted({"GPUPOOL_UNCONFINED": "network, devices"}) == ALL - {
        "network",
        "devices",
    }
    with pytest.raises(UsageError, match="nettwork"):
        confinement.wanted({"GPUPOOL_UNCONFINED": "nettwork"})


def test_nodes_that_are_hidden_are_those_of_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance of a divided GPU keeps its GPU's node, and loses others' capabilities."""
    hidden: list[str] = []

    def narrow(_pid: int, nodes: list[str], _memory: Path | None) -> None:
        hidden.extend(nodes)

    monkeypatch.setattr(confinement.worker_mounts, "narrow", narrow)
    nodes = {
        GpuId("MIG-1"): ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"),
        GpuId("MIG-2"): ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21"),
        GpuId("GPU-3"): ("/dev/nvidia1",),
    }
    limits = confinement.Confinement(nodes=nodes)
    limits.narrow(1, ("private-devices",), [GpuId("MIG-2")], None)
    assert hidden == ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia1"]
