"""Code in a worker that attacks its server, its machine and the other workers, again and again."""

import random
import struct
from itertools import count
from pathlib import Path

import trio
from tests.remoting.control.control_cluster import request

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.client.session_answer import OpenedSession
from gpupool.remoting.transport.data_connection import SessionAddress, dial

FRAME = struct.Struct(">cI")
WORKERS = 2
ACT_S = 3.0
"""Each code has that long; then its lease ends, and with it all that it has started."""

FLOODS = (
    """
import array, os, socket, struct
s = budget._socket
data = struct.Struct(">BxHxxxxQ").pack(4, 0, 1024) + b"x" * 1000
fd = os.open("/dev/null", os.O_RDONLY)
for at in range(len(data)):
    rights = array.array("i", [fd] * 8)
    s.sendmsg([data[at:at + 1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
""",
    """
import socket, sys
from gpupool.remoting.protocol import worker_messages as m
control = socket.socket(fileno=int(sys.argv[1]))
while True:
    control.sendall(m.WORKER.encode(m.Log("x" * 200)) * 500)
""",
    """
import struct
while True:
    budget._socket.sendall(struct.Struct(">BxHxxxxQ").pack(2, 0, 0) * 4000)
""",
    "import os\nwhile True: os.write(2, bytes(range(256)) * 4000)",
    "while True: budget.reserve(0, 512)",
)

FILES = (
    """
import os
while True:
    os.mkdir("d"); os.chdir("d")
""",
    """
import itertools
for n in itertools.count():
    open(f"f{n}", "w").write("x")
""",
    """
import os
for n, path in enumerate(("/", "/etc", "/root", "/tmp", "/proc/self/root", "..", "../..")):
    os.symlink(path, f"link{n}")
os.mkfifo("pipe")
while True: pass
""",
    """
out = open("large", "wb")
while out.tell() < 1 << 30: out.write(bytes(1 << 20))
""",
)

PROCESSES = (
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    """
import subprocess, time
while True:
    try: subprocess.Popen(["/bin/sleep", "300"])
    except OSError: pass
""",
    """
import os, signal
while True:
    for pid in (-1, os.getppid(), *range(2, 40_000)):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            try:
                if pid != os.getpid(): os.kill(pid, number)
            except OSError: pass
""",
    "while True: pass",
    """
import os, sys
arguments = [sys.executable, "-ISc", "import os, sys, time\\nwhile True:\\n"
    "    try: os.posix_spawn(sys.executable, sys.orig_argv, {})\\n"
    "    except OSError: time.sleep(0.01)"]
os.posix_spawn(sys.executable, arguments, {})
""",
    """
import ctypes, time  # the child of vfork(2) has the memory of its parent, which waits for it
libc = ctypes.CDLL(None)
while True:
    if libc.syscall(58): time.sleep(0.01)
""",
)

MEMORY = (
    "held = []\nwhile True: held.append(bytearray(b'x' * (64 << 20)))",
    """
import mmap
held = []
while True:
    held.append(mmap.mmap(-1, 64 << 20)); held[-1].write(b"x" * (64 << 20))
""",
    """
import os
while True:
    with open(f"/dev/shm/{os.urandom(8).hex()}", "wb") as out: out.write(bytes(64 << 20))
""",
    """
import os
while True: os.write(os.memfd_create("x"), bytes(64 << 20))
""",
    """
import mmap, os
held = []
while True:
    fd = os.memfd_create("x"); os.write(fd, bytes(64 << 20))
    held.append(mmap.mmap(fd, 64 << 20)); os.close(fd)
""",
    """
import os  # without a name, in the memory of the lease
while True:
    name = f"/dev/shm/{os.urandom(8).hex()}"
    fd = os.open(name, os.O_CREAT | os.O_WRONLY); os.unlink(name); os.write(fd, bytes(64 << 20))
""",
    """
import array, os, socket  # descriptors on their way
held = []
while True:
    ends = socket.socketpair(); held.append(ends)
    fd = os.memfd_create("x"); os.write(fd, bytes(64 << 20))
    ends[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
""",
    """
import ctypes  # System V: memory, queues and semaphores, which outlive who made them
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
while True:
    made = libc.shmget(0, 64 << 20, 0o1666)
    if made >= 0: ctypes.memset(libc.shmat(made, None, 0), 1, 64 << 20)
    libc.semget(0, 1000, 0o1666)
    queue = libc.msgget(0, 0o1666)
    if queue >= 0: libc.msgsnd(queue, b"\\1" * 4096, 4088, 0o4000)
    for number in range(64): libc.shmat(number, None, 0)
""",
)

NETWORK = (
    """
import socket
while True:
    for port in PORTS:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try: socket.socket(socket.AF_INET, kind).connect(("127.0.0.1", port))
            except OSError: pass
""",
    """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
while True:
    for call in range(450):
        if call not in (0, 15, 34, 35, 57, 58, 60, 61, 62, 101, 129, 130, 219, 230, 231, 247, 434):
            libc.syscall(call, -1, -1, -1, -1, -1, -1)
""",
    """
import os, socket
KNOWN = ("/run/dbus/system_bus_socket", "/run/systemd/journal/socket", "/dev/log",
    "/run/systemd/private", "/run/docker.sock", "/var/run/nscd/socket")
while True:
    found = list(KNOWN)
    for top in ("/run", "/tmp", "/var", "/home"):
        for folder, _, names in os.walk(top): found += [f"{folder}/{name}" for name in names]
    for path in found:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            s = socket.socket(socket.AF_UNIX, kind)
            try: s.connect(path); s.sendall(b"x" * 1000)
            except OSError: pass
            s.close()
""",
)

WORKERS_CODE = {
    "worker_floods": FLOODS,
    "worker_files": FILES,
    "worker_processes": PROCESSES,
    "worker_memory": MEMORY,
    "worker_network": NETWORK,
}


async def hostile_workers(folder: Path, seconds: float, kind: str) -> int:
    """Take leases and run code in their workers; return how often it was run."""
    credentials = load_credentials(folder / "mallory.json")
    ports = (folder / "ports").read_text().split()
    # A worker's own directory is all that it may write in.
    before = f"import os\nos.chdir(os.environ['TMPDIR'])\nPORTS = ({', '.join(ports)},)\n"
    codes = [before + code for code in WORKERS_CODE[kind]]
    tried = count()

    async def one(first: int) -> None:
        async with connect_pool(credentials) as pool:
            for number in count(first):
                try:
                    hold = await pool.allocate(request(pool, 1, 0.25), wait_s=20)
                    with trio.move_on_after(ACT_S):
                        await run_code(hold, codes[number % len(codes)])
                    next(tried)
                    await hold.release()
                except (GpupoolError, OSError):
                    await trio.sleep(random.uniform(0.05, 0.2))

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for number in range(WORKERS):
                nursery.start_soon(one, number)
    return next(tried)


async def run_code(hold: LeaseHandle, code: str) -> None:
    """Run code in a worker of the lease, and wait for its answer or its end."""
    (opened,) = await hold.open_session("hostile", "hostile.py")
    assert isinstance(opened, OpenedSession)
    target = SessionAddress(
        opened.session, opened.ticket, opened.certificate_sha256, unix=opened.unix
    )

    def talk() -> None:
        stream = dial(target)
        body = code.encode()
        stream.send_buffers([FRAME.pack(b"x", len(body)), body])
        stream.recv_into(memoryview(bytearray(1)))
        stream.close()

    await trio.to_thread.run_sync(talk, abandon_on_cancel=True)
