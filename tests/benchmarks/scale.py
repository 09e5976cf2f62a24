"""Measures how a pool grows with its servers: ``python -m tests.benchmarks.scale``.

Every server runs its own real consensus over the simulated network. The table is applied once and
shared, since a thousand copies of the same pure function would only measure this machine's memory.
"""

import gc
import json
import logging
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import Storage
from gpupool.pool.model.codec import encode
from gpupool.pool.model.commands import Grant, wrap
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    Milliseconds,
    Plain,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.state import (
    VOTER_COUNT_MAX,
    Gpu,
    PoolState,
    Request,
    Server,
    ServerStatus,
    Token,
    TokenKind,
)
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.ports import Committed, Outcome
from gpupool.pool.reconcile import plan_host
from gpupool.pool.scheduling.offers import Offer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.ranking import choose
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.simulations.cluster.simulated_driver import SimulatedDriver
from gpupool.simulations.cluster.simulated_links import KIND, SimulatedTransport
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import EVENTS_MAX, Scheduler
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk
from gpupool.simulations.kernel.simulated_network import Network
from gpupool.simulations.kernel.trace import Trace

GPU_COUNT = 8
REQUEST_COUNT = 10_000
REST_S = 60.0
SETTLE_S = 10.0
IN_FLIGHT = 64
BASE_INDEX = 2
ASK_COUNT = 32


@dataclass(frozen=True, slots=True)
class Measurement:
    """The cost of a pool of ``servers`` servers. Bytes are those of Raft's frames, without TLS."""

    servers: int
    table_bytes: int  # empty of leases, as a snapshot carries it
    table_leased_bytes: int  # with all leases
    rest_leader_bytes: int  # sent in a minute without any request
    rest_voter_bytes: int
    rest_follower_bytes: int
    grants: int
    leader_s: float  # processor time of the leader for all grants, its table included
    follower_s: float  # of one server without a vote, without the table
    leader_bytes_per_grant: float  # sent by the leader
    apply_s: float  # one grant in the table
    offer_s: float  # one offer of one server
    reconcile_s: float  # one reconciliation of a server with the table of all leases


class _SharedMachine:
    """``ports.StateMachine``: applies new entries, and reuses results that another computed."""

    def __init__(self, shared: "_Shared") -> None:
        self._shared = shared

    def apply(self, index: int, command: Plain) -> Plain:
        """Apply one command, if nobody has."""
        known = self._shared.results.get(index)
        if known is None:
            known = self._shared.results[index] = self._shared.machine.apply(index, command)
        return known

    def snapshot(self) -> Plain:
        """Return the table."""
        return self._shared.machine.snapshot()

    def restore(self, snapshot: Plain) -> None:
        """Do nothing: everybody starts from the same table."""


class _Shared:
    def __init__(self, state: PoolState) -> None:
        self.machine = PoolMachine(state)
        self.results: dict[int, Plain] = {}


def server_id(number: int) -> ServerId:
    """Return the id of a server."""
    return ServerId(f"{number:012x}")


def big_state(servers: int) -> PoolState:
    """Return the table of an idle pool."""
    token = Token(
        id=TokenId("a" * 12),
        kind=TokenKind.USER,
        user="user",
        secret_hash=bytes(32),
        created_at=Milliseconds(0),
        expires_at=Milliseconds(2**50),
    )
    table: dict[ServerId, Server] = {}
    for number in range(servers):
        gpus = {
            GpuId(f"GPU-{number:08x}-0000-4000-8000-{index:012x}"): Gpu(
                id=GpuId(f"GPU-{number:08x}-0000-4000-8000-{index:012x}"),
                index=index,
                name="NVIDIA H200",
                memory_total=141 << 30,
                compute_capability="9.0",
                pci_bus_id=f"00000000:{index:02X}:00.0",
            )
            for index in range(GPU_COUNT)
        }
        table[server_id(number)] = Server(
            id=server_id(number),
            name=f"node{number}",
            address=f"10.{number >> 8}.{number & 255}.1:7470",
            voter=number < VOTER_COUNT_MAX,
            status=ServerStatus.UP,
            incarnation=Incarnation(1),
            gpus=gpus,
            formats=VERSION,
        )
    return PoolState(
        cluster_id="scale",
        name="scale",
        index=BASE_INDEX,
        servers=PersistentMap(table),
        tokens={token.id: token},
        accounts_since=Milliseconds(1),
    )


