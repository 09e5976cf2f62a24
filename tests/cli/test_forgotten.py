"""Real servers with state directories put back, copied or cut."""

import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import LivePool, LiveServer
from tests.pools import exporters_of, view_of

from gpupool.pool.view import ALARM

DEADLINE_S = 20.0
RUN = ["run", "--no-wait", "-p", "0.5", "--", "true"]


pytestmark = pytest.mark.long


@pytest.fixture
def own_pool() -> Iterator[LivePool]:
    """Run a separate pool."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    pool = LivePool(folder)
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Any, pool: LivePool) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, pool.logs()
        time.sleep(0.05)


def follower(pool: LivePool) -> LiveServer:
    leader = pool.view()["raft"]["leader"]
    return next(server for name, server in pool.servers.items() if name != leader)


def code(server: LiveServer) -> int:
    """Wait until a server has ended, and return how."""
    assert server.process is not None
    return server.process.wait(DEADLINE_S)


def alarms_of(pool: LivePool, server: LiveServer) -> list[str]:
    """Return the alarms that one server gives, while no other one can answer."""
    others = [each.process for each in pool.servers.values() if each is not server]
    running = [each for each in others if each is not None and each.poll() is None]
    for process in running:
        process.send_signal(signal.SIGSTOP)
    try:
        view = view_of(pool.only(server)["GPUPOOL_CREDENTIALS"])
    finally:
        for process in running:
            process.send_signal(signal.SIGCONT)
    names = {each["id"]: each["name"] for each in view["servers"]}
    assert names[view["answered_by"]] == server.name
    return [text for text in view["warnings"] if text.startswith(ALARM)]


def put(pool: LivePool, user: str) -> None:
    done = pool.run("token", "create", "--user", user)
    assert done.returncode == 0, done.stderr


def token(pool: LivePool) -> str:
    return pool.run("token", "create", "--server").stdout.strip().splitlines()[-1]


def test_an_old_copy_is_refused_and_comes_back_by_rejoin(own_pool: LivePool) -> None:
    pool = own_pool
    server = follower(pool)
    assert exporters_of(server.state_dir)
    server.end(signal.SIGKILL)
    assert not exporters_of(server.state_dir), "it would write into what is replaced below"
    old = pool.folder / "old"
    shutil.copytree(server.state_dir, old)
    server.start()
    pool.wait_until(pool.is_whole)
    for number in range(3):
        put(pool, f"after{number}")
    server.end(signal.SIGKILL)
    shutil.rmtree(server.state_dir)
    shutil.copytree(old, server.state_dir)

    server.log.unlink()
    server.start()
    assert code(server) == 1
    said = server.log.read_text()
    assert "its state directory is an old copy" in said
    assert "gpupool rejoin" in said
    assert "Traceback" not in said
    # One server refused it, or both did; whichever of them answers says so.
    for other in (each for each in pool.servers.values() if each is not server):
        wait_for(lambda other=other: alarms_of(pool, other), pool)
    done = pool.run("status")
    assert f"{server.name} does not count as a voter" in done.stdout.replace("\n", " ")
    assert done.returncode == 3
    assert "quorum 2/3" in done.stdout
    assert "an old copy" in pool.run("doctor").stdout.replace("\n", " ")
    put(pool, "thetwogoon")

    # It does not start again as itself, and comes back as another member.
    server.start()
    assert code(server) == 1
    here = ["--state-dir", str(server.state_dir)]
    taken = pool.run("rejoin", *here, "--token", token(pool))
    assert taken.returncode == 1, taken.stdout + taken.stderr
    assert "gpupool leave" in taken.stderr
    done = pool.run("rejoin", *here, "--token", token(pool), "--name", "again")
    assert done.returncode == 0, done.stderr
    server.start()

    def replaced(view: dict[str, Any]) -> bool:
        names = [s["name"] for s in view["servers"]]
        return "again" in names and server.name not in names and pool.is_whole(view)

    view = pool.wait_until(replaced)  # It has removed its former self.
    assert not [w for w in view["warnings"] if w.startswith(ALARM)]
    assert pool.run("status").returncode == 0
    assert pool.run(*RUN).returncode == 0


def test_a_clone_is_refused_and_the_original_goes_on(own_pool: LivePool) -> None:
    pool = own_pool
    server = follower(pool)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    clone = LiveServer("clone", pool.folder, pool.env)
    shutil.copytree(server.state_dir, clone.state_dir)
    server.process.send_signal(signal.SIGCONT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pool.servers["clone"] = clone
    clone.start("--listen", f"127.0.0.1:{port}")
    assert code(clone) == 1
    said = clone.log.read_text()
    # Of the entries that came while it was copied, the original has more than the copy.
    older = "state directory is an old copy" in said
    assert older or "is a copy of one that is in use" in said, said
    assert "gpupool rejoin" in said
    del pool.servers["clone"]
    put(pool, "still")
    assert server.process.poll() is None
    pool.wait_until(pool.is_whole)
    leader = pool.servers[pool.view()["raft"]["leader"]]
    leader.end(signal.SIGKILL)
    wait_for(lambda: pool.run(*RUN).returncode == 0, pool)
    leader.start()
    pool.wait_until(pool.is_whole)


def test_a_cut_journal_is_repaired_by_the_others(own_pool: LivePool) -> None:
    pool = own_pool
    server = follower(pool)
    for number in range(3):
        put(pool, f"user{number}")
    server.end(signal.SIGKILL)
    journal = server.state_dir / "consensus" / "journal"
    data = journal.read_bytes().rstrip(b"\0")
    journal.write_bytes(data[: len(data) * 3 // 4])
    server.log.unlink()
    server.start()
    server.wait_for_log("votes again")
    assert "may have been acknowledged" in server.log.read_text()
    pool.wait_until(pool.is_whole)
    assert pool.run("status").returncode == 0


def test_a_lone_server_leaves_a_cut_journal_to_its_operator() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    pool = LivePool(folder)
    try:
        server = pool.servers["a"]
        server.start("--pool-name", "lab")
        server.wait_for_log("is listening")
        put(pool, "before")
        server.end(signal.SIGKILL)
        journal = server.state_dir / "consensus" / "journal"
        data = journal.read_bytes().rstrip(b"\0")
        journal.write_bytes(data[:-40])
        server.log.unlink()
        server.start()
        assert code(server) == 1
        said = server.log.read_text()
        assert "the end of this server's journal is missing or damaged" in said
        assert "gpupool recover --force" in said
        done = pool.run("recover", "--state-dir", str(server.state_dir), "--force")
        assert done.returncode == 0, done.stderr
        server.log.unlink()
        server.start()
        server.wait_for_log("is listening")
        assert pool.run(*RUN).returncode == 0
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)
