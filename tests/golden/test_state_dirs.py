"""Today's servers go on with the files of servers of commit 70ed747 after a kill.

``solo.tar.xz`` is the state directory of the only server of a pool, ``trio.tar.xz`` those of three,
with the logins of users and the table that each server had; ``record_pools.py`` made them. Servers
listen on free ports, whatever their directory says; the clients' files are told where.
"""

import json
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio
from tests.golden.pools import Server, View, ask, wait_until
from tests.golden.record_pools import POLICY
from tests.golden.recorded import GOLDEN

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.recovery import replay
from gpupool.consensus.storage.store import open_storage
from gpupool.pool.errors import AuthenticationError, DeniedError
from gpupool.pool.invariants import violations
from gpupool.pool.model.ids import lease_name
from gpupool.pool.model.state import Lease, PoolState, Request
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.policy_versions import unpack_text
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.protocol import messages as m

DIRECTORIES = [("solo", "a"), ("solo", "a-with-snapshot"), *(("trio", name) for name in "abc")]
USERS = ("ada", "bob", "root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that workers with separate users may enter."""
    made = Path(tempfile.mkdtemp(prefix="gpupool-golden-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def unpack(name: str, folder: Path) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def table_of(path: Path) -> PoolState:
    """Return a recorded table."""
    machine = PoolMachine(PoolState())
    machine.restore(closed_cbor.decode(path.read_bytes()))
    return machine.state


def send_to(folder: Path, *servers: Server) -> None:
    """Tell the recorded logins where the servers listen now."""
    for user in USERS:
        path = folder / f"{user}.json"
        fields = json.loads(path.read_text())
        fields["addresses"] = [server.address() for server in servers]
        path.write_text(json.dumps(fields))
        path.chmod(0o600)


@pytest.mark.parametrize(("pool", "server"), DIRECTORIES)
def test_a_recorded_log_makes_the_recorded_table(pool: str, server: str, folder: Path) -> None:
    unpack(pool, folder)
    storage = open_storage(folder / server)
    machine = PoolMachine(PoolState())
    survivor = replay(storage, machine)
    storage.close()
    assert machine.state == table_of(folder / f"{server[0]}.table")
    assert violations(machine.state) == []
    assert sorted(survivor.voters) == sorted(machine.state.voters())
    assert len(machine.state.leases) == 2
    assert machine.state.policy.version == 1


def check_what_people_decided(folder: Path, before: PoolState) -> None:
    """Check tokens, policy and history against the recorded table, as an operator sees them."""
    operator = folder / "root.json"

    async def question(pool: Pool) -> None:
        tokens = {each.token: each for each in await pool.list_tokens()}
        assert tokens.keys() == before.tokens.keys()
        for token in before.tokens.values():
            seen = tokens[token.id]
            assert (seen.kind, seen.user) == (token.kind, token.user)
            assert (seen.created_at, seen.expires_at) == (token.created_at, token.expires_at)
            assert (seen.state == "revoked") is bool(token.revoked_at)
        policy = await pool.policy()
        assert (policy.version, policy.by) == (1, before.policies[-1].by)
        assert unpack_text(policy.packed) == POLICY
        acts = (await pool.audit()).acts
        assert acts[: len(before.acts)] == before.acts

    ask(operator, question)


def check_logins(folder: Path) -> None:
    """Check that recorded logins are as good as they were."""

    async def use(pool: Pool) -> None:
        request = Request(pool.new_request_id(), 1, 0.5, program="golden")
        async with await pool.allocate(request, wait_s=20) as hold:
            with trio.fail_after(20):  # any server may answer, and hears of it a moment later
                while hold.lease not in {each.id for each in (await pool.view()).leases}:  # noqa: ASYNC110
                    await trio.sleep(0.05)

    async def look_only(pool: Pool) -> None:
        await pool.view()

    ask(folder / "ada.json", use)
    with pytest.raises(AuthenticationError, match="was revoked"):
        ask(folder / "bob.json", look_only)
    with pytest.raises(DeniedError):
        ask(
            folder / "ada.json", lambda pool: pool.operate(m.DrainServer("a", "only operators may"))
        )


def introduce(folder: Path, servers: Mapping[str, Server], name: str) -> None:
    """Tell a server where those that run listen now: the recorded ports may be others'."""
    path = folder / name / "identity.json"
    fields = json.loads(path.read_text())
    for other in servers.values():
        if other.process is not None:
            identity = json.loads((other.state_dir / "identity.json").read_text())
            fields["members"][identity["server"]] = other.address()
    path.write_text(json.dumps(fields))


def states(seen: View, leases: Sequence[Lease]) -> set[str]:
    """Return how far these leases are."""
    return {
        each["state"] for each in seen["leases"] if each["id"] in {lease_name(x.id) for x in leases}
    }


@pytest.mark.parametrize("state_dir", ["a", "a-with-snapshot"])
def test_a_server_goes_on_with_a_recorded_pool(state_dir: str, folder: Path) -> None:
    unpack("solo", folder)
    if state_dir != "a":
        shutil.rmtree(folder / "a")
        (folder / state_dir).rename(folder / "a")
    before = table_of(folder / "a.table")
    server = Server("a", folder)
    try:
        server.start()
        server.wait()
        send_to(folder, server)
        operator = folder / "root.json"
        # It was killed, and so were its workers: what they had is free.
        seen = wait_until(operator, lambda seen: not seen["leases"])
        assert (seen["name"], seen["cluster_id"]) == (before.name, before.cluster_id)
        (only,) = seen["servers"]
        was = before.servers[only["id"]]
        assert only["name"] == "a"
        assert only["address"] == server.address()
        assert only["labels"] == was.labels == {"rack": "r3", "room": "b2"}
        assert only["reason"] == was.drain_reason == "new fan"
        assert only["incarnation"] == was.incarnation + 1
        assert [gpu["id"] for gpu in only["gpus"]] == list(was.gpus)
        ended = [each["subject"] for each in seen["events"] if each["kind"] == "ended"]
        assert {f"{lease:04x}" for lease in before.leases} <= set(ended)
        check_what_people_decided(folder, before)
        ask(operator, lambda pool: pool.operate(m.DrainServer("a", None)))
        check_logins(folder)
        server.end(signal.SIGTERM)
    finally:
        server.end()


def test_three_servers_go_on_with_a_recorded_pool(folder: Path) -> None:
    unpack("trio", folder)
    before = table_of(folder / "a.table")
    away = next(server.id for server in before.servers.values() if server.name == "c")
    kept = [lease for lease in before.leases.values() if lease.parts.keys() == {away}]
    torn = [lease for lease in before.leases.values() if len(lease.parts) > 1]
    assert kept and torn
    servers = {name: Server(name, folder) for name in "abc"}
    try:
        for name in "ab":
            introduce(folder, servers, name)
            servers[name].start()
            servers[name].wait()
        send_to(folder, servers["a"], servers["b"])
        operator = folder / "root.json"
        # The third server is away, so what it granted stays charged.
        seen = wait_until(operator, lambda seen: states(seen, torn) == {"ending"})
        held = {each["id"]: each for each in seen["leases"]}
        for lease in kept:
            assert held[lease_name(lease.id)]["state"] in ("held", "unreachable")
            assert held[lease_name(lease.id)]["user"] == lease.user
            assert held[lease_name(lease.id)]["granted_at"] == lease.granted_at
            partitions = [(p["gpu"], p["memory"]) for p in held[lease_name(lease.id)]["partitions"]]
            assert partitions == [(p.gpu, p.memory) for p in lease.partitions]
        assert set(seen["raft"]["voters"]) == set(before.voters())
        assert {each["name"] for each in seen["servers"]} == set("abc")
        check_what_people_decided(folder, before)
        introduce(folder, servers, "c")
        servers["c"].start()
        servers["c"].wait()
        seen = wait_until(operator, lambda seen: not seen["leases"])
        (third,) = (each for each in seen["servers"] if each["name"] == "c")
        assert third["reason"] == "new fan"
        assert third["labels"] == {"rack": "r3", "room": "b2"}
        check_logins(folder)
    finally:
        for server in servers.values():
            server.end()
