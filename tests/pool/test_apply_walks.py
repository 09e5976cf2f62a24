"""Long random walks over the table with commands that fit its state, as a busy pool makes them."""

import random
from dataclasses import replace

import pytest
from tests.pool.pool_strategies import GIB, SERVERS, TOKENS, USERS, founding, server_up
from tests.pool.test_apply_properties import check

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Incarnation, LeaseId, RequestId, ServerId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Lease, Partition, Placement, PoolState, Request
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.scheduling.filters import first_mismatch, parse_filter
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.ranking import rank
from gpupool.pool.transitions.apply import PoolMachine

FILTERS = [
    (parse_filter("server.labels.rack = 1"),),
    (parse_filter("gpu.memory < 20GiB"), parse_filter("server.name != c")),
]


def number_of(lease: Lease) -> int:
    """Return the number that the word of a free part has to carry."""
    return lease.relocation.number if lease.relocation is not None else 0


class Walker:
    """Draws the next command from the state: mostly sensible, sometimes stale or wrong."""

    def __init__(self, seed: int, relocations: int = 0) -> None:
        self.random = random.Random(seed)
        self.relocations = relocations
        self.stale: list[c.Command] = []

    def next(self, state: PoolState) -> c.Command:
        draw = self.random
        if self.stale and draw.random() < 0.1:
            return draw.choice(self.stale)  # proposed again, or late
        makers = [self.claim] * 8 + [self.end] * 3 + [self.free] * 6 + [self.wait] * 3
        makers += [
            self.cancel,
            self.up,
            self.label,
            self.contact,
            self.report,
            self.drain,
            self.rejoin,
            self.suspension,
            self.suspension,
            *([self.relocation] * self.relocations),
        ]
        command = draw.choice(makers)(state)
        self.stale = [*self.stale[-20:], command]
        return command

    def suspension(self, state: PoolState) -> c.Command:
        """Suspend a lease, or continue its suspension: by a server's word, or by an order."""
        apart = [each for each in state.leases.suspended().values() if each.held]
        if self.random.random() < 0.3 or not apart:
            return c.SuspendLease(self.lease(state), "to make room", "root", operator=True)
        lease = self.random.choice(apart)
        assert lease.suspension is not None
        server = self.random.choice(list(lease.parts))
        number, known = lease.suspension.number, state.servers.get(server)
        incarnation = known.incarnation if known is not None else Incarnation(1)
        if lease.suspension.state is SuspensionState.SUSPENDED:
            return c.ResumeLease(lease.id, "root", operator=True)
        if lease.suspension.state is SuspensionState.RESUMING:
            return c.ConfirmResumed(lease.id, server, incarnation, number)
        return c.ConfirmSuspended(lease.id, server, incarnation, number, GIB)

    def relocation(self, state: PoolState) -> c.Command:
        """Return a command to move a lease to another server, or to confirm or refuse a move."""
        going = [each for each in state.leases.relocating().values() if each.held]
        if self.random.random() < 0.3 or not going:
            target = self.random.choice(list(SERVERS))
            return c.RelocateLease(self.lease(state), target, "root", operator=True)
        lease = self.random.choice(going)
        found = lease.relocation
        assert found is not None
        server = self.random.choice([found.source, found.target])
        known = state.servers.get(server)
        incarnation = known.incarnation if known is not None else Incarnation(1)
        if self.random.random() < 0.6:
            return c.ConfirmRelocated(lease.id, server, incarnation, found.number)
        return c.RefuseRelocation(lease.id, found.number, "it will not", server, incarnation)

    def request(self) -> Request:
        draw = self.random
        by_memory = draw.random() < 0.3
        return Request(
            RequestId(draw.randrange(2000).to_bytes(16, "big")),
            draw.choice([1, 1, 1, 2, 3, 4]),
            0.0 if by_memory else draw.choice([0.1, 0.5, 1.0]),
            draw.choice([GIB, 7 * GIB, 30 * GIB]) if by_memory else 0,
            across=draw.random() < 0.3,
            filters=draw.choice([(), (), (), *FILTERS]),
            placement=draw.choice(list(Placement)),
        )

    def claim(self, state: PoolState) -> c.Command:
        request = self.request()
        answers = [make_offer(state, server, request) for server in state.servers.values()]
        choices = rank([a for a in answers if isinstance(a, Offer)], request)
        if not choices:
            assert all(isinstance(answer, NoOffer) for answer in answers) or request.across
            return self.wait(state)
        user = self.random.choice(USERS)
        return c.Grant(
            request,
            user,
            TOKENS[user],
            bytes(32),
            choices[0].partitions,
            choices[0].incarnations,
        )

    def wait(self, state: PoolState) -> c.Command:
        user = self.random.choice(USERS)
        if state.waiting and self.random.random() < 0.7:
            entry = self.random.choice(list(state.waiting.values()))
            return c.Wait(entry.request, entry.user, TOKENS[entry.user], "renewed")
        return c.Wait(self.request(), user, TOKENS[user], "busy")

    def lease(self, state: PoolState) -> LeaseId:
        return self.random.choice([*state.leases, LeaseId(12)])

    def end(self, state: PoolState) -> c.Command:
        return c.EndLease(self.lease(state), "done")

    def free(self, state: PoolState) -> c.Command:
        ending = [lease for lease in state.leases.values() if not lease.held]
        lease = self.random.choice(ending) if ending else None
        if lease is None:
            return self.end(state)
        server = self.random.choice(list(lease.parts))
        known = state.servers.get(server)
        start = known.incarnation if known else Incarnation(1)
        return c.FreeLease(lease.id, server, start, number_of(lease))

    def cancel(self, state: PoolState) -> c.Command:
        ids = [*state.waiting, *state.by_request, self.request().id]
        heir = self.request().id if self.random.random() < 0.5 else None
        return c.CancelRequest(self.random.choice(ids), "gave up", "", heir)

    def server(self) -> ServerId:
        return self.random.choice(SERVERS)

    def incarnation(self, state: PoolState, server: ServerId) -> Incarnation:
        known = state.servers.get(server)
        return known.incarnation if known else Incarnation(1)

    def up(self, state: PoolState) -> c.Command:
        server = self.server()
        grown = self.random.random() < 0.3
        incarnation = Incarnation(self.incarnation(state, server) + grown)
        shrink = self.random.random() < 0.2
        return server_up(server, incarnation, self.random.choice([4, 4, 4, 3]), shrink)

    def label(self, state: PoolState) -> c.Command:
        labels = {} if self.random.random() < 0.5 else {"rack": self.random.choice("12")}
        without = () if labels else ("rack",)
        return c.LabelServer(self.server(), labels, without, "root")

    def contact(self, state: PoolState) -> c.Command:
        server = self.server()
        reachable = self.random.random() < 0.7
        return c.ServerContact(server, self.incarnation(state, server), reachable)

    def report(self, state: PoolState) -> c.Command:
        server = self.server()
        known = state.servers.get(server)
        reading = c.GpuReading(
            self.random.choice([0, 0, GIB]), "Xid 79" if self.random.random() < 0.1 else ""
        )
        gpus = list(known.gpus) if known else []
        readings = {gpu: reading for gpu in gpus if self.random.random() < 0.5}
        return c.ReportGpus(server, self.incarnation(state, server), readings)

    def drain(self, state: PoolState) -> c.Command:
        reason = "repair" if self.random.random() < 0.3 else None
        return c.DrainServer(self.server(), reason, "root")

    def rejoin(self, state: PoolState) -> c.Command:
        if self.random.random() < 0.02:
            return c.RemoveServer(self.server(), "root")
        return c.Tick()