class _Pool:
    """Servers with consensus alone, all up to date from the start."""

    def __init__(self, count: int) -> None:
        # A thousand servers have many more events in a second than the pools of the swarm.
        self.scheduler = Scheduler(count, burst_max=EVENTS_MAX)
        random = self.scheduler.random("network")
        self.network = Network(
            self.scheduler, Trace(self.scheduler), random, delay_s=0.0003, jitter_s=0.0001
        )
        self.network.timeout_s = {KIND: 10.0}
        self.shared = _Shared(big_state(count))
        self.ids = [server_id(number) for number in range(count)]
        self.voters = tuple(self.ids[:VOTER_COUNT_MAX])
        self.busy_s: dict[ServerId, float] = {}
        machines = {each: f"m{number}" for number, each in enumerate(self.ids)}
        self._names = machines
        self._servers = {name: each for each, name in machines.items()}
        self.replicated_logs = {each: self._start(each) for each in self.ids}

    def _start(self, server: ServerId) -> SimulatedDriver:
        process = Process(self.scheduler, self._names[server])
        clock = DriftingClock(self.scheduler, origin_s=1000.0, rate=1.0, wall_error_ms=0)
        disk = SimulatedDisk(self.scheduler.random(f"disk/{server}"))
        storage = Storage(disk, create=True)
        storage.snapshots.latest = Snapshot(BASE_INDEX, 1, self.voters, None)
        storage.journal.set_vote(1, None)
        storage.journal.rewrite(BASE_INDEX, 1, keep=False)
        links = SimulatedTransport(
            server,
            process=process,
            network=self.network,
            random=self.scheduler.random(f"links/{server}"),
            locate=self._names.get,
            identify=self._servers.get,
            is_removed=lambda _peer: False,
            clock=clock,
        )
        self.network.listen(process, lambda machine, _kind: links.accept(machine))
        replicated_log = SimulatedDriver(
            server,
            process=process,
            clock=clock,
            disk=disk,
            storage=storage,
            machine=_SharedMachine(self.shared),
            random=self.scheduler.random(f"raft/{server}"),
            links=links,
            settings=ConsensusSettings(snapshot_entries=10**9),
            clock_refusal=lambda _command: None,
            incarnation=self.scheduler.random(f"incarnation/{server}"),
            after_step=lambda _replicated_log: None,
            guard=partial(self._timed, server),
        )
        replicated_log.node.set_servers(self.ids)
        replicated_log.start()
        return replicated_log

    def _timed(self, server: ServerId, action: "object") -> None:
        began = time.perf_counter()
        assert callable(action)
        action()
        self.busy_s[server] = self.busy_s.get(server, 0.0) + time.perf_counter() - began

    @property
    def leader(self) -> RaftCore:
        """Return the core of the server that leads."""
        return next(each.node.core for each in self.replicated_logs.values() if each.node.leads)

    def sent(self) -> dict[ServerId, int]:
        """Return the bytes that each server has sent so far."""
        return {e: self.network.sent_bytes.get((self._names[e], KIND), 0) for e in self.ids}


def measure(count: int, requests: int = REQUEST_COUNT) -> Measurement:
    """Measure a pool of ``count`` servers."""
    gc.collect()
    gc.disable()
    pool = _Pool(count)
    scheduler = pool.scheduler
    scheduler.run_until(SETTLE_S)
    table_bytes = len(closed_cbor.encode(pool.shared.machine.snapshot()))
    leader = pool.leader.server_id
    before = pool.sent()
    scheduler.run_until(scheduler.now + REST_S)
    rest = {each: total - before[each] for each, total in pool.sent().items()}
    others = [each for each in pool.voters if each != leader]
    followers = pool.ids[VOTER_COUNT_MAX:]
    offer_s = _time_offers(pool.shared.machine.state)

    before, busy = pool.sent(), dict(pool.busy_s)
    granted = _grant(pool, leader, requests)
    sent = pool.sent()[leader] - before[leader]
    spent = {each: total - busy.get(each, 0.0) for each, total in pool.busy_s.items()}
    gc.enable()
    return Measurement(
        servers=count,
        table_bytes=table_bytes,
        table_leased_bytes=len(closed_cbor.encode(pool.shared.machine.snapshot())),
        rest_leader_bytes=rest[leader],
        rest_voter_bytes=max(rest[each] for each in others),
        rest_follower_bytes=max((rest[each] for each in followers), default=0),
        grants=granted,
        leader_s=spent[leader],
        follower_s=max((spent[each] for each in followers), default=0.0),
        leader_bytes_per_grant=sent / max(granted, 1),
        apply_s=_time_applies(count),
        offer_s=offer_s,
        reconcile_s=_time_reconciliations(pool.shared.machine.state),
    )


