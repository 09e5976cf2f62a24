"""Looking at a pool and operating it: views, updates, tokens, drains, departures, admissions."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import GIB, Cluster, request, server_id
from tests.remoting.control.control_kit import until

from gpupool.pool.errors import (
    AuthenticationError,
    DeniedError,
    GpupoolError,
    NoQuorumError,
    NotNowError,
    UnknownNameError,
    UsageError,
)
from gpupool.pool.fair_access import UserBound
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import TokenKind
from gpupool.pool.record_query import RecordPage, RecordQuery
from gpupool.pool.table_clock import ClockSample
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.remoting.client import subscription
from gpupool.remoting.client.enrolment import join_pool, login
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.server_connections import ServerConnection
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.sealed_key import is_sealed, public_of
from gpupool.remoting.protocol.sessions import DOCTOR, SIGNER_OPEN, WORKERS_HAVE, WORKERS_LACK
from gpupool.remoting.protocol.token_text import parse_token
from gpupool.remoting.server import admin_service, controller, lease_service, view_service
from gpupool.remoting.server.control_server import BackgroundWork
from gpupool.remoting.transport.authority.ca_vault import make_request
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.pki import create_ca, create_key_and_csr, sign_server

Clock = trio.testing.MockClock


async def test_view_and_telemetry(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2, 1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 1, 0.5), wait_s=0)
        view = await pool.view()
        assert view.raft.quorum
        assert [server.name for server in view.servers] == ["gpu-1", "gpu-2", "gpu-3"]
        [lease] = view.leases
        assert (lease.id, lease.user, lease.program) == (hold.lease, "ada", "train.py")
        assert sorted(s.state for s in view.servers) == ["idle", "idle", "mix"]
        telemetry = await pool.telemetry()
        assert set(telemetry) == {node.id for node in cluster.nodes}
        counted = [each.counters.get("grants_granted", 0) for each in telemetry.values()]
        assert sorted(counted) == [0, 0, 1]  # by the server that was asked for it
        (granting,) = [each for each in telemetry.values() if "grants_granted" in each.counters]
        assert sum(granting.histograms["grant_duration_seconds"].counts) == 1


async def test_updates_go_on_when_servers_come_and_go(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool, pool.subscribe(0.5) as updates:
        first = await updates.receive()
        assert first.view.name == "lab"
        await trio.sleep(2)
        latest = [await updates.receive() for _ in range(3)][-1]
        assert set(latest.telemetry) == {node.id for node in cluster.nodes}
        assert latest.age_s < 1
        lost, *rest = cluster.nodes
        await cluster.crash(lost)
        await trio.sleep(2)
        latest = [await updates.receive() for _ in range(3)][-1]
        assert set(latest.telemetry) == {node.id for node in rest}
        for node in rest:
            await cluster.crash(node)
        await trio.sleep(20)
        latest = [await updates.receive() for _ in range(3)][-1]
        assert latest.connected == ()
        assert latest.age_s > 15


class Heard:
    """The pushes of a client's servers, by the kind of message."""

    def __init__(self) -> None:
        self.servers: dict[type[m.Message], set[ServerId]] = {}

    def arrived(self, connection: ServerConnection) -> None: ...

    def left(self, connection: ServerConnection) -> None: ...

    def pushed(self, connection: ServerConnection, message: m.Message) -> None:
        self.servers.setdefault(type(message), set()).add(connection.server)

    async def counts(self) -> tuple[int, int]:
        """Return how many servers send the view within two seconds, and how many do not."""
        self.servers.clear()
        await trio.sleep(2)
        whole, lean = (self.servers.get(each, set()) for each in (m.Update, m.TelemetryUpdate))
        assert not whole & lean
        return len(whole), len(lean)


