"""How workers end: by their client, by a crash, by an order, with their host; and the remains."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from host_kit import GIB, SERVER, EchoClient, MakeHost

from gpupool.pool.errors import GpupoolError, LeaseLostError, StorageError
from gpupool.pool.model.units import MIB
from gpupool.remoting.host import orphan_reaper, spawn
from gpupool.remoting.host.host_parts import HostLimits
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.worker_pool import why_there
from gpupool.remoting.protocol import worker_messages

DIE_S = 10.0
"""Bounds every wait for a death; normally it takes milliseconds."""


async def ends(client: EchoClient) -> bool:
    """Return whether the client saw the end of its connection."""
    with trio.move_on_after(DIE_S):
        return await client.at_end()
    return False


def test_what_the_machine_refuses_a_worker_is_said(tmp_path: Path) -> None:
    """Such as room on a full disk; it is no bug."""
    near, far = socket.socketpair()
    helper, line = socket.socketpair()
    with near, far, helper, line, (tmp_path / "errors").open("wb") as errors:
        worker = spawn.start_process(far.fileno(), line.fileno(), errors.fileno(), tmp_path)
        gone = str(tmp_path / "gone")
        start = worker_messages.Start(False, False, False, gone, (), (), {"arrays": "json:dumps"})
        helper.sendall(worker_messages.WORKER.encode(start))
        far.close()
        reader = worker_messages.WORKER.reader()
        while (frame := reader.next()) is None:
            reader.feed(near.recv(65536))
        worker.wait()
    said = worker_messages.WORKER.decode(worker_messages.WorkerMessage, frame)
    assert said == worker_messages.Ended("its machine says: No such file or directory", failed=True)


async def test_client_that_closes_ends_its_worker(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    assert await client.reserve(GIB)
    client.stream.close()
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    assert worker.process.returncode == 0
    assert worker.exit_reason() == "the client has closed"
    assert kit.host.budget.used_on(kit.host.gpus()[0].id) == 0
    assert kit.host.worker_count() == {kit.lease().id: 0}
    assert not worker.directory.exists()


async def test_client_that_vanishes_while_the_door_is_busy(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    await client.send(b"z")
    client.stream.close()
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    assert worker.exit_reason() == "the client has gone"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (b"S", "killed by SIGSEGV"),
        pytest.param(b"X", "exited with code 7", marks=pytest.mark.long),
        pytest.param(b"!", "RuntimeError: the door fell off", marks=pytest.mark.long),
    ],
)
async def test_crash_harms_nobody_else(make_host: MakeHost, command: bytes, reason: str) -> None:
    kit = await make_host()
    lease = kit.lease()
    client, worker = await kit.connect(lease)
    neighbour, _ = await kit.connect(lease)
    assert await client.reserve(GIB)
    assert not await neighbour.reserve(1)
    await client.send(command)
    assert await ends(client)
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    assert worker.exit_reason() == reason
    await kit.logged(f"lease 7f3a ended: {reason}")
    assert await neighbour.reserve(GIB)
    assert kit.host.worker_count() == {lease.id: 1}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\xff" * 100, "it broke the protocol: oversize frame"),
        (b"\x00\x00\x00\x01\x00\xff", "it broke the protocol: malformed CBOR"),
        pytest.param(
            b"\x00\x00\x00\x01\x63\xa0",
            "it broke the protocol: unknown message",
            marks=pytest.mark.long,
        ),
        pytest.param(
            b"\x00\x00\x00\x01\x03\xa0",
            "it broke the protocol: malformed message",
            marks=pytest.mark.long,
        ),
        (
            worker_messages.WORKER.encode(worker_messages.Ready(b"", (), "")),
            "it sent Ready out of turn",
        ),
    ],
)
async def test_worker_that_speaks_nonsense_is_killed(
    make_host: MakeHost, said: bytes, reason: str
) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    await client.send(b"g", said)
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    assert worker.exit_reason().startswith(reason)


async def test_worker_that_hangs_up_on_its_host_ends(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    await client.send(b"q")
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    # Unless it notices first that it cannot report any more.
    assert worker.exit_reason() in ("it closed its control socket", "exited with code 3")


async def test_lease_that_takes_too_much_of_the_servers_memory_loses_a_worker(
    make_host: MakeHost,
) -> None:
    few = HostLimits(sample_interval_s=0.01, host_memory=0, host_memory_each=0)
    kit = await make_host(limits=replace(few, host_memory_each=GIB))
    client, _ = await kit.connect(kit.lease())
    assert await client.ask(b"e", b"x") == b"x"
    assert not [line for line in kit.log if "ended" in line]
    inventory = Inventory.discover(SERVER, None, emulated_count=1, emulated_memory=1 << 50)
    kit = await make_host(inventory, limits=few)
    with contextlib.suppress(GpupoolError):  # it may lose it at once
        await kit.open(kit.lease(memory=1 << 20))
    await kit.logged("of this server's memory, and may have 1 MiB")


@pytest.mark.long
async def test_what_a_worker_has_started_takes_memory_of_its_lease(make_host: MakeHost) -> None:
    """Also children of a thread other than the first: the kernel lists them apart."""
    few = HostLimits(sample_interval_s=0.01, host_memory=0, host_memory_each=256 * MIB)
    kit = await make_host(limits=few)
    client, worker = await kit.connect(kit.lease(memory=1 << 20))
    code = (
        "import subprocess, sys, threading, time\n"
        "child = 'held = bytearray(b\"x\") * {size}; import time; time.sleep(300)'\n"
        "def start():\n    for _ in range(4):\n"
        "        subprocess.Popen([sys.executable, '-SE', '-c', child])\n    time.sleep(300)\n"
        "threading.Thread(target=start, daemon=True).start()\nanswer = 'on'"
    )
    assert await client.ask(b"x", code.format(size=1 << 20).encode()) == b"on"
    for _ in range(5):
        assert await client.ask(b"e", b"x") == b"x"
        await trio.sleep(0.02)
    assert not worker.ended.is_set()
    assert await client.ask(b"x", code.format(size=3 << 25).encode()) == b"on"
    await kit.logged("of this server's memory, and may have 257 MiB")


async def test_killed_worker_returns_its_memory(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    client, worker = await kit.connect(lease)
    neighbour, _ = await kit.connect(lease)
    assert await client.reserve(GIB)
    os.kill(worker.process.pid, signal.SIGKILL)
    assert await ends(client)
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    assert await neighbour.reserve(GIB)


async def test_lease_ends_with_all_of_its_workers(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    busy, busy_worker = await kit.connect(lease)
    await busy.send(b"z")
    stopped, stopped_worker = await kit.connect(lease)
    os.kill(stopped_worker.process.pid, signal.SIGSTOP)
    waiting = kit.worker_of(await kit.open(lease))
    other, _ = await kit.connect(kit.lease(0x7F3B))
    with trio.fail_after(DIE_S):
        await kit.host.kill_lease(lease.id, "an operator ended it")
    for worker in (busy_worker, stopped_worker, waiting):
        assert worker.process.returncode == -signal.SIGKILL
        assert orphan_reaper.start_time_of(worker.process.pid) is None
    assert await ends(busy)
    assert await ends(stopped)
    assert kit.host.budget.leases() == (0x7F3B,)
    assert await other.ask(b"e", b"x") == b"x"
    await kit.host.kill_lease(lease.id, "twice does no harm")


async def test_lease_that_ends_while_a_session_opens(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    lost: list[LeaseLostError] = []

    async def attempt() -> None:
        with pytest.raises(LeaseLostError) as caught:
            await kit.open(lease)
        lost.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempt)
        await trio.testing.wait_all_tasks_blocked()
        await kit.host.kill_lease(lease.id, "the client has gone")
    assert len(lost) == 1
    assert kit.host.worker_count() == {}
    assert kit.host.budget.leases() == ()
    await kit.open(kit.lease(0x7F3B))  # takes over the process that had been started


async def test_session_whose_client_never_comes(make_host: MakeHost) -> None:
    kit = await make_host(limits=HostLimits(connect_timeout_s=0.05))
    info = await kit.open(kit.lease())
    worker = kit.worker_of(info)
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    assert worker.exit_reason() == "its client never connected"
    assert not kit.host.knows_session(info.session)


async def test_output_of_a_worker_is_logged_up_to_a_limit(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    await client.ask(b"p", b"from the driver\n")
    await kit.logged("lease 7f3a: from the driver")
    for _ in range(10):
        await client.ask(b"p", b"x" * 50_000 + b"\n" + b"line\n" * 1000)
        await client.ask(b"l", b"talk " * 1000)
    client.stream.close()
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    await kit.logged("nothing more of it")
    assert sum(len(line) for line in kit.log if "line" not in line) < 80_000
    assert len([line for line in kit.log if line.endswith(": line")]) < 11_000


# --- with the host ------------------------------------------------------------------------------

HOST_PROGRAM = """
import os, sys
from pathlib import Path
import trio
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.worker_helper import HelperSettings

