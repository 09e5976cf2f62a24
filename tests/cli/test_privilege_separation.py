"""The rights of a root-started server after it has given up root's privileges."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to give up")
PROGRAM = Path(__file__).with_name("separated_server.py")
REFUSED = {"EPERM", "EACCES"}
UID = 51_999


def run(folder: Path, *options: str) -> dict[str, Any]:
    secret = folder / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    command = [sys.executable, str(PROGRAM), str(folder / "state"), str(secret), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("separated"))


def test_the_server_is_nobody_and_can_become_nobody_else(found: dict[str, Any]) -> None:
    assert found["Uid"] == found["Gid"] == [str(UID)] * 4
    assert found["Groups"] == []
    assert {found[name][0] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert found["NoNewPrivs"] == ["1"]
    assert found["scores"] in ([-900] * 2, [0] * 2)  # where root may not set it


def test_it_reaches_neither_roots_files_nor_workers_nor_its_helper(found: dict[str, Any]) -> None:
    harm = found["harm"]
    assert len(harm) == 17
    # Below a directory that others cannot enter, it sees nothing but its own.
    assert harm.pop("read root's file") in {*REFUSED, "ENOENT"}
    assert {name: how for name, how in harm.items() if how not in REFUSED} == {}


def test_it_does_not_get_at_the_signers_secret(found: dict[str, Any]) -> None:
    harm = found["harm to the signer"]
    assert len(harm) == 5
    assert {name: how for name, how in harm.items() if how not in REFUSED} == {}


def test_its_workers_are_confined_as_those_of_root(found: dict[str, Any]) -> None:
    assert {"own-uid", "no-new-privileges", "not-dumpable"} <= set(found["claims"])


def test_the_helper_does_nothing_that_is_not_on_its_list(found: dict[str, Any]) -> None:
    asked = found["asked"]
    assert asked.pop("assign") == "done"
    assert "is no GPU's" in asked["other nodes"]
    assert "no socket and pipe" in asked["no pipe"]
    assert "lives" in asked["reap the living"]
    assert "lives" in asked["bury the living"]
    assert "one lease" in asked["assign twice"]
    assert "done" not in asked.values()


def test_no_server_keeps_a_worker_root_or_chooses_its_user(found: dict[str, Any]) -> None:
    assert found["its own user"] == "a user of its own"
    assert found["stay root"] == found["another's user"] == "ended"
    # Without its privileged helper's word it does nothing.
    assert found["unassigned"] == "waits as 0"


@pytest.mark.long
def test_helper_and_workers_end_with_their_server(tmp_path: Path) -> None:
    pids = run(tmp_path, "--die")["pids"]
    deadline = time.monotonic() + 20
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert not (tmp_path / "state").exists()