async def test_a_few_servers_send_the_view_and_others_take_over(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, heard = Cluster(nursery), Heard()
    await cluster.start([1] * 6)
    async with cluster.client() as pool:
        pool.connections.listen(heard)
        async with pool.subscribe(0.5) as updates:
            await trio.sleep(2)
            latest = [await updates.receive() for _ in range(3)][-1]
            assert set(latest.telemetry) == {node.id for node in cluster.nodes}
            assert await heard.counts() == (3, 3)
            viewers = heard.servers[m.Update]
            for node in [node for node in cluster.nodes if node.id in viewers][:2]:
                await cluster.crash(node)
            await trio.sleep(8)
            latest = [await updates.receive() for _ in range(3)][-1]
            assert latest.age_s < 1
            assert len(latest.telemetry) == 4
            assert await heard.counts() == (3, 1)
        await trio.sleep(1)
        assert await heard.counts() == (0, 0)
        monkeypatch.setattr(subscription, "LARGE", 3)
        async with pool.subscribe(0.5):
            await trio.sleep(2)
            assert await heard.counts() == (1, 3)


async def test_who_forgets_a_user_is_told_the_pseudonym_that_the_pool_has(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client("root") as root:
        said = [await root.operate(m.ForgetUser("ada")) for _ in range(2)]
    known = [each.pseudonym for each in cluster.state.forgotten]
    assert said == [f"the accounts and histories know ada as {each}" for each in known]
    assert len(set(known)) == 2, "who comes back under the name begins anew"


async def test_drain_and_undrain(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client("root") as root, cluster.client() as pool:
        hold = await pool.allocate(request(pool, fraction=0.5), wait_s=0)
        await root.operate(m.DrainServer("gpu-1", "new fans"))
        with pytest.raises(NotNowError, match="gpu-1: grants nothing now: new fans"):
            await pool.allocate(request(pool, fraction=0.5), wait_s=0)
        assert not hold.lost
        [server] = (await pool.view()).servers
        assert (server.state, server.reason) == ("drain", "new fans")
        assert await root.operate(m.DrainServer("gpu-1", None)) == "gpu-1 takes leases again"
        assert (
            await root.operate(m.DrainServer("gpu-1", None)) == "gpu-1 is not drained"
        )  # it was not drained any more
        assert [each.kind for each in (await pool.view()).events].count("undrained") == 1
        await pool.allocate(request(pool, fraction=0.5), wait_s=0)
        with pytest.raises(UnknownNameError, match="no server named gpu-7"):
            await root.operate(m.DrainServer("gpu-7", "typo"))
        for reason in ("x" * 201, "two\nlines", "\x1b[31mred"):
            with pytest.raises(UsageError, match="one line of at most 200 characters"):
                await root.operate(m.DrainServer("gpu-1", reason))
        with pytest.raises(UsageError, match="too large to be asked for"):
            await root.operate(m.DrainServer("gpu-1", "x" * 70_000))
        assert (await root.view()).servers[0].state != "drain"  # the connection has survived


async def test_a_finding_is_silenced(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client("root") as root, cluster.client() as pool:
        order = m.SetSilence("disk", "gpu-1", "free", "new disk", 3600.0)
        assert await root.operate(order) == "disk on gpu-1 (free) is silenced"
        view = await pool.view()
        [known] = view.silences
        assert (known.reason, known.by) == ("new disk", "root")
        assert 3_590_000 < known.until - view.now <= 3_600_000
        with pytest.raises(DeniedError):
            await pool.operate(order)
        lift = m.SetSilence("disk", "gpu-1", "free", None, 0.0)
        assert await root.operate(lift) == "disk on gpu-1 (free) is not silenced any more"
        assert await root.operate(lift) == "disk on gpu-1 (free) is not silenced"
        assert (await pool.view()).silences == ()
        for wrong in (
            m.SetSilence("disk", "", "", " ", 60.0),
            m.SetSilence("disk", "", "", "why", 91 * 86_400.0),
            m.SetSilence("disk", "", "", "why", 0.0),
            m.SetSilence("disk", "", "", "two\nlines", 60.0),
        ):
            with pytest.raises(UsageError):
                await root.operate(wrong)
        acts = [act.kind for act in (await root.audit()).acts]
        assert acts[-2:] == ["silenced", "unsilenced"]


async def test_one_gpu_is_drained(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2])
    async with cluster.client("root") as root, cluster.client() as pool:
        done = await root.operate(m.DrainGpu("gpu-1", "1", "new fan"))
        assert done == "GPU 1 of gpu-1 is drained; what runs there goes on"
        first = await pool.allocate(request(pool, fraction=1.0), wait_s=0)
        with pytest.raises(NotNowError, match="1 drained"):
            await pool.allocate(request(pool, fraction=0.5), wait_s=0)
        [server] = (await pool.view()).servers
        assert [gpu.drain for gpu in server.gpus] == ["", "new fan"]
        assert [part.gpu for part in (await pool.view()).leases[0].partitions] == [
            server.gpus[0].id
        ]
        assert not first.lost
        undrain = m.DrainGpu("gpu-1", server.gpus[1].id, None)
        assert (await root.operate(undrain)).endswith("takes leases again")
        assert (await root.operate(undrain)).endswith("is not drained")
        await pool.allocate(request(pool, fraction=0.5), wait_s=0)
        with pytest.raises(UsageError, match="gpu-1 has no GPU 7"):
            await root.operate(m.DrainGpu("gpu-1", "7", "typo"))
        for reason in ("", "auto: mine"):
            with pytest.raises(UsageError, match="needs a reason"):
                await root.operate(m.DrainGpu("gpu-1", "0", reason))


async def test_a_failing_gpu_is_drained_by_its_server(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2])
    [node] = cluster.nodes
    gpu = next(iter(cluster.state.servers[node.id].gpus))
    node.server.controller.context.me.checks.signs = {(gpu, "thermal"): "at 96 C"}
    async with cluster.client("root") as root:
        await trio.sleep(3)
        drains = [each.drain for each in (await root.view()).servers[0].gpus]
        assert drains == ["auto: thermal: at 96 C", ""]
        await root.operate(m.DrainGpu("gpu-1", "0", None))
        await trio.sleep(3)
        assert not any(each.drain for each in (await root.view()).servers[0].gpus)


async def test_a_server_that_is_late_denies_nothing_that_the_pool_has(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """Found by simulation: it refused for good to remove a server that it did not know yet."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    late = cluster.nodes[2]
    cluster.cut_off(late)
    newcomer = await cluster.add(4, 1)
    async with cluster.client(servers=["gpu-1"]) as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        cluster.heal(late, late=True)
        async with cluster.client("root", servers=[late.name]) as root:
            await root.operate(m.EndLease(hold.lease, "maintenance"))
        cluster.cut_off(late)
        cluster.admit(replace(newcomer, name="gpu-5", id=server_id(5)))
        cluster.heal(late, late=True)
        async with cluster.client("root", servers=[late.name]) as root:
            await root.operate(m.DrainServer("gpu-5", "new fans"))
    assert cluster.state.servers[server_id(5)].drain_reason == "new fans"
    assert hold.lost == "maintenance (by root)"


async def test_no_text_of_a_client_moves_anybodys_cursor(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        evil = "\x1b[2Jtrain.py\r\n\u202e"
        await pool.allocate(request(pool, program=evil), wait_s=0)
        waiter = request(pool, program=evil, client=evil)
        connection = next(iter(pool.connections.by_server.values()))
        await connection.call(m.AwaitGpus(waiter, evil), timeout_s=5)
        view = await pool.view()
        texts = [
            view.leases[0].program,
            *(getattr(view.waiting[0], n) for n in ("program", "client", "reason")),
        ]
        assert texts == ["\ufffd[2Jtrain.py\ufffd\ufffd\ufffd"] * 4


async def test_every_user_sees_the_audit(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client("root") as root, cluster.client(servers=["gpu-2"]) as pool:
        hold = await pool.allocate(request(pool, fraction=0.5), wait_s=0)
        count = (await pool.audit()).count
        await root.operate(m.DrainServer("gpu-1", "new fans"))
        await root.operate(m.EndLease(hold.lease, "make room"))
        answer = await pool.audit()  # what was done before the question is in the answer
        assert answer.count == count + 2
        drained, ended = answer.acts[-2:]
        assert (drained.kind, drained.by, drained.text) == ("drained", "root", "new fans")
        assert (ended.kind, ended.text) == ("lease-ended", "lease of ada: make room (by root)")


async def test_a_backup_of_one_pool_is_restored_into_another(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    old, new = Cluster(nursery), Cluster(nursery)
    await old.start([1, 1])
    await new.start([1], users=("eve",))
    async with old.client("root") as root, old.client() as ada:
        await root.operate(m.DrainServer("gpu-1", "new fans"))
        with pytest.raises(DeniedError, match="takes an operator's token"):
            await ada.backup()
        file = await root.backup()
        assert (await root.audit()).acts[-1].kind == "backup-made"
        assert old.state.backup_at
    async with new.client("eve") as eve, new.client("root") as root:
        with pytest.raises(DeniedError, match="takes an operator's token"):
            await eve.restore(file)
        with pytest.raises(UsageError, match="checksum does not match"):
            await root.restore(file[:-20])
        hold = await eve.allocate(request(eve), wait_s=0)
        with pytest.raises(DeniedError, match="are never restored"):
            await root.restore(file)
        await hold.release("done")
        await until(lambda: not new.state.leases)
        text = await root.restore(file)
        assert text.startswith("no policy, 2 tokens, labels of 0 servers")
        answer = await root.audit()
        assert "new fans" in [act.text for act in answer.former]
        assert answer.acts[-1].kind == "restored"
        assert await root.restore(file) == "this backup before"
    async with new.client("ada"):
        pass  # her token is known here now


async def test_a_removed_server_sends_everybody_away(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client("root") as root, cluster.client() as pool:
        await until(lambda: len(pool.connections.by_server) == 3)
        hold = await pool.allocate(request(pool), wait_s=0)
        await hold.open_session("arrays", "train.py")
        node = next(n for n in cluster.nodes if n.id == hold.servers[0])
        await root.operate(m.RemoveServer(node.name))
        assert "left the pool" in await hold.wait_lost()
        await trio.sleep(1)
        assert node.host.workers == {}
        assert set(pool.connections.by_server) == {n.id for n in cluster.nodes if n is not node}
        assert node.name not in [server.name for server in (await pool.view()).servers]
        # A client that lost its connection to the removed one repeats the order at another server.
        done = f"{node.name} is no longer in the pool"
        assert (await root.operate(m.RemoveServer(node.name))).startswith(done)
        await trio.sleep(61)
        with pytest.raises(UnknownNameError, match="no server named"):
            await root.operate(m.RemoveServer(node.name))
        # It is told to consensus everywhere, the removed one included.
        for each in cluster.nodes:
            servers, voters = each.followed[-1]
            assert node.id not in servers
            assert node.id not in voters


async def test_join_and_the_members_that_everybody_learns(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client("root", servers=["gpu-1"]) as root:
        token = await root.create_token(TokenKind.SERVER, "rack 4", 3600)
        _key, csr = create_key_and_csr(server_id(2))
        node = await cluster.add(2, 1)
        joined = await join_pool(
            token,
            server=server_id(2),
            name="gpu-2",
            address=Address("gpu-2", 7470),
            witness=False,
            csr_pem=csr,
            dial=cluster.dial,
        )
        assert joined.voter
        assert node.id in [member.server for member in joined.members]
        await until(lambda: node.id in root.connections.by_server)
        assert [t.state for t in await root.list_tokens() if t.kind is TokenKind.SERVER] == ["used"]
        credentials = await login(
            await root.create_token(TokenKind.USER, "bob", 60), dial=cluster.dial
        )
        assert [str(a) for a in credentials.addresses] == ["gpu-1:7470", "gpu-2:7470"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"server": "UPPERCASE123"}, "12 lowercase hex"),
        ({"csr_pem": b"nonsense"}, "certificate request is malformed"),
        ({"csr_pem": b"x" * 3000}, "too long"),
        ({"name": ""}, "1 to 64 characters"),
        ({"name": "gpu-1"}, "has a server named gpu-1 already; choose another --name"),
        ({"address": "no address"}, "not an address"),
    ],
)
async def test_malformed_admissions_spend_no_token(
    autojump_clock: Clock, nursery: trio.Nursery, change: dict[str, object], what: str
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    cluster.create_token("new", TokenKind.SERVER)
    _key, csr = create_key_and_csr(server_id(2))
    fields: dict[str, object] = {
        "server": server_id(2),
        "name": "gpu-2",
        "address": "gpu-2:7470",
        "witness": False,
        "csr_pem": csr,
    }
    message = m.JoinPool(**(fields | change))  # type: ignore[arg-type]
    async with cluster.client("new") as pool:
        connection = next(iter(pool.connections.by_server.values()))
        with pytest.raises((AuthenticationError, UsageError)) as caught:
            await connection.call(message, timeout_s=5)
        assert what in f"{caught.value}; {caught.value.hint}"
        token = next(t for t in cluster.state.tokens.values() if t.user == "new")
        assert token.used_by is None


async def test_a_new_voter_takes_only_the_real_key(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    node = await cluster.add(2, 1)
    node.server.authorities.key._signers.clear()  # pyright: ignore[reportPrivateUsage]
    take = node.server._links.takes[Kind.KEY_GIVE]  # pyright: ignore[reportPrivateUsage]
    give = cluster.nodes[0].server._links.takes[Kind.KEY_ASK]  # pyright: ignore[reportPrivateUsage]
    key, csr = create_key_and_csr(node.id)
    certificate = sign_server(cluster.authority, csr, node.id, datetime.now(UTC))
    asked = make_request(node.server.authorities.key.vault.public(), certificate, key)
    assert give(node.id, asked) == b""  # not a member yet
    cluster.admit(node)
    take(ServerId("x"), b"nonsense")
    take(ServerId("x"), create_ca("other", datetime.now(UTC)).key_pem)
    assert node.server.authorities.key.signer is None
    take(cluster.nodes[0].id, give(node.id, asked) or b"")
    assert [public_of(each) for each in node.keys] == [public_of(cluster.authority.key_pem)]
    assert is_sealed(node.keys[0])
    assert node.server.authorities.key.signer is not None


def noting(asked: list[ServerId]) -> Callable[[ServerId, Kind, bytes], bool]:
    def tell(peer: ServerId, kind: Kind, _body: bytes) -> bool:
        asked.append(peer)
        return kind is Kind.KEY_ASK

    return tell


async def test_a_voter_without_the_key_asks_at_once_who_connects(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 10000982: it asked each 5 s, and the only server with the key left meanwhile."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    first, node = cluster.nodes
    asked: list[ServerId] = []
    links = node.server._links  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(links, "tell", noting(asked))
    monkeypatch.setattr(node.server.authorities.key, "request", bytes)
    node.server.authorities.key._signers.clear()  # pyright: ignore[reportPrivateUsage]
    await trio.sleep(1)
    assert asked == [first.id], "even if it is not connected: that costs nothing"
    for count in (2, 3):
        node.replicated_log.linked = (first.id,)
        await trio.sleep(1)
        assert asked == [first.id] * count, "once for each link"
        node.replicated_log.linked = ()
        await trio.sleep(0.5)
    await trio.sleep(5)
    assert asked == [first.id] * 4, "and every now and then"


async def test_the_table_knows_who_has_the_key_and_the_last_of_them_stays(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 10000982: the other server was up, and had not the key yet."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    first, node = cluster.nodes
    assert [each.has_keys for each in cluster.state.servers.values()] == [True, True]
    links = node.server._links  # pyright: ignore[reportPrivateUsage]
    asked: list[ServerId] = []
    monkeypatch.setattr(links, "tell", noting(asked))
    monkeypatch.setattr(node.server.authorities.key, "request", bytes)
    signers = node.server.authorities.key._signers  # pyright: ignore[reportPrivateUsage]
    kept = dict(signers)
    signers.clear()
    await trio.sleep(1)
    assert not cluster.state.servers[node.id].has_keys
    async with cluster.client("root") as root:
        with pytest.raises(DeniedError, match="no other server has the key of the pool's CA yet"):
            await root.operate(m.RemoveServer(first.name))
        signers |= kept
        await trio.sleep(1)
        assert cluster.state.servers[node.id].has_keys
        await root.operate(m.RemoveServer(first.name))


async def test_tokens_are_good_while_two_servers_are_down(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 2, 3])
    async with cluster.client("root") as root:
        token = await root.create_token(TokenKind.USER, "bob", 600)
    named = {address.host for address in parse_token(token).addresses}
    assert named == {node.name for node in cluster.nodes}
    cluster.unreachable |= {node.name for node in cluster.nodes[:2]}
    assert (await login(token, dial=cluster.dial)).user == "bob"


async def test_tokens_end_with_their_time(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client("root") as root:
        token = await root.create_token(TokenKind.USER, "bob", 60)
        await login(token, dial=cluster.dial)
        await trio.sleep(61)
        with pytest.raises(AuthenticationError, match="has expired"):
            await login(token, dial=cluster.dial)
        with pytest.raises(UsageError, match="at most 10 years"):
            await root.create_token(TokenKind.USER, "bob", 1e12)


async def test_calls_of_one_client_are_limited(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    cluster.log.latency_s = 0.5
    refused = 0
    async with cluster.client() as pool:
        connection = next(iter(pool.connections.by_server.values()))

        async def wait() -> None:
            nonlocal refused
            try:
                await connection.call(m.AwaitGpus(request(pool), "busy"), timeout_s=5)
            except DeniedError as error:
                assert "more than 64 calls" in str(error)  # noqa: PT017
                refused += 1

        async with trio.open_nursery() as inner:
            for _ in range(70):
                inner.start_soon(wait)
        assert refused == 6


async def test_calls_of_one_user_are_limited_and_each_is_counted_once(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "CALL_BOUND", UserBound(user=12, token=10))
    cluster = Cluster(nursery)
    await cluster.start([1], users=("ada", "bob"))
    cluster.log.latency_s = 0.5
    refused: list[str] = []

    async def wait(pool: Pool, message: m.CallFor[m.Answer]) -> None:
        (connection,) = pool.connections.by_server.values()
        try:
            await connection.call(message, timeout_s=5)
        except GpupoolError as error:
            refused.append(str(error))

    def everything(pool: Pool) -> list[m.CallFor[m.Answer]]:
        unknown = m.Attach(LeaseId(2**40), b"x")
        return [m.AwaitGpus(request(pool), "busy"), m.GetAudit(), unknown, m.GetView()]

    async with cluster.client("ada") as one, cluster.client("bob") as bob:
        async with cluster.client("ada") as two, trio.open_nursery() as calling:
            for _ in range(6):
                calling.start_soon(wait, one, m.AwaitGpus(request(one), "busy"))
                calling.start_soon(wait, two, m.AwaitGpus(request(two), "busy"))
            await trio.sleep(0.1)
            assert len(refused) == 2
            assert "of ada has 10 calls under way" in refused[0]
            await wait(bob, m.Ping())
            await trio.sleep(1)
            for message in everything(two):
                calling.start_soon(wait, two, message)
            await trio.sleep(0.1)
            calling.cancel_scope.cancel()
        await trio.sleep(5)  # what was asked for by a connection that has gone is over
        (node,) = cluster.nodes
        assert node.server.controller.context.clients.calls_under_way() == 0
        assert len(refused) == 2


async def test_a_client_that_reads_nothing_is_hung_up_on(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    near, far = trio.testing.lockstep_stream_pair()
    nursery.start_soon(cluster.nodes[0].server.streams.serve, far, "deaf client")
    text = cluster.token_text("ada")
    hello = m.Hello(m.PROTOCOL, "", text.token, text.secret, "deaf")
    await near.send_all(m.to_frame(1, hello, size_max=4096))
    assert await near.receive_some()
    view = m.to_frame(2, m.GetView(), size_max=4096)
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        for _ in range(1000):
            await near.send_all(view)
    await trio.testing.wait_all_tasks_blocked()
    assert not cluster.nodes[0].server.controller.context.clients.welcomed()


async def test_moved_readings_and_faults_reach_the_table(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    node = cluster.nodes[0]
    [gpu] = node.host.devices
    count = len(cluster.log.entries)
    node.host.devices = (replace(gpu, memory_foreign=100 << 20),)
    await trio.sleep(5)
    assert len(cluster.log.entries) == count  # too little to tell
    node.host.devices = (replace(gpu, memory_foreign=10 * GIB),)
    await trio.sleep(2)
    node.host.devices = (replace(gpu, memory_foreign=10 * GIB, fault="Xid 79"),)
    await trio.sleep(2)
    [known] = cluster.state.servers[node.id].gpus.values()
    assert (known.memory_foreign, known.fault) == (10 * GIB, "Xid 79")
    assert len(cluster.log.entries) == count + 2


async def test_a_server_with_a_wrong_clock_does_not_move_the_time(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    node = cluster.nodes[1]
    clock = node.server.controller.context.table_clock
    now = cluster.clock.monotonic()
    right = ClockSample(cluster.clock.wall_ms() - int(now * 1000), now, 0.0)

    def sample(_peer: ServerId) -> ClockSample:
        return right

    clock.sample = sample
    cluster.clock.wall_start_ms += 3_600_000  # the second server reads an hour too late
    known = cluster.state.now
    async with cluster.client(servers=["gpu-2"]) as pool:
        cluster.unreachable = {"gpu-1"}
        await cluster.cut("gpu-1")
        await pool.allocate(request(pool, servers=("gpu-2",)), wait_s=0)
        view = await pool.view()
        assert any("gpu-2 is 1h ahead of the pool's" in warning for warning in view.warnings)
    assert cluster.state.leases
    assert cluster.state.now - known < 10_000


async def test_doctor_alone_is_told_what_confines_workers(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        assert (await pool.view()).warnings == ()
    async with cluster.client(client=DOCTOR) as pool:
        said = (await pool.view()).warnings
    assert said == (f"{WORKERS_HAVE}fake", f"{WORKERS_LACK}a network (that needs root)")
    cluster.nodes[0].server.authorities.signer_has_own_user = False
    async with cluster.client(client=DOCTOR) as pool:
        assert (await pool.view()).warnings == (SIGNER_OPEN, *said)


async def test_a_server_that_has_just_started_asks_for_a_moment(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    node = await cluster.add(2, 1)  # its table does not have it yet

    before = trio.current_time()
    with pytest.raises(NoQuorumError, match="has just started") as caught:
        async with cluster.client(servers=["gpu-2"]):
            pass
    assert "majority" in str(caught.value.why)
    assert 0.5 < trio.current_time() - before < 3.0

    async def admit_later() -> None:
        await trio.sleep(0.4)
        cluster.admit(node)

    nursery.start_soon(admit_later)
    async with cluster.client(servers=["gpu-2"]) as pool:
        assert "gpu-2" in {connection.name for connection in pool.connections.by_server.values()}


async def test_a_server_that_is_late_takes_a_policy_that_follows_one_it_does_not_know(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """Found by simulation: it said that it was made from a later version than the one in force."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    late = cluster.nodes[2]
    cluster.cut_off(late)
    async with cluster.client("root", servers=["gpu-1"]) as root:
        await root.put_policy(pack_text("[defaults]\nmax_gpus = 1\n"), 0)
    cluster.heal(late, late=True)
    async with cluster.client("root", servers=[late.name]) as root:
        await root.put_policy(pack_text("[defaults]\nmax_gpus = 2\n"), 1)
    assert cluster.state.policy.version == 2


async def test_each_server_is_told_the_weights_of_its_own_leases(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1], users=("ada",))
    async with cluster.client() as pool, cluster.client("root") as root:
        one, two = [await pool.allocate(request(pool, 1), wait_s=0) for _ in range(2)]
        assert [node.host.weights for node in cluster.nodes] == [{}, {}]
        policy = "[class.lab]\nusers = ['ada']\nweight = 2.5\n"
        for version, text, weight in ((0, policy, 2.5), (1, policy.replace("2.5", "4"), 4.0)):
            await root.put_policy(pack_text(text), version)
            await trio.sleep(2)
            told = [node.host.weights for node in cluster.nodes]
            assert sorted(map(len, told)) == [1, 1]
            assert told[0] | told[1] == {one.lease: weight, two.lease: weight}
        window = "[[window]]\nfrom = '00:00'\nto = '24:00'\n[window.class.lab]\nweight = 0.5\n"
        await root.put_policy(pack_text(policy + window), 2)
        await trio.sleep(2)
        assert set(cluster.nodes[0].host.weights.values()) == {0.5}
        await root.put_policy(pack_text("[class.lab]\nusers = ['ada']\n"), 3)
        await trio.sleep(2)
        assert [node.host.weights for node in cluster.nodes] == [{}, {}]


async def test_one_user_cannot_take_all_connections(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "CONNECTION_BOUND", UserBound(user=2, token=2))
    cluster = Cluster(nursery)
    await cluster.start([1], users=("ada", "eve"))
    async with cluster.client("ada"), cluster.client("eve") as eve:
        async with cluster.client("ada") as second:
            await second.view()
            with pytest.raises(NotNowError, match="ada has 2 connections"):
                async with cluster.client("ada"):
                    pass
        await eve.view()
        async with cluster.client("ada") as again:
            await again.view()


async def test_one_token_leaves_its_users_others_a_connection(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "CONNECTION_BOUND", UserBound(user=2, token=1))
    cluster = Cluster(nursery)
    await cluster.start([1], users=("ada",))
    async with cluster.client("ada") as first:
        with pytest.raises(NotNowError, match=r"token [0-9a-f]{12} of ada has 1 connections"):
            async with cluster.client("ada"):
                pass
        await first.view()
    async with cluster.client("ada") as again:
        await again.view()


async def test_one_connection_cannot_have_any_number_of_leases(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_service, "ATTACHED_COUNT_MAX", 1)
    cluster = Cluster(nursery)
    await cluster.start([2])
    async with cluster.client() as pool:
        await pool.allocate(request(pool), wait_s=0)
        with pytest.raises(DeniedError, match="more than 1 leases on one connection"):
            await pool.allocate(request(pool), wait_s=0)
        async with cluster.client() as another:
            await another.allocate(request(another), wait_s=0)


async def test_updates_go_to_all_at_the_same_moments(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """So that a server makes one for all, whenever they have begun; the first one comes at once."""
    cluster = Cluster(nursery)
    await cluster.start([1])
    shown: list[list[int]] = []
    async with AsyncExitStack() as stack:
        for delay_s in (0.0, 0.2, 0.31):
            await trio.sleep(delay_s)
            began = trio.current_time()
            pool = await stack.enter_async_context(cluster.client())
            updates = await stack.enter_async_context(pool.subscribe(0.5))
            seen = [await updates.receive()]
            assert trio.current_time() - began < 0.1
            seen += [await updates.receive() for _ in range(4)]
            shown.append([each.at for update in seen[2:] for each in update.telemetry.values()])
    assert {at % 500 // 100 for ats in shown for at in ats} == {shown[0][0] % 500 // 100}


@pytest.mark.parametrize("every_s", [0.1, 0.25, 1.0, 60.0])
def test_beats_are_those_of_the_clock(every_s: float) -> None:
    at = 123.456
    for _ in range(20):
        later = view_service.next_beat(at, every_s)
        assert every_s / 2 < later - at <= 1.5 * every_s + 1e-9
        assert later / every_s == pytest.approx(round(later / every_s))
        at = later + every_s / 50


async def test_one_user_cannot_take_all_questions(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_service, "USAGE_BOUND", UserBound(user=2, token=2))
    monkeypatch.setattr(admin_service, "USAGE_TOTAL_MAX", 3)
    cluster = Cluster(nursery)
    await cluster.start([1], ["ada", "bob", "eve"])
    (node,) = cluster.nodes
    answered = trio.Event()

    async def answer(_query: object) -> RecordPage:
        await answered.wait()
        return RecordPage()

    monkeypatch.setattr(node.server, "_background", BackgroundWork(ask_records=answer))
    over: list[str] = []

    async def ask(pool: Pool) -> None:
        (connection,) = pool.connections.by_server.values()
        await connection.call(m.GetUsage(RecordQuery()), timeout_s=50)
        over.append(pool.credentials.user)

    async with AsyncExitStack() as stack:
        adas = [await stack.enter_async_context(cluster.client("ada")) for _ in range(3)]
        others = [await stack.enter_async_context(cluster.client(name)) for name in ("bob", "eve")]
        async with trio.open_nursery() as asking:
            for pool in (*adas[:2], others[0]):
                asking.start_soon(ask, pool)
                await trio.sleep(1)
            with pytest.raises(NotNowError, match="ada has 2 questions about usage"):
                await ask(adas[2])
            with pytest.raises(NotNowError, match="too many questions"):
                await ask(others[1])
            answered.set()
        await ask(others[1])
    assert len(over) == 4


async def test_one_user_cannot_take_all_subscriptions(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_service, "SUBSCRIPTION_BOUND", UserBound(user=2, token=1))
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client("ada") as one, cluster.client("ada") as two:
        first = next(iter(one.connections.by_server.values()))
        second = next(iter(two.connections.by_server.values()))
        await first.call(m.Subscribe(1.0), timeout_s=5)
        await first.call(m.Subscribe(2.0), timeout_s=5)
        with pytest.raises(NotNowError, match="of ada has 1 subscriptions"):
            await second.call(m.Subscribe(1.0), timeout_s=5)
        await first.call(m.Subscribe(0.0), timeout_s=5)
        await second.call(m.Subscribe(1.0), timeout_s=5)
