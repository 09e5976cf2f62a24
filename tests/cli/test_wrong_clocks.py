"""Real servers with wrong wall clocks.

A module that Python imports at its start (``sitecustomize``) gives each server's process a wall
clock with an error of its own, read from a file. All else of the process is as it always is.
``libfaketime`` does the same from outside, and makes timed waits of threads fail at times.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import DEADLINE_S, LivePool

pytestmark = pytest.mark.long

DAYS = 400

WRONG_CLOCK = """
import os, time
_right_ns, _days, _file = time.time_ns, 0, None

def _wrong_ns():
    global _days
    for read in _by_name, _by_descriptor:
        try:
            _days = int(read())
            break
        except (OSError, ValueError):
            pass  # a confined process has the error of its start
    return _right_ns() + _days * 86_400 * 10**9

def _by_name():
    with open(os.environ["WRONG_CLOCK_FILE"]) as file:
        return file.read()

def _by_descriptor():  # a server becomes a user that may not reach the file by its name
    return os.pread(_file.fileno(), 9, 0) if _file else ""

if "WRONG_CLOCK_FILE" in os.environ:
    try:
        _file = open(os.environ["WRONG_CLOCK_FILE"])
    except OSError:
        pass
    time.time_ns = _wrong_ns
    time.time = lambda: _wrong_ns() / 1e9
"""


class SkewedPool(LivePool):
    """Servers with clocks set by a file each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "sitecustomize.py").write_text(WRONG_CLOCK)
        for name, server in self.servers.items():
            self.set_clock(name, 0)
            wrong = {"PYTHONPATH": str(folder), "WRONG_CLOCK_FILE": str(self._file(name))}
            server.env = self.env | wrong

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.days"

    def set_clock(self, name: str, days: int) -> None:
        """Set the clock of one machine."""
        with os.fdopen(os.open(self._file(name), os.O_WRONLY | os.O_CREAT), "w") as file:
            file.write(f"{days:9}")  # in place and at once: servers have it open

    def clock(self) -> dict[str, Any]:
        """Return the answer of ``gpupool clock``."""
        found: dict[str, Any] = json.loads(self.run("clock", "--json").stdout)["clock"]
        return found

    def wait_for_clock(self, word: str) -> None:
        """Wait until ``gpupool clock`` finds something wrong that has ``word`` in it."""
        end = time.monotonic() + DEADLINE_S
        while not any(word in problem for problem in self.clock()["problems"]):
            assert time.monotonic() < end, self.clock()
            time.sleep(0.2)

    def mend(self) -> None:
        """Set the time back, once a server that is asked has measured the clocks of today."""
        end = time.monotonic() + DEADLINE_S
        while True:
            done = self.run("clock", "--mend", "--yes")
            if done.returncode == 0 and "nothing to mend" not in done.stderr:
                return
            assert time.monotonic() < end, done.stderr
            time.sleep(0.2)

    def right_clock(self) -> dict[str, Any]:
        """Return the clock of a server that finds nothing wrong any more; each one looks itself."""
        end = time.monotonic() + DEADLINE_S
        while (clock := self.clock())["problems"]:
            assert time.monotonic() < end, clock
            time.sleep(0.2)
        return clock

    def start_again(self, name: str) -> None:
        """Start a server that has ended, and wait until it serves."""
        server = self.servers[name]
        server.log.rename(server.log.with_suffix(".before"))
        server.start()
        server.wait_for_log("is listening")
        end = time.monotonic() + DEADLINE_S
        while self.run("status").returncode not in (0, 3):
            assert time.monotonic() < end, self.logs()

    def can_log_in(self, user: str, token: str) -> bool:
        """Return whether a user gets in with a token, by the server itself."""
        env = {"GPUPOOL_CREDENTIALS": str(self.folder / f"{user}.json")}
        if self.run("login", token, env=env).returncode != 0:
            return False
        return self.run("leases", env=env).returncode == 0

    def states(self) -> dict[str, str]:
        """Return the state of each user's token, as ``token list`` has it."""
        tokens = json.loads(self.run("token", "list", "--json").stdout)["tokens"]
        return {each["user"]: each["state"] for each in tokens}


@pytest.fixture
def skewed(tmp_path: Path) -> Iterator[SkewedPool]:
    folder = tmp_path / "pool"
    folder.mkdir()
    pool = SkewedPool(folder)
    yield pool
    pool.stop()


def start_alone(pool: SkewedPool) -> None:
    pool.servers["a"].start("--pool-name", "lab")
    pool.servers["a"].wait_for_log("is listening")


