"""One physical GPU that several servers show: two servers on one host, or a host come back anew."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Gpu, Partition, PoolState, Request, TokenKind
from gpupool.pool.transitions.apply import PoolMachine

GIB = 1 << 30
SERVERS = tuple(ServerId(name * 12) for name in "abc")
CARDS = tuple(GpuId(f"GPU-{number}") for number in range(3))
FAR = Milliseconds(10**12)


class Pool:
    """A table, and commands on it."""

    def __init__(self) -> None:
        self.machine = PoolMachine(PoolState())
        self.do(c.CreatePool("cluster", "lab", "tls"))
        self.do(c.JoinServer(SERVERS[0], "a", "a:1", False, None))
        for server in SERVERS[1:]:
            token = TokenId(f"t{server}")
            self.do(c.CreateToken(token, TokenKind.SERVER, "s", bytes(32), FAR, "root"))
            self.do(c.JoinServer(server, server[0], f"{server[0]}:1", False, token))
        self.do(c.CreateToken(TokenId("ada"), TokenKind.USER, "ada", bytes(32), FAR, "root"))
        self.requests = 0

    @property
    def state(self) -> PoolState:
        return self.machine.state

    def do(self, command: c.Command) -> Result:
        plain = wrap(command, at_ms=1000, ttl_ms=0)
        return decode(Result, self.machine.apply(self.state.index + 1, plain))

    def up(self, server: ServerId, cards: tuple[GpuId, ...], *, restart: bool = False) -> Result:
        known = self.state.servers.get(server)
        incarnation = Incarnation((known.incarnation if known else 0) + restart)
        gpus = tuple(Gpu(card, index, "H200", 80 * GIB) for index, card in enumerate(cards))
        return self.do(c.ServerUp(server, incarnation, "x:1", "1", "580.2", "13.0", gpus, {}))

    def grant(self, server: ServerId, card: GpuId) -> Result:
        self.requests += 1
        known = self.state.servers.get(server)
        return self.do(
            c.Grant(
                request=Request(RequestId(self.requests.to_bytes(16, "big")), 1, 0.25),
                user="ada",
                token=TokenId("ada"),
                ticket_hash=bytes(32),
                partitions=(Partition(server, card, 20 * GIB),),
                incarnations={server: known.incarnation if known else Incarnation(0)},
            )
        )

    def clash(self, server: ServerId, card: GpuId) -> str:
        return self.state.servers[server].gpus[card].clash


def test_a_gpu_belongs_to_the_server_that_offered_it_first() -> None:
    pool = Pool()
    pool.up(SERVERS[1], CARDS[:2], restart=True)
    pool.up(SERVERS[0], CARDS[:1], restart=True)  # joined earlier, but offers it later
    assert pool.clash(SERVERS[0], CARDS[0]) == "already offered by server b"
    assert pool.clash(SERVERS[1], CARDS[0]) == ""
    assert pool.grant(SERVERS[1], CARDS[0]).ok
    refused = pool.grant(SERVERS[0], CARDS[0])
    assert (refused.ok, refused.kind) == (False, "busy")
    # Neither a restart of either nor a reading changes that.
    pool.up(SERVERS[1], CARDS[:2], restart=True)
    pool.up(SERVERS[0], CARDS[:1], restart=True)
    reading = {CARDS[0]: c.GpuReading(0, "")}
    incarnation = pool.state.servers[SERVERS[0]].incarnation
    assert pool.do(c.ReportGpus(SERVERS[0], incarnation, reading)).ok
    assert pool.clash(SERVERS[0], CARDS[0]) == "already offered by server b"
    assert [event.kind for event in pool.state.events].count("gpu-clash") == 1


def test_it_goes_to_the_next_one_when_the_first_is_removed_or_lacks_it() -> None:
    pool = Pool()
    for server in SERVERS:
        pool.up(server, CARDS[:1], restart=True)
    pool.do(c.RemoveServer(SERVERS[0], "root"))
    assert pool.clash(SERVERS[1], CARDS[0]) == ""
    assert pool.clash(SERVERS[2], CARDS[0]) == "already offered by server b"
    lease = pool.grant(SERVERS[1], CARDS[0]).lease
    assert lease is not None
    pool.up(SERVERS[1], ())  # it fell off the bus there: not given on while a lease holds it
    assert pool.clash(SERVERS[2], CARDS[0]) == "already offered by server b"
    pool.up(SERVERS[1], (), restart=True)
    assert pool.clash(SERVERS[2], CARDS[0]) == ""
    assert pool.grant(SERVERS[2], CARDS[0]).ok


cards = st.sampled_from(CARDS)
servers = st.sampled_from(SERVERS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("up"), servers, st.sets(cards).map(tuple), st.booleans()),
        *[st.tuples(st.just("grant"), servers, cards, st.just(False))] * 2,
        st.tuples(st.just("end"), servers, cards, st.booleans()),
        st.tuples(st.just("remove"), servers, cards, st.just(False)),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=examples(200), deadline=None)
def test_no_gpu_is_ever_granted_by_two_servers(
    sequence: list[tuple[str, ServerId, GpuId | tuple[GpuId, ...], bool]],
) -> None:
    pool = Pool()
    for what, server, card, flag in sequence:
        if isinstance(card, tuple):
            pool.up(server, card, restart=flag)
        elif what == "grant":
            pool.grant(server, card)
        elif what == "remove":
            pool.do(c.RemoveServer(server, "root"))
        elif pool.state.leases:
            lease = next(iter(pool.state.leases.values()))
            pool.do(c.EndLease(LeaseId(lease.id), "over"))
            known = pool.state.servers[lease.partitions[0].server]
            pool.do(c.FreeLease(lease.id, known.id, known.incarnation))
        assert violations(pool.state) == []
        holders: dict[GpuId, set[ServerId]] = {}
        for lease in pool.state.leases.values():
            for partition in lease.partitions:
                holders.setdefault(partition.gpu, set()).add(partition.server)
        assert all(len(each) == 1 for each in holders.values())
        # Every GPU that is shown belongs to somebody.
        shown = {gpu.id for s in pool.state.servers.values() for gpu in s.gpus.values()}
        owned = {
            gpu.id for s in pool.state.servers.values() for gpu in s.gpus.values() if not gpu.clash
        }
        assert shown == owned