@pytest.mark.parametrize("seed", range(12))
def test_walks_keep_the_books(seed: int) -> None:
    walker = Walker(seed, relocations=2)
    machine = PoolMachine(PoolState())
    for command in founding():
        machine.apply(machine.state.index + 1, wrap(command, at_ms=1000, ttl_ms=0))
    now_ms = 2000
    granted = ended = 0
    for _ in range(600):
        now_ms += walker.random.choice([0, 1, 50, 500, 5000])
        before = machine.state
        command = walker.next(before)
        ttl_ms = walker.random.choice([0, 0, 1000])
        at_ms = now_ms - walker.random.choice([0, 0, 0, 3000])  # clocks differ
        plain = wrap(command, at_ms=at_ms, ttl_ms=ttl_ms)
        result = decode(Result, machine.apply(before.index + 1, plain))
        check(before, machine.state, command, result)
        granted += len(machine.state.leases.keys() - before.leases.keys())
        if isinstance(command, c.Grant) and machine.state.leases.keys() - before.leases.keys():
            for part in command.partitions:
                server = before.servers[part.server]
                gpu = server.gpus[part.gpu]
                assert first_mismatch(command.request.filters, server, gpu) is None
        ended += len(before.leases.keys() - machine.state.leases.keys())
    assert granted > 30, "the walk went nowhere"
    assert ended > 20
    # In the end every byte comes back.
    for lease in list(machine.state.leases.values()):
        machine.apply(
            machine.state.index + 1, wrap(c.EndLease(lease.id, "over"), at_ms=0, ttl_ms=0)
        )
        for server in lease.parts:
            incarnation = walker.incarnation(machine.state, server)
            free = c.FreeLease(lease.id, server, incarnation, number_of(lease))
            machine.apply(machine.state.index + 1, wrap(free, at_ms=0, ttl_ms=0))
    assert not machine.state.leases
    gpus = [g for s in machine.state.servers.values() for g in s.gpus.values()]
    assert all(gpu.memory_granted == 0 for gpu in gpus)


