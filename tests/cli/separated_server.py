"""A program that gives up root's privileges as ``gpupool join`` does, and then does harm.

It stands for a server that a stranger has taken over. It prints one JSON object.
"""

import contextlib
import ctypes
import errno
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.values import Emulation
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.daemon.separate import Separated, separate
from gpupool.remoting.privileges.remote_helper import RemoteHelper
from gpupool.remoting.protocol import helper_messages as m
from gpupool.remoting.protocol import worker_messages

PTRACE_ATTACH = 16


def outcome(act: Callable[[], object]) -> str:
    """Return "done", or the name of the error."""
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except GpupoolError as error:
        return str(error)
    return "done"


def call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def say(control: socket.socket, message: worker_messages.HostMessage) -> None:
    control.sendall(worker_messages.WORKER.encode(message))


async def start(helper: RemoteHelper, number: int) -> tuple[int, int, Path, socket.socket]:
    """Start a worker that is ready; return its pid, pidfd, directory and control socket."""
    control, theirs = socket.socketpair()
    errors, their_errors = os.pipe()
    started, pidfd = await helper.ask_for(m.StartWorker(number), theirs.fileno(), their_errors)
    theirs.close()
    os.close(their_errors)
    await helper.ask(m.ConfineWorker(number))
    reader = worker_messages.WORKER.reader()
    stream = trio.socket.from_stdlib_socket(control)
    control.setblocking(False)
    while (frame := reader.next()) is None:
        data = await stream.recv(65536)
        assert data, os.read(errors, 65536).decode()
        reader.feed(data)
    assert isinstance(
        worker_messages.WORKER.decode(worker_messages.WorkerMessage, frame), worker_messages.Ready
    )
    control.setblocking(True)
    return started.pid, pidfd, Path(started.directory), control


def assignment(number: int, lease: int) -> m.AssignWorker:
    return m.AssignWorker(number, LeaseId(lease), (), 1 << 30, "ada", across=False)


async def asked(helper: RemoteHelper, request: m.RequestFor[m.Answer], *descriptors: int) -> str:
    try:
        await helper.ask(request, *descriptors)
    except GpupoolError as error:
        return str(error)
    return "done"


def uid_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[2])


def assign_message(uid: int) -> worker_messages.Assign:
    return worker_messages.Assign(
        lease=1, session=bytes(16), ticket=bytes(32), door="arrays", program="x",
        cuda_visible="", devices=(), uid=uid,
    )  # fmt: skip


async def say_who(helper: RemoteHelper, number: int, lease: int, uid: int | None) -> str:
    """Tell an assigned worker to become ``uid``; return its identity, or its end."""
    pid, pidfd, _directory, control = await start(helper, number)
    await helper.ask(m.AskConfinement(number))
    given = None
    if lease:
        given = await helper.ask(assignment(number, lease))
    budget, theirs = socket.socketpair()
    chosen = uid if uid is not None else (given.uid if given else 0)
    socket.send_fds(
        control, [worker_messages.WORKER.encode(assign_message(chosen))], [theirs.fileno()]
    )
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    with trio.move_on_after(8):
        while not poll.poll(0):
            if uid_of(pid) >= 52_000:
                budget.close()
                return "a user of its own"
            if not lease and trio.current_time() > 0 and await _waits(pid):
                return f"waits as {uid_of(pid)}"
            await trio.sleep(0.01)
        return "ended"
    return "hangs"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _waits(pid: int) -> bool:
    """Return whether a process does nothing for a while."""
    for _ in range(20):
        if state_of(pid) != "S":
            return False
        await trio.sleep(0.01)
    return True


def harm_the_signer(signer: int, state: Path) -> dict[str, str]:
    """Try to get at the secret that opens the CA's key."""
    return {
        "read the signer's secret": outcome((state / "keeper" / "signer.key").read_bytes),
        "change its record": outcome((state / "keeper" / "signer-record.jsonl").unlink),
        "read its memory": outcome(lambda: Path(f"/proc/{signer}/mem").open("rb")),
        "trace it": outcome(lambda: call("ptrace", PTRACE_ATTACH, signer, None, None)),
        "kill it": outcome(lambda: os.kill(signer, signal.SIGKILL)),
    }


