"""The privileged helper's process behind a socket, as the service manager starts it."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.remoting.control.control_kit import make_authority

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import Server
from gpupool.remoting.host.suspension import spilled_memory
from gpupool.remoting.host.worker_helper import HelperSettings, WorkerHelper
from gpupool.remoting.privileges import former_ca, helper_process
from gpupool.remoting.privileges.kept_signer import ask_for_signer
from gpupool.remoting.privileges.remote_helper import RemoteHelper
from gpupool.remoting.protocol import helper_messages as m
from gpupool.remoting.protocol import worker_messages
from gpupool.remoting.protocol.sealed_key import is_sealed
from gpupool.remoting.transport.authority.ca_bundle import belongs
from gpupool.remoting.transport.authority.ca_key import AuthoritySigner
from gpupool.remoting.transport.pki import create_key_and_csr

PrivilegedHelper = tuple[socket.socket, "subprocess.Popen[bytes]"]


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[PrivilegedHelper]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (tmp_path / "state").mkdir()
    environment = os.environ | {"STATE_DIRECTORY": str(tmp_path / "state")}
    command = [sys.executable, "-m", "gpupool.remoting.privileges.keeper_main"]
    # As sd_listen_fds(3) has it.
    process = subprocess.Popen(
        ["/bin/bash", "-c", f'exec "$0" "$@" 3<&{theirs.fileno()}', *command],
        pass_fds=(theirs.fileno(),),
        env=environment,
        stderr=subprocess.PIPE,
    )
    theirs.close()
    yield ours, process
    ours.close()
    process.wait(20)
    assert process.stderr is not None
    process.stderr.close()


@dataclass
class Worker:
    pid: int
    pidfd: int
    directory: Path
    control: socket.socket

    def close(self) -> None:
        os.close(self.pidfd)
        self.control.close()


async def start(helper: RemoteHelper, number: int) -> Worker:
    """Start a worker that says that it is ready."""
    control, theirs = socket.socketpair()
    errors, their_errors = os.pipe()
    started, pidfd = await helper.ask_for(m.StartWorker(number), theirs.fileno(), their_errors)
    theirs.close()
    os.close(their_errors)
    os.close(errors)
    await helper.ask(m.ConfineWorker(number))
    control.setblocking(False)
    reader = worker_messages.WORKER.reader()
    with trio.fail_after(60):
        while reader.next() is None:
            reader.feed(await trio.socket.from_stdlib_socket(control).recv(65536))
    return Worker(started.pid, pidfd, Path(started.directory), control)


async def stops_and_goes_on(remote: RemoteHelper, worker: Worker) -> None:
    """Suspend a worker, which stays so, and another time, which does not."""
    memory = 1 << 30
    suspend = m.SuspendWorkers((1,), (), 0, memory, memory)
    status = trio.Path(f"/proc/{worker.pid}/status")
    with pytest.raises(GpupoolError, match="there is no worker 2"):
        await remote.ask(replace(suspend, stop=(2,)))
    assert await remote.ask(suspend) == m.Moved()
    assert "State:\tT" in await status.read_text()
    resume = m.ResumeWorkers((1,), (), 0, memory)
    assert await remote.ask(resume) == m.Moved()
    assert "State:\tT" not in await status.read_text()
    assert await remote.ask(suspend) == m.Moved()


async def test_a_worker_lives_and_dies_by_its_helper(helper: PrivilegedHelper) -> None:
    sock, _process = helper
    remote = RemoteHelper(sock)
    async with remote.running():
        await remote.ask(m.Open(False, {}))
        worker = await start(remote, 1)
        directory = trio.Path(worker.directory)
        assert "no-new-privileges" in (await remote.ask(m.AskConfinement(1))).holds
        given_user = await remote.ask(
            m.AssignWorker(1, LeaseId(7), (), 1 << 30, "ada", across=False)
        )
        assert (given_user.uid >= 52_000) == (os.geteuid() == 0)
        assert await directory.exists()
        await stops_and_goes_on(remote, worker)
        remote.kill(1)
        with trio.fail_after(10):
            await trio.lowlevel.wait_readable(worker.pidfd)
        assert await remote.ask(m.ReapWorker(1)) == m.Reaped(-signal.SIGKILL)
        assert await remote.ask(m.BuryWorker(1)) == m.Buried(out_of_memory=False)
        worker.close()
        assert not await directory.exists()
        assert not await trio.Path(f"/proc/{worker.pid}").exists()
        await remote.ask(m.Close())
        assert not await directory.parent.exists()


async def test_a_call_that_fails_by_a_bug_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server awaits each answer despite cancellation: it would have waited for ever."""

    def fail(*_: object) -> m.Answered:
        raise ValueError("a name that nobody thought of")

    monkeypatch.setattr(WorkerHelper, "carry_out", fail)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    said: list[str] = []
    server = helper_process.HelperServer(
        theirs, WorkerHelper(HelperSettings(tmp_path, None), said.append), None, said.append
    )
    remote = RemoteHelper(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, server.run)
        try:
            async with remote.running():
                with trio.fail_after(10), pytest.raises(GpupoolError, match="cannot do that"):
                    await remote.ask(m.MeasureFiles())
        finally:
            ours.close()
    server.close()
    theirs.close()
    assert "a name that nobody thought of" in said[0]