async def main():
    directory = Path(sys.argv[1])
    inventory = Inventory.discover("s", None, emulated_count=1, emulated_memory=1 << 30)
    workers = HelperSettings(directory, directory, own_uids=sys.argv[2] == "own")
    host = HostSupervisor(inventory, workers, warm_workers=3)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        while not host.worker_pool.workers or not all(
            w.ready.is_set() for w in host.worker_pool.workers.values()
        ) or len(host.worker_pool.workers) < 3:
            await trio.sleep(0.01)
        print(*(w.process.pid for w in host.worker_pool.workers.values()), flush=True)

trio.run(main)
"""


@pytest.mark.parametrize("uids", ["own", pytest.param("same", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "stop", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_workers_die_with_their_host(tmp_path: Path, uids: str, stop: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOST_PROGRAM), str(tmp_path), uids],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout is not None
        pids = [int(text) for text in process.stdout.readline().split()]
        descriptors = [os.pidfd_open(pid) for pid in pids]
        started = {pid: orphan_reaper.start_time_of(pid) for pid in pids}
        # Even one that does nothing at all any more.
        os.kill(pids[0], signal.SIGSTOP)
        process.send_signal(stop)
        process.wait(DIE_S)
    try:
        assert len(pids) == 3
        for descriptor in descriptors:
            assert wait_readable(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert all(orphan_reaper.start_time_of(pid) != started[pid] for pid in pids)
    directory = Path(json.loads((tmp_path / orphan_reaper.FILE_NAME).read_text())["directory"])
    assert directory.exists() == (stop is signal.SIGKILL)
    assert orphan_reaper.reap_orphans(tmp_path) == 0
    assert not directory.exists()


def wait_readable(descriptor: int) -> bool:
    import select

    return bool(select.select([descriptor], [], [], DIE_S)[0])


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["/bin/sleep", "300"])


def test_sweep_kills_what_was_recorded_and_nothing_else(tmp_path: Path) -> None:
    recorded, stranger = sleeper(), sleeper()
    with recorded, stranger:
        try:
            started = {p.pid: orphan_reaper.start_time_of(p.pid) or 0 for p in (recorded, stranger)}
            assert all(started.values())
            # The second pid was reused: another process has it now.
            workers = {recorded.pid: started[recorded.pid], stranger.pid: started[stranger.pid] - 1}
            orphan_reaper.write_record(
                tmp_path, workers | {2**22 - 7: 5}, tmp_path / orphan_reaper.DIRECTORY_NAME
            )
            assert orphan_reaper.reap_orphans(tmp_path) == 1
            assert recorded.wait(DIE_S) == -signal.SIGKILL
            assert stranger.poll() is None
            assert orphan_reaper.reap_orphans(tmp_path) == 0
        finally:
            stranger.kill()
            recorded.kill()


def test_sweep_ignores_a_record_of_another_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = sleeper()
    with process:
        try:
            started = orphan_reaper.start_time_of(process.pid) or 0
            orphan_reaper.write_record(
                tmp_path, {process.pid: started}, tmp_path / orphan_reaper.DIRECTORY_NAME
            )
            monkeypatch.setattr(orphan_reaper, "boot_id", lambda: "another")
            assert orphan_reaper.reap_orphans(tmp_path) == 0
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"boot": "x"}', '{"boot": "x", "workers": [1]}'),
        '{"boot": "x", "workers": [], "directory": "/etc"}',
    ],
)
def test_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / orphan_reaper.FILE_NAME).write_text(text)
    with pytest.raises(StorageError):
        orphan_reaper.reap_orphans(tmp_path)


def test_record_is_private(tmp_path: Path) -> None:
    orphan_reaper.write_record(tmp_path, {1: 2}, tmp_path)
    assert (tmp_path / orphan_reaper.FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_what_is_said_of_a_killed_worker_that_is_still_there_is_true(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that gave 3 GiB back to the kernel was said to hang there."""
    process = sleeper()
    try:
        assert why_there(process.pid) == "was killed but does not die; it hangs in the kernel"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert why_there(process.pid) == "has ended; what it left is still being removed"
    finally:
        process.kill()
        process.wait()
    assert why_there(process.pid) == "has ended; what it left is still being removed"
    stat = f"7 (a) b) R 1 7 7 0 -1 {0x400000 | 0x4} 0 0"

    def read_text(_path: Path) -> str:
        return stat

    monkeypatch.setattr(Path, "read_text", read_text)
    assert why_there(7) == "is ending: the kernel takes its memory back"