def test_a_server_token_names_the_server_that_it_let_in() -> None:
    machine = PoolMachine(PoolState())
    founded, up = founding()[:-3], founding()[-2]
    for command in founded:
        machine.apply(machine.state.index + 1, wrap(command, at_ms=1000, ttl_ms=0))
    join = founded[3]
    assert isinstance(join, c.JoinServer)

    def propose(command: c.Command) -> Result:
        plain = wrap(command, at_ms=1000, ttl_ms=0)
        return decode(Result, machine.apply(machine.state.index + 1, plain))

    assert propose(join).ok  # its answer was lost
    assert propose(replace(join, token=None)).kind == "conflict"
    assert propose(replace(join, server=ServerId("d" * 12), name="d")).kind == "denied"
    # A server that came up had the answer; whoever asks now has found the token somewhere.
    assert propose(up).ok
    assert propose(join).kind == "conflict"


def test_a_device_that_shrinks_keeps_its_size_until_it_is_free() -> None:
    machine = PoolMachine(PoolState())
    for command in founding():
        machine.apply(machine.state.index + 1, wrap(command, at_ms=1000, ttl_ms=0))
    server = SERVERS[0]
    gpu = next(g for g in machine.state.servers[server].gpus.values() if g.name == "Large")
    part = Partition(server, gpu.id, 60 * GIB)
    request = Request(RequestId(bytes(16)), 1, memory=part.memory)
    grant = c.Grant(request, "ada", TOKENS["ada"], bytes(32), (part,), {server: Incarnation(1)})
    machine.apply(machine.state.index + 1, wrap(grant, at_ms=1000, ttl_ms=0))
    shrunk = server_up(server, Incarnation(1), 4, True)
    machine.apply(machine.state.index + 1, wrap(shrunk, at_ms=1000, ttl_ms=0))
    assert machine.state.servers[server].gpus[gpu.id].capacity == 80 * GIB
    [lease] = machine.state.leases
    for command in (c.EndLease(lease, ""), c.FreeLease(lease, server, Incarnation(1)), shrunk):
        machine.apply(machine.state.index + 1, wrap(command, at_ms=1000, ttl_ms=0))
    assert machine.state.servers[server].gpus[gpu.id].capacity == 40 * GIB