def harm(pid: int, directory: Path, helper_pid: int, secret: Path) -> dict[str, str]:
    """Try operations that need privileges."""
    return {
        "setuid": outcome(lambda: os.setuid(0)),
        "setuid to a worker's": outcome(lambda: os.setuid(52_000)),
        "read root's file": outcome(lambda: secret.read_text()),
        "read shadow": outcome(lambda: Path("/etc/shadow").read_text()),
        "list a worker's directory": outcome(lambda: os.listdir(directory)),
        "write a worker's directory": outcome(lambda: (directory / "x").write_text("x")),
        "write beside it": outcome(lambda: (directory.parent / "x").write_text("x")),
        "kill a worker": outcome(lambda: os.kill(pid, signal.SIGKILL)),
        "trace a worker": outcome(lambda: call("ptrace", PTRACE_ATTACH, pid, None, None)),
        "trace the helper": outcome(lambda: call("ptrace", PTRACE_ATTACH, helper_pid, None, None)),
        "read a worker's memory": outcome(lambda: Path(f"/proc/{pid}/mem").open("rb")),
        "read the helper's memory": outcome(lambda: Path(f"/proc/{helper_pid}/mem").open("rb")),
        "mount": outcome(lambda: call("mount", None, b"/", None, 1 << 18, None)),
        "unshare": outcome(lambda: call("unshare", 0x2000_0000)),
        "chown": outcome(lambda: os.chown(directory.parent, os.getuid(), -1)),
        "listen below 1024": outcome(lambda: socket.create_server(("127.0.0.1", 81)).close()),
        "change root": outcome(lambda: os.chroot("/")),
    }  # fmt: skip


async def against_the_helper(helper: RemoteHelper) -> dict[str, str]:
    """Send forbidden requests to the privileged helper."""
    control, theirs = socket.socketpair()
    tries: dict[str, tuple[m.RequestFor[m.Answer], *tuple[int, ...]]] = {
        "open again": (m.Open(False, {}),),
        "other nodes": (m.Open(False, {GpuId("x"): ("/dev/sda",)}),),
        "a worker twice": (m.StartWorker(1), theirs.fileno(), 0),
        "a number below 0": (m.StartWorker(-1), theirs.fileno(), 0),
        "no pipe": (m.StartWorker(77), theirs.fileno(), control.fileno()),
        "reap the living": (m.ReapWorker(1),),
        "bury the living": (m.BuryWorker(1),),
        "another's worker": (m.ConfineWorker(4711),),
        "assign": (assignment(1, 7),),
        "assign twice": (assignment(1, 8),),
    }
    found = {name: await asked(helper, *request) for name, request in tries.items()}
    helper.kill(4711)
    return found


def own_status() -> dict[str, list[str]]:
    status = Path("/proc/self/status").read_text().splitlines()
    wanted = ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    return {name: fields[name].split() for name in wanted}


async def run(separated: Separated, secret: Path) -> dict[str, object]:
    helper = separated.helper
    assert helper is not None
    helper_pid = helper.pid
    found: dict[str, object] = {**own_status()}
    scores = [Path(f"/proc/{each}/oom_score_adj") for each in ("self", helper_pid)]
    found["scores"] = [int(each.read_text()) for each in scores]
    async with helper.running():
        await helper.ask(m.Open(False, {}))
        pid, _pidfd, directory, _control = await start(helper, 1)
        found["claims"] = (await helper.ask(m.AskConfinement(1))).holds
        found["harm"] = harm(pid, directory, helper_pid, secret)
        signer, state_dir = separated.signer().pid, separated.options.state_dir
        found["harm to the signer"] = harm_the_signer(signer, state_dir)
        found["asked"] = await against_the_helper(helper)
        found["stay root"] = await say_who(helper, 2, 9, -1)
        found["another's user"] = await say_who(helper, 3, 9, 52_333)
        found["its own user"] = await say_who(helper, 4, 9, None)
        found["unassigned"] = await say_who(helper, 5, 0, -1)
        found["pids"] = [pid, helper_pid]
        if "--die" in sys.argv:
            print(json.dumps(found), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        await helper.ask(m.Close())
    return found


def main() -> None:
    folder, secret = Path(sys.argv[1]), Path(sys.argv[2])
    logging.basicConfig(level=logging.INFO)
    options = JoinOptions(
        token="x", address=None, listen=None, advertise=None, state_dir=folder, name="a",
        pool_name="lab", witness=False, emulate=Emulation(1, 1 << 30),
                                                                       gpm="auto",
                                                                       gpus=(),
        data_encryption="tls", ca=None, operator_token=False, client_timeout_s=10,
        drain_timeout_s=0, labels=(),
    )  # fmt: skip
    separated = separate(options, logging.getLogger())
    try:
        found = trio.run(run, separated, secret)
    finally:
        with contextlib.suppress(ChildProcessError):
            separated.end()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