def _grant(pool: _Pool, leader: ServerId, requests: int) -> int:
    """Let the leader commit grants of a tenth of a GPU, many in flight; return how many."""
    replicated_log, scheduler = pool.replicated_logs[leader], pool.scheduler
    granted, proposed = 0, 0

    def propose() -> None:
        nonlocal proposed
        if proposed < requests:
            proposed += 1
            plain = wrap(_grant_command(pool.shared.machine.state, proposed), at_ms=1, ttl_ms=0)
            replicated_log.propose(plain, 5.0, decided)

    def decided(outcome: Outcome) -> None:
        nonlocal granted
        if isinstance(outcome, Committed) and isinstance(outcome.result, dict):
            granted += bool(outcome.result.get("ok"))
        propose()

    for _ in range(IN_FLIGHT):
        propose()
    end = scheduler.now + 600.0
    while granted < requests and scheduler.now < end:
        scheduler.run_until(scheduler.now + 0.1)
    scheduler.run_until(scheduler.now + 1.0)
    return granted


def _grant_command(state: PoolState, number: int) -> Grant:
    request = Request(
        id=RequestId(sha256(str(number).encode()).digest()[:16]), count=1, fraction=0.1
    )
    # Round robin over the GPUs of all servers, as many clients with many offers would come out.
    servers = list(state.servers)
    server = state.servers[servers[number % len(servers)]]
    gpus = list(server.gpus.values())
    gpu = gpus[number // len(servers) % len(gpus)]
    fitting = replace(server, gpus={gpu.id: replace(gpu, memory_granted=0)})
    offer = make_offer(state, fitting, request)
    assert isinstance(offer, Offer)
    choice = choose((offer,), request)
    assert choice is not None
    return Grant(
        request=request,
        user="user",
        token=TokenId("a" * 12),
        ticket_hash=bytes(32),
        partitions=choice.partitions,
        incarnations=choice.incarnations,
    )


def _time_offers(state: PoolState, rounds: int = 200) -> float:
    request = Request(id=RequestId(bytes(16)), count=1, fraction=0.5)
    servers = list(state.servers.values())
    began = time.perf_counter()
    for number in range(rounds):
        make_offer(state, servers[number % len(servers)], request)
    return (time.perf_counter() - began) / rounds


def _time_reconciliations(state: PoolState, rounds: int = 20) -> float:
    began = time.perf_counter()
    for number in range(rounds):
        plan_host(state, server_id(number), Incarnation(1), {}, {}, {})
    return (time.perf_counter() - began) / rounds


def _time_applies(count: int, rounds: int = 300) -> float:
    machine = PoolMachine(big_state(count))
    plains = [wrap(_grant_command(machine.state, n + 1), at_ms=1, ttl_ms=0) for n in range(rounds)]
    began = time.perf_counter()
    for number, plain in enumerate(plains):
        machine.apply(BASE_INDEX + 1 + number, plain)
    return (time.perf_counter() - began) / rounds


def main() -> None:
    """Measure the numbers of servers given on the command line; one JSON object a line."""
    logging.disable(logging.CRITICAL)
    for count in [int(each) for each in sys.argv[1:]] or [7, 30, 100, 300, 1000]:
        # A small pool holds fewer leases than 10,000 of a tenth of a GPU each.
        requests = min(REQUEST_COUNT, 10 * GPU_COUNT * count)
        print(json.dumps(encode(measure(count, requests))), flush=True)


if __name__ == "__main__":
    main()