async def test_a_worker_whose_descriptor_finds_no_room_is_not_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The kernel drops a descriptor that a process has no room for: that ended the server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    remote, asked = RemoteHelper(ours), list[str]()
    helper = trio.socket.from_stdlib_socket(theirs)

    async def play_helper() -> None:
        answers: dict[str, list[m.Answer]] = {
            "StartWorker": [m.Started(7, 0, "/nowhere")],
            "KillWorker": [],
            "BuryWorker": [
                m.Failed("a worker that lives cannot be reaped", ""),
                m.Buried(out_of_memory=False),
            ],
        }
        while True:
            number, request = m.HELPER.decode(m.Request, await helper.recv(1 << 16))
            asked.append(type(request).__name__)
            if waiting := answers[asked[-1]]:
                await helper.send(m.HELPER.encode(waiting.pop(0), number))

    with ours, helper:
        async with trio.open_nursery() as nursery, remote.running():
            nursery.start_soon(play_helper)
            with pytest.raises(GpupoolError, match="no worker can be started"):
                await remote.ask_for(m.StartWorker(1), ours.fileno(), ours.fileno())
            nursery.cancel_scope.cancel()
    assert asked == ["StartWorker", "KillWorker", "BuryWorker", "BuryWorker"]


async def test_the_end_of_a_helper_is_noticed_and_is_that_of_its_workers(
    helper: PrivilegedHelper,
) -> None:
    sock, process = helper
    remote = RemoteHelper(sock)
    with pytest.RaisesGroup(pytest.RaisesExc(GpupoolError, match="privileged helper has ended")):
        async with remote.running():
            await remote.ask(m.Open(False, {}))
            worker = await start(remote, 1)
            process.kill()
            with trio.CancelScope(shield=True), trio.fail_after(10):
                await trio.lowlevel.wait_readable(worker.pidfd)
            worker.close()
            await trio.sleep_forever()
    with pytest.raises(GpupoolError, match="privileged helper has ended"):
        await remote.ask(m.AskConfinement(1))


def test_a_helpers_signer_has_its_secret_where_the_server_cannot_read_it(
    helper: PrivilegedHelper, tmp_path: Path
) -> None:
    """Under systemd the signer had the server's user, and its secret lay in its directory."""
    sock, _process = helper
    state = tmp_path / "server"
    state.mkdir(mode=0o700)
    authority = make_authority()
    (state / "ca.key").write_bytes(authority.key_pem)  # of an older build
    folder = os.open(state, os.O_RDONLY)
    vault = ask_for_signer(sock, folder)
    os.close(folder)
    assert vault.has_own_user
    sealed = (state / "ca.key").read_bytes()
    assert is_sealed(sealed)
    assert sorted(path.name for path in state.iterdir()) == ["ca.key"]
    assert (tmp_path / "state" / "signer.key").stat().st_mode & 0o777 == 0o600
    _key, csr = create_key_and_csr(ServerId("0" * 12))
    signer = AuthoritySigner(replace(authority, key_pem=sealed), vault, lambda: 0)
    signer.sign(ServerId("0" * 12), csr)
    # The signer can load no module any more; one that it lacked was that of names in addresses.
    observed = Server(ServerId("0" * 12), "a", "a.example:1", voter=True)
    assert signer.sign_web(csr, observed)

    async def use_the_helper() -> None:
        remote = RemoteHelper(sock)
        async with remote.running():
            await remote.ask(m.Open(False, {}))
            await remote.ask(m.Close())

    trio.run(use_the_helper)
    vault.end()


