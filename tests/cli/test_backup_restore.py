"""A pool is lost with all its servers; a new one takes its backup, with real processes."""

import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests import commands
from tests.ca_keys import in_memory, scalar
from tests.cli.conftest import LiveServer
from tests.commands import GPUPOOL

from gpupool.remoting.protocol.sealed_key import is_sealed
from gpupool.remoting.transport.authority.ca_bundle import belongs
from gpupool.remoting.transport.pki import create_ca


class OnePool:
    """A pool of one server in a separate folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env |= {
            "GPUPOOL_CREDENTIALS": str(self.folder / "operator.json"),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "RUNTIME_DIRECTORY": str(self.folder),
        }
        self.env.pop("XDG_RUNTIME_DIR", None)
        self.server = LiveServer("a", self.folder, self.env)

    def start(self, *arguments: str) -> None:
        self.server.start("--pool-name", self.folder.name, *arguments)
        self.server.wait_for_log("is listening")

    def run(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return commands.finish([*GPUPOOL, *arguments], env=self.env | env, timeout=40)

    def stop(self) -> None:
        process = self.server.process
        if process is not None and process.poll() is None:
            self.server.end(signal.SIGKILL)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
def test_a_lost_pool_comes_back(folder: Path) -> None:
    old, new = OnePool(folder, "old"), OnePool(folder, "new")
    file = folder / "pool.backup"
    try:
        old.start("--label", "rack=4")
        policy = folder / "policy.toml"
        policy.write_text("[defaults]\nmax_gpus = 0.5\n")
        done = old.run("policy", "apply", str(policy))
        assert done.returncode == 0, done.stderr
        token = json.loads(old.run("token", "create", "--user", "ada", "--json").stdout)["token"]
        ada = str(folder / "ada.json")
        assert old.run("login", token, GPUPOOL_CREDENTIALS=ada).returncode == 0
        assert old.run("drain", "a", "--reason", "the end is near").returncode == 0
        refused = old.run("backup", str(file), GPUPOOL_CREDENTIALS=ada)
        assert (refused.returncode, file.exists()) == (1, False)
        assert "ada may not do this" in refused.stderr
        assert "hint: ask an operator" in refused.stderr
        done = old.run("backup", str(file))
        assert done.returncode == 0, done.stderr
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        count = len(json.loads(old.run("audit", "--json").stdout)["acts"])
        old.stop()

        ca = folder / "ca"
        ca.mkdir()
        state = old.server.state_dir
        secret = "keeper/signer.key" if (state / "keeper").exists() else "signer.key"
        for name in ("ca.pem", "ca.key", secret):
            shutil.copy(state / name, ca)
        new.start("--ca", str(ca))
        damaged = folder / "damaged.backup"
        damaged.write_bytes(file.read_bytes()[:-9])
        refused = new.run("restore", str(damaged))
        assert refused.returncode == 2
        assert "it is damaged: its checksum does not match" in refused.stderr
        # Before the restore the new pool knows nothing of ada, though its CA is the one she knows.
        address = json.loads(new.run("status", "--json").stdout)["pool"]["servers"][0]["address"]
        credentials = json.loads(Path(ada).read_text())
        credentials["addresses"] = [address]
        Path(ada).write_text(json.dumps(credentials))
        stranger = new.run("status", GPUPOOL_CREDENTIALS=ada)
        assert "the pool does not know this token" in stranger.stderr
        assert new.run("restore", str(file), GPUPOOL_CREDENTIALS=ada).returncode == 1
        done = new.run("restore", str(file))
        assert done.returncode == 0, done.stderr
        assert "labels of 1 servers" in done.stderr
        status = json.loads(new.run("status", "--json", GPUPOOL_CREDENTIALS=ada).stdout)["pool"]
        assert status["servers"][0]["labels"] == {"rack": "4"}
        acts = json.loads(new.run("audit", "--json").stdout)["acts"]
        assert "the end is near" in [act["text"] for act in acts[:count]]
        assert acts[-1]["kind"] == "restored"
        again = new.run("restore", str(file))
        assert again.returncode == 0
        assert "restored this backup before" in again.stderr
        work = new.run(*("run", "-n", "1", "-p", "0.5", "--", "true"), GPUPOOL_CREDENTIALS=ada)
        assert work.returncode == 0, work.stderr
        assert "max_gpus = 0.5" in new.run("policy", "show").stdout
        more = new.run("run", "-n", "1", "--", "true", GPUPOOL_CREDENTIALS=ada)
        assert more.returncode == 125
        assert "max_gpus" in more.stderr
    finally:
        old.stop()
        new.stop()


def test_a_wrong_ca_is_refused_before_anything_is_made(folder: Path) -> None:
    pool = OnePool(folder, "lab")
    empty = folder / "empty"
    empty.mkdir()
    state = str(folder / "state")
    arguments = ("join", "--emulate", "1", "--listen", "127.0.0.1:0", "--state-dir", state)
    missing = pool.run(*arguments, "--ca", str(empty))
    assert missing.returncode == 1
    assert "cannot read the CA" in missing.stderr
    for name in ("ca.pem", "ca.key"):
        (empty / name).write_text("nonsense")
    wrong = pool.run(*arguments, "--ca", str(empty))
    assert wrong.returncode == 1
    assert "malformed" in wrong.stderr
    assert not Path(state).exists()


def test_a_server_that_was_given_a_former_ca_has_no_key_of_it_in_its_memory(folder: Path) -> None:
    """The command read it, and it was in the server's memory until the next start."""
    pool, ca = OnePool(folder, "lab"), folder / "ca"
    ca.mkdir(mode=0o700)
    former = create_ca("c0ffee", datetime.now(UTC))
    (ca / "ca.pem").write_bytes(former.certificate_pem)
    (ca / "ca.key").write_bytes(former.key_pem)
    try:
        pool.start("--ca", str(ca))
        assert pool.server.process is not None
        wanted = (
            former.certificate_pem.splitlines()[1],
            scalar(former.key_pem),
            former.key_pem.splitlines()[1],
        )
        assert in_memory(pool.server.process.pid, *wanted) == [True, False, False]
        kept = (pool.server.state_dir / "ca.key").read_bytes()
        assert is_sealed(kept)
        assert belongs(kept, former.certificate_pem)
        assert json.loads(pool.run("status", "--json").stdout)["pool"]["cluster_id"] == "c0ffee"
    finally:
        pool.stop()
