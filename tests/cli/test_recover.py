"""A pool that lost its majority for good: the survivor goes on, by a person's order."""

import json
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import LivePool

View = dict[str, Any]
DEADLINE_S = 20.0
RUN = ["run", "--no-wait", "-p", "0.5", "--", "true"]


def lost(pool: View) -> bool:
    return not pool["raft"]["quorum"]


@pytest.fixture
def lost_pool() -> Iterator[LivePool]:
    """Run a separate pool with two killed servers."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    pool = LivePool(folder)
    try:
        pool.start()
        for name in ("a", "b"):
            pool.servers[name].end(signal.SIGKILL)
        pool.wait_until(lost)  # which takes the survivor a while to notice
        yield pool
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)


def alone(pool: View) -> bool:
    return [s["name"] for s in pool["servers"]] == ["c"] and pool["raft"]["quorum"]


def two_vote(pool: View) -> bool:
    return len(pool["raft"]["voters"]) == 2 == len([s for s in pool["servers"] if s["gpus"]])


@pytest.mark.long
def test_survivor_of_a_lost_majority_goes_on_alone(lost_pool: Any) -> None:
    pool, survivor = lost_pool, lost_pool.servers["c"]
    here = ["--state-dir", str(survivor.state_dir)]
    done = pool.run("status")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "not in touch with a majority" in done.stdout + done.stderr

    running = pool.run("recover", *here, "--force")
    assert running.returncode == 1
    assert "stop it first" in running.stderr
    survivor.end(signal.SIGTERM)

    asked = pool.run("recover", *here)
    assert asked.returncode == 2, asked.stdout + asked.stderr
    for text in ("May be lost", "must never start again", "removed   a, b", "voters    a, b, c"):
        assert text in asked.stdout
    assert "nothing has been changed" in asked.stderr

    # Anything that listens at the address of another voter may be that voter.
    listen = json.loads((pool.servers["b"].state_dir / "identity.json").read_text())["listen"]
    with socket.create_server(("127.0.0.1", int(listen.rpartition(":")[2]))):
        alive = pool.run("recover", *here, "--force")
    assert alive.returncode == 1, alive.stdout + alive.stderr
    assert "pool lab is not lost: b can be reached" in alive.stderr.replace("\n  ", ": ")

    forced = pool.run("recover", *here, "--force")
    assert forced.returncode == 0, forced.stderr
    assert "c is now the only server of pool lab" in forced.stderr
    again = pool.run("recover", *here, "--force")
    assert again.returncode == 2, "nothing is left to recover"

    survivor.log.unlink()
    survivor.start()
    survivor.wait_for_log("is listening")
    # It refuses everybody until it has read its own log, which the first election brings.
    end = time.monotonic() + DEADLINE_S
    while pool.run("status").returncode == 1:
        assert time.monotonic() < end, pool.logs()
    pool.wait_until(alone)
    assert pool.run(*RUN).returncode == 0
    # A former member that returns is told, and stops; a new one gets a vote.
    pool.servers["b"].start()
    assert pool.servers["b"].process.wait(20) == 1
    assert "was removed from pool lab" in pool.servers["b"].log.read_text()
    # It has written that down: it cannot form a pool with others that were left behind.
    pool.servers["b"].log.unlink()
    pool.servers["b"].start()
    assert pool.servers["b"].process.wait(20) == 1
    assert "may not take part any more" in pool.servers["b"].log.read_text()
    token = pool.run("token", "create", "--server").stdout.strip().splitlines()[-1]
    shutil.rmtree(pool.servers["a"].state_dir)
    pool.servers["a"].start("--token", token)
    pool.wait_until(two_vote)
    assert pool.run(*RUN).returncode == 0


def test_recover_wants_a_server(live_pool: Any, tmp_path: Path) -> None:
    done = live_pool.run("recover", "--state-dir", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "no server lives in" in done.stderr
    assert not (tmp_path / "none").exists()