def test_a_helpers_signer_takes_a_former_ca_that_its_server_can_read(
    helper: PrivilegedHelper, tmp_path: Path
) -> None:
    """The helper is root: it takes the files as descriptors, and opens none for its server."""
    sock, _process = helper
    state, ca = tmp_path / "server", tmp_path / "ca"
    state.mkdir(mode=0o700)
    ca.mkdir()
    authority = make_authority()
    (ca / "ca.pem").write_bytes(authority.certificate_pem)
    (ca / "ca.key").write_bytes(authority.key_pem)
    folder = os.open(state, os.O_RDONLY)
    with former_ca.opened(ca) as former:
        vault = ask_for_signer(sock, folder, former)
    os.close(folder)
    assert vault.former is not None
    assert is_sealed(vault.former.key_pem)
    assert belongs(vault.former.key_pem, authority.certificate_pem)
    vault.end()


def test_a_helpers_signer_reads_no_file_that_its_server_cannot(
    helper: PrivilegedHelper, tmp_path: Path
) -> None:
    sock, process = helper
    state, ca = tmp_path / "server", tmp_path / "ca"
    state.mkdir(mode=0o700)
    ca.mkdir()
    for name in ("ca.pem", "ca.key"):
        (ca / name).write_bytes(b"x")
    folder = os.open(state, os.O_RDONLY)
    # Who may not read a file can have a descriptor of its place, and of the folder.
    places = [os.open(ca / name, os.O_PATH) for name in ("ca.pem", "ca.key")]
    with pytest.raises(GpupoolError, match="signer of the CA's key does not start"):
        ask_for_signer(sock, folder, former_ca.FormerCa(places[0], places[1]))
    for each in (folder, *places):
        os.close(each)
    assert process.poll() is None


def test_no_signer_gets_the_directory_of_another_user(
    helper: PrivilegedHelper, tmp_path: Path
) -> None:
    """The signer reads and writes there as root."""
    sock, process = helper
    theirs = Path("/usr")
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 12345, 12345)
    folder = os.open(theirs, os.O_RDONLY)
    with pytest.raises(GpupoolError, match="the privileged helper starts no signer"):
        ask_for_signer(sock, folder)
    os.close(folder)
    assert process.poll() is None


def test_a_server_that_is_gone_takes_its_workers_along(helper: PrivilegedHelper) -> None:
    sock, process = helper

    async def begin() -> Worker:
        remote = RemoteHelper(sock)
        async with remote.running():
            await remote.ask(m.Open(False, {}))
            return await start(remote, 1)

    worker = trio.run(begin)
    sock.close()
    assert select.select([worker.pidfd], [], [], 20)[0]
    worker.close()
    assert process.wait(20) == 0
    assert not worker.directory.parent.exists()


@pytest.mark.parametrize("packet", [b"x", b"\xff\0\0\0\1\xa0", b"\0\0\0\0\1\xa0", b"x" * 70_000])
def test_a_packet_that_makes_no_sense_ends_the_helper(
    helper: PrivilegedHelper, packet: bytes
) -> None:
    sock, process = helper
    sock.send(packet)
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert b"broke the protocol" in process.stderr.read()


async def test_the_file_for_memory_goes_to_the_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The privileged helper encrypts its content, and the server's user owns the file."""
    found: list[int] = []

    def suspend(
        _helper: WorkerHelper, _asked: m.SuspendWorkers, files: Sequence[int]
    ) -> m.Answered:
        found.extend([os.pwrite(file, b"sealed", 0) for file in files] or [-1])
        return m.Moved(spilled=7), -1

    monkeypatch.setattr(WorkerHelper, "carry_out", suspend)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = helper_process.HelperServer(
        theirs, WorkerHelper(HelperSettings(tmp_path, None), print), None, print
    )
    remote, file = RemoteHelper(ours), spilled_memory.open_file(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, server.run)
        try:
            async with remote.running():
                for spill, descriptor in ((True, file), (False, file), (True, ours.fileno())):
                    request = m.SuspendWorkers((), (), 7, 0, 0, spill=spill)
                    with trio.fail_after(10):
                        assert (await remote.ask(request, descriptor)).spilled == 7
        finally:
            ours.close()
    server.close()
    theirs.close()
    assert found == [6, -1, -1]
    assert os.pread(file, 99, 0) == b"sealed"
    os.close(file)