def test_a_single_server_keeps_its_tokens_through_an_accident(skewed: SkewedPool) -> None:
    """Finding H1 (b): after 7 s at +400 days and a restart all tokens had expired, for good.

    ``token list`` called them valid meanwhile, ``doctor`` said "ok", and ``status`` nothing.
    """
    start_alone(skewed)
    alice = skewed.token("--user", "alice")
    skewed.set_clock("a", DAYS)
    skewed.wait_for_clock("the only voter's clock")
    bob = skewed.token("--user", "bob")
    assert skewed.can_log_in("alice", alice)
    assert skewed.run("status").returncode == 3
    doctor = skewed.run("doctor").stdout
    assert "fail  clocks" in doctor
    assert skewed.servers["a"].end(signal.SIGTERM) == 0
    skewed.start_again("a")
    assert skewed.can_log_in("alice", alice), "the clock is still wrong"
    skewed.set_clock("a", 0)
    skewed.servers["a"].end(signal.SIGKILL)
    skewed.start_again("a")
    assert skewed.can_log_in("alice", alice)
    assert skewed.can_log_in("bob", bob)
    assert {skewed.states()[user] for user in ("alice", "bob")} == {"valid"}
    assert skewed.run("status").returncode == 0


def test_an_operator_takes_a_clock_and_then_mends_the_accident(skewed: SkewedPool) -> None:
    start_alone(skewed)
    skewed.set_clock("a", DAYS)
    skewed.wait_for_clock("the only voter's clock")
    refused = skewed.run("clock", "--mend")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    alice = skewed.token("--user", "alice")
    taken = skewed.run("clock", "--mend", "--yes")
    assert taken.returncode == 0, taken.stderr
    # 365 days are over, for the list as for the server.
    assert not skewed.can_log_in("alice", alice)
    assert skewed.states()["alice"] == "expired"
    skewed.set_clock("a", 0)
    skewed.wait_for_clock("ahead of the voters' clocks")
    assert skewed.run("clock", "--mend", "--yes").returncode == 0
    assert skewed.can_log_in("alice", alice)
    assert skewed.states()["alice"] == "valid"


def test_one_wrong_clock_of_three_is_named_and_moves_nothing(skewed: SkewedPool) -> None:
    skewed.start()
    leader = next(s["name"] for s in skewed.view()["servers"] if s["leader"])
    skewed.set_clock(leader, DAYS)
    skewed.wait_for_clock(f"the clock of server {leader} is {DAYS}d ahead")
    alice = skewed.token("--user", "alice")
    assert skewed.can_log_in("alice", alice)
    assert skewed.states()["alice"] == "valid"
    assert skewed.clock()["table_ahead_s"] < 1.0
    assert abs(skewed.clock()["pool"] / 1000 - time.time()) < 5.0
    assert f"the clock of server {leader}" in skewed.run("doctor").stdout
    skewed.servers[leader].wait_for_log(f"the clock of server {leader}")
    assert "the clock of server" in skewed.run("status").stdout
    skewed.set_clock(leader, 0)
    skewed.right_clock()
    assert skewed.can_log_in("alice", alice)


@pytest.mark.slow  # the simulator's wrong clocks have it by default, and the test before this one
def test_a_majority_of_wrong_clocks_is_mended_by_order(skewed: SkewedPool) -> None:
    skewed.start()
    alice = skewed.token("--user", "alice")
    for name in ("a", "b"):
        skewed.set_clock(name, 20)
    end = time.monotonic() + DEADLINE_S
    # Each server measures the others' clocks itself, so the first commands may have the right time.
    while abs(skewed.clock()["table"] / 1000 - time.time()) < 19 * 86_400:
        assert time.monotonic() < end
        assert skewed.run("label", "c", f"at={time.monotonic_ns()}").returncode == 0
    bob = skewed.token("--user", "bob")
    for name in ("a", "b"):
        skewed.set_clock(name, 0)
    skewed.wait_for_clock("ahead of the voters' clocks")
    skewed.mend()
    assert abs(skewed.right_clock()["table"] / 1000 - time.time()) < 30.0
    assert skewed.can_log_in("alice", alice)
    assert skewed.can_log_in("bob", bob)
    acts = json.loads(skewed.run("audit", "--json").stdout)["acts"]
    assert acts[-1]["kind"] == "clock-set"
    again = skewed.run("clock", "--mend", "--yes")
    assert "nothing to mend" in again.stderr
