"""Records state directories of real pools: ``python -m tests.golden.record_pools``.

It was run once, at commit 70ed747, as ``unshare -u sh -c 'hostname golden && ...'``, so that no
name of a machine is in the records. Run again it records what today's servers write, which proves
nothing about those of 70ed747.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Generator
from pathlib import Path

from tests.golden.pools import (
    GPUPOOL,
    Server,
    View,
    command,
    environment,
    look,
    wait_until,
)
from tests.golden.recorded import GOLDEN

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.recovery import replay
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import open_storage
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.apply import PoolMachine

LONG = "25000d"
SERVER = """
from datetime import timedelta
from gpupool.cli import main
from gpupool.remoting.protocol.messages import orders
from gpupool.remoting.transport import pki
pki.CLOCK_SLACK = timedelta(days=20 * 365)
pki.CA_VALID = pki.SERVER_VALID = timedelta(days=70 * 365)
orders.TOKEN_VALID_MAX_S = 70 * 365 * 86400.0
main.main()
"""
"""A server with certificates and tokens that outlive this project, and hold where clocks are
behind."""
POLICY = """\
[defaults]
max_gpus = 4
[class.lab]
users = ["ada"]
priority = 2
"""


def main() -> None:
    """Record both pools."""
    for name, servers in (("solo", ("a",)), ("trio", ("a", "b", "c"))):
        folder = Path(tempfile.mkdtemp(prefix="gpupool-record-"))
        folder.chmod(0o711)
        try:
            with running(folder, servers):
                use(folder, servers)
            keep(name, folder, servers)
        finally:
            shutil.rmtree(folder)


@contextlib.contextmanager
def running(folder: Path, names: tuple[str, ...]) -> Generator[None]:
    """Run a pool of these servers; at the end all are killed at once, as by a loss of power."""
    program = (sys.executable, "-c", SERVER)
    servers = [Server(name, folder, program) for name in names]
    env = environment(folder)
    try:
        first, *others = servers
        first.start("--pool-name", "lab")
        first.wait()
        for server in others:
            made = command(env, "token", "create", "--server", "--json").stdout
            server.start("--token", json.loads(made)["token"])
            server.wait()
        wait_until(folder / "operator.json", lambda seen: is_whole(seen, len(names)))
        yield
    finally:
        holders = [json.loads(p.read_text())["pid"] for p in folder.glob("gpupool-*/*.json")]
        for server in servers:
            assert server.process is not None
            server.process.send_signal(signal.SIGKILL)
        for pid in holders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for server in servers:
            assert server.process is not None
            server.process.wait()


def is_whole(seen: View, count: int) -> bool:
    up = [server for server in seen["servers"] if server["state"] in ("idle", "mix", "drain")]
    return len(up) == count == len(seen["raft"]["voters"])


def use(folder: Path, names: tuple[str, ...]) -> None:
    """Run the commands of a pool's users."""
    env, ada = environment(folder), environment(folder, "ada.json")
    for user, more in (("ada", ()), ("bob", ()), ("root", ("--operator",))):
        made = command(env, "token", "create", "--user", user, "--expires", LONG, *more, "--json")
        login = environment(folder, f"{user}.json")
        command(login, "login", json.loads(made.stdout)["token"])
    bob = json.loads((folder / "bob.json").read_text())["token"]
    command(env, "token", "revoke", bob)
    command(env, "token", "create", "--server")
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    command(env, "policy", "apply", str(policy))
    command(env, "label", names[-1], "rack=r3", "room=b2")
    ended = command(ada, "alloc", "-n", "1", "-m", "2G", "-q").stdout.strip()
    command(ada, "release", ended)
    command(ada, "alloc", "-n", str(min(3, 2 * len(names))), "-m", "4G", "-q", "--across")
    command(ada, "alloc", "-n", "1", "-p", "0.5", "-q", "--idle-timeout", "8h")
    command(env, "drain", names[-1], "--reason", "new fan")
    waiting = [*GPUPOOL, "alloc", "-n", "1", "-p", "1", "--wait", "1h", "--server", names[-1]]
    patient = subprocess.Popen(waiting, env=ada, stdin=subprocess.DEVNULL)
    wait_until(folder / "operator.json", lambda seen: seen["waiting"])
    patient.kill()
    patient.wait()
    assert len(look(folder / "operator.json")["leases"]) == 2


def keep(name: str, folder: Path, servers: tuple[str, ...]) -> None:
    """Pack the servers' remaining files, with each server's table, and the logins."""
    for server in servers:
        state_dir = folder / server
        machine = PoolMachine(PoolState())
        shutil.copytree(state_dir, folder / "copy")
        storage = open_storage(folder / "copy")
        survivor = replay(storage, machine)
        (folder / f"{server}.table").write_bytes(closed_cbor.encode(machine.snapshot()))
        if server == "a" and len(servers) == 1:
            last = Snapshot(
                survivor.last_index, survivor.last_term, survivor.voters, machine.snapshot()
            )
            storage.snapshots.save(last)
            storage.taken()
            storage.sync()
            storage.close()
            shutil.copytree(folder / "copy", folder / "a-with-snapshot")
        else:
            storage.close()
        shutil.rmtree(folder / "copy")
    names = [*servers, *(f"{server}.table" for server in servers)]
    names += [f"{user}.json" for user in ("operator", "ada", "bob", "root")]
    if (folder / "a-with-snapshot").exists():
        names.append("a-with-snapshot")
    with tarfile.open(GOLDEN / f"{name}.tar.xz", "w:xz") as archive:
        for each in names:
            archive.add(folder / each, each, filter=packed)


def packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out reserve and lock files, and names of this machine's users."""
    if member.name.endswith(("/reserve", "/lock")) or not (member.isfile() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
