"""Measures a server with a full table: ``python -m tests.benchmarks.full_table``.

One server has the table of a pool of 1,000 servers and 10,000 leases, by default. It applies
commands, looks at its duties after each, takes snapshots and installs one. All figures but lateness
are processor time of the thread that does it, since other work may share the machine. Views are
measured by ``view_times``, commands that are about many rows by ``long_commands``.
"""

import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import trio
from tests.benchmarks.scale import BASE_INDEX, big_state, server_id

from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.garbage import Exemption
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.store import bootstrap, open_storage
from gpupool.pool.host_suspension import HostSuspension
from gpupool.pool.model.commands import (
    Command,
    EndLease,
    FreeLease,
    GpuReading,
    Grant,
    Tick,
    wrap,
)
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Plain, RequestId, ServerId, TokenId
from gpupool.pool.model.state import PARTITION_SIZE_MIN, Gpu, Partition, PoolState, Request
from gpupool.pool.policy import lease_ends
from gpupool.pool.ports import Committed, PeerEvents, RaftHealth, Role
from gpupool.pool.reconcile import plan_leader
from gpupool.pool.table_clock import TableClock
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.protocol.sessions import Departure
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.server_settings import ServerInstance, Software
from gpupool.remoting.transport.system_clock import SystemClock

PARTITION_SIZE = 10 << 30
TOKEN = TokenId("a" * 12)
"""Of all leases."""
SNAPSHOT_ENTRIES = 1_000
COMMANDS_WHILE_TAKING = 2_500
IN_FLIGHT = 16
TICKER_S = 0.005


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds, where nothing else is said."""

    servers: int
    leases: int
    grant: float
    end: float
    free: float
    look: float  # one look of a server's controller after a change elsewhere
    leader_plan: float
    ends_due: float  # which leases end by the policy now
    table_hash: float  # of the whole table, in all
    table_hash_step: float  # the longest of its pieces
    cycles_per_s: float  # grant, end and free applied and looked at, a second of one core
    snapshot_step: float  # longest step of the loop while snapshots are taken
    snapshot_late: float  # how late a timer of the loop came at most, wall time
    install_step: float  # longest step of the loop while a snapshot is installed
    install_late: float
    rest_late: float  # the same while there is nothing to do: what other work on the machine costs
    snapshot_bytes: int


# --- the table ------------------------------------------------------------------------------------


class FullTable:
    """The table of one server, with commands applied to it."""

    def __init__(self, servers: int, only: ServerId | None = None) -> None:
        """Begin with an idle pool; leases are to be on all of its servers, or on one only."""
        self.machine = PoolMachine(big_state(servers))
        self._index = BASE_INDEX
        self._places = [
            (server.id, gpu)
            for server in self.state.servers.values()
            for gpu in server.gpus
            if only in (None, server.id)
        ]
        self._size = PARTITION_SIZE if only is None else PARTITION_SIZE_MIN
        self._granted = 0

    @property
    def state(self) -> PoolState:
        """Return the table."""
        return self.machine.state

    def apply(self, command: Command) -> Plain:
        """Apply the next command of the log."""
        self._index += 1
        envelope = wrap(command, at_ms=self._index, ttl_ms=0, era=self.state.era)
        return self.machine.apply(self._index, envelope)

    def grant_command(self) -> Grant:
        """Return a grant of a tenth of the next GPU in turn."""
        number = self._granted
        self._granted += 1
        server, gpu = self._places[number % len(self._places)]
        request_id = RequestId(sha256(str(number).encode()).digest()[:16])
        return Grant(
            request=Request(id=request_id, count=1, memory=self._size),
            user="user",
            token=TOKEN,
            ticket_hash=bytes(32),
            partitions=(Partition(server, gpu, self._size),),
            incarnations={server: Incarnation(1)},
        )

    def cycle(self, oldest: LeaseId) -> tuple[Command, Command, Command]:
        """Return the commands that end and free a lease and grant another one."""
        server = self.state.leases[oldest].partitions[0].server
        return (
            EndLease(oldest, "released"),
            FreeLease(oldest, server, Incarnation(1)),
            self.grant_command(),
        )


def full_machine(servers: int, leases: int) -> PoolMachine:
    """Return a state machine with a table of so many servers and leases."""
    table = FullTable(servers)
    for _ in range(leases):
        table.apply(table.grant_command())
    return table.machine


# --- a controller that has nothing to do ----------------------------------------------------------


class IdleHost:
    """A host without workers."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self._gpus = gpus

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs."""
        return self._gpus

    def readings(self) -> dict[GpuId, GpuReading]:
        """Return the readings of the GPUs."""
        return {gpu.id: GpuReading(gpu.memory_foreign, gpu.fault) for gpu in self._gpus}

    def worker_count(self) -> dict[LeaseId, int]:
        """Return no workers."""
        return {}

    def idle_s(self) -> dict[LeaseId, float]:
        """Return nothing."""
        return {}

    def suspensions(self) -> dict[LeaseId, HostSuspension]:
        """Return none."""
        return {}

    def telemetry(self) -> tuple[tuple[GpuTelemetry, ...], tuple[SessionTelemetry, ...]]:
        """Return no measurements."""
        return (), ()

    def depart(self, lease: LeaseId, target: ServerId | None) -> Departure:
        """Return an empty departure."""
        return Departure()

    def weigh(self, weights: Mapping[LeaseId, float]) -> None:
        """Take no shares."""


class _Learner:
    """A server without a vote, which is up to date."""

    def health(self) -> RaftHealth:
        """Return the health of a new learner."""
        return RaftHealth(Role.LEARNER, None, 1, 1, 1, (), (), 0.0, {}, 0)

    def majority_age_s(self) -> float:
        """Return that it was just in touch."""
        return 0.0

    def role(self) -> Role:
        """Return its role."""
        return Role.LEARNER


def _controller(machine: PoolMachine, server: ServerId) -> Controller:
    me = machine.state.servers[server]
    return Controller(
        machine,
        me=ServerInstance(server, Incarnation(1), Software(me.address)),
        consensus=_Learner(),
        authorities=cast(Any, SimpleNamespace(has_keys=lambda: False, problems=tuple)),
        host=IdleHost(tuple(me.gpus.values())),  # type: ignore[arg-type]
        table_clock=TableClock(lambda: machine.state, self_id=server, clock=SystemClock()),
        rng=Random(1),
    )


# --- the loop -------------------------------------------------------------------------------------


class Steps(trio.abc.Instrument):
    """The longest step of any task of the loop, in processor time of its thread."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.latest_s = 0.0
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Begin a step."""
        del task
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """End it."""
        del task
        self.longest_s = max(self.longest_s, time.thread_time() - self._began)

    def take(self) -> tuple[float, float]:
        """Return the longest step and the latest timer since the last call, in milliseconds."""
        taken = 1e3 * self.longest_s, 1e3 * self.latest_s
        self.longest_s = self.latest_s = 0.0
        return taken

    async def tick(self) -> None:
        """Wake every few milliseconds, and note how late."""
        while True:
            due = trio.current_time() + TICKER_S
            await trio.sleep_until(due)
            self.latest_s = max(self.latest_s, trio.current_time() - due)


class _Wire:
    """Links of servers that share a loop."""

    def __init__(self, me: ServerId, servers: dict[ServerId, PeerEvents]) -> None:
        self._me = me
        self._servers = servers

    def set_peers(self, peers: object) -> None:
        del peers

    def send(self, peer: ServerId, frame: bytes) -> bool:
        if (events := self._servers.get(peer)) is None:
            return False
        events.received(self._me, frame)
        return True

    def hang_up(self, peer: ServerId) -> None:
        del peer


async def _measure_loop(machine: PoolMachine, directory: Path) -> tuple[float, ...]:
    """Return the longest step and the latest timer: while taking, and while installing."""
    steps = Steps()
    settings = ConsensusSettings(snapshot_entries=SNAPSHOT_ENTRIES, snapshots_per_rewrite=1)
    servers: dict[ServerId, PeerEvents] = {}

    def start(server: ServerId, table: PoolMachine, *, first: bool) -> RaftDriver:
        storage = open_storage(directory / server, create=True)
        if first:
            bootstrap(storage, server)
        return RaftDriver(
            server,
            storage=storage,
            machine=table,
            clock=SystemClock(),
            randomness=Random(1),
            links=_Wire(server, servers),
            settings=settings,
            after_work=Exemption(),
        )

    a, b = ServerId("a"), ServerId("b")
    copy = PoolMachine(PoolState())
    leader, follower = start(a, machine, first=True), start(b, copy, first=False)
    servers[a] = leader
    async with trio.open_nursery() as nursery:
        trio.lowlevel.add_instrument(steps)
        nursery.start_soon(steps.tick)
        await nursery.start(leader.run)
        await trio.sleep(1.0)
        steps.take()
        await trio.sleep(3.0)
        resting = steps.take()
        async with trio.open_nursery() as proposers:
            for _ in range(IN_FLIGHT):
                proposers.start_soon(_propose, leader, COMMANDS_WHILE_TAKING // IN_FLIGHT)
        while leader.node.storage.journal.base_index == 1:  # noqa: ASYNC110 - as below
            await trio.sleep(0.05)  # two snapshots let the journal forget what is older
        taking = steps.take()
        servers[b] = follower
        await nursery.start(follower.run)
        follower.set_servers([a])
        leader.set_servers([b])
        leader.connected(b)
        follower.connected(a)
        while copy.state.index < machine.state.index:  # noqa: ASYNC110 - nothing tells of it
            await trio.sleep(0.05)
        assert copy.state == machine.state
        installing = steps.take()
        nursery.cancel_scope.cancel()
    return (*taking, *installing, resting[1])


async def _propose(driver: RaftDriver, count: int) -> None:
    for _ in range(count):
        outcome = await driver.propose(wrap(Tick(), at_ms=1, ttl_ms=0), timeout_s=10.0)
        assert isinstance(outcome, Committed), outcome


# --- measuring ------------------------------------------------------------------------------------


def _time(action: Callable[[], object]) -> float:
    began = time.thread_time()
    action()
    return 1e3 * (time.thread_time() - began)


def least_costs(servers: int, leases: int, rounds: int = 50) -> dict[str, float]:
    """Return the least that a grant, an end, a free and a look after one took, in milliseconds.

    The least says which steps there are, and nothing of other work on the machine.
    """
    table = FullTable(servers)
    for _ in range(leases):
        table.apply(table.grant_command())
    controller = _controller(table.machine, server_id(servers - 1))
    controller.applied()
    spent: dict[str, list[float]] = {"EndLease": [], "FreeLease": [], "Grant": [], "look": []}
    for oldest in list(table.state.leases)[:rounds]:
        for command in table.cycle(oldest):
            spent[type(command).__name__].append(_time(lambda c=command: table.apply(c)))
            spent["look"].append(_time(controller.applied))
    return {name: min(each) for name, each in spent.items()}


def measure(servers: int, leases: int, rounds: int = 300) -> Costs:
    """Measure a pool of ``servers`` servers with ``leases`` leases."""
    table = FullTable(servers)
    for _ in range(leases):
        table.apply(table.grant_command())
    assert len(table.state.leases) == leases, len(table.state.leases)
    controller = _controller(table.machine, server_id(servers - 1))
    controller.applied()
    Exemption()()  # as a server does; one full collection is 75 ms, and falls on any command
    spent: dict[str, float] = {"EndLease": 0.0, "FreeLease": 0.0, "Grant": 0.0, "look": 0.0}
    for oldest in list(table.state.leases)[:rounds]:
        for command in table.cycle(oldest):
            spent[type(command).__name__] += _time(lambda c=command: table.apply(c))
            spent["look"] += _time(controller.applied)
    ages = dict.fromkeys(table.state.servers, 0.0)
    plan = _time(lambda: plan_leader(table.state, ages, 2**41, server_id(0)))
    due = _time(lambda: lease_ends.due(table.state, 2**41))
    pieces = _hash_pieces(table.machine)
    size = _snapshot_size(table.machine)
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as directory:
        loop = trio.run(_measure_loop, table.machine, Path(directory))
    return Costs(
        servers=servers,
        leases=leases,
        grant=spent["Grant"] / rounds,
        end=spent["EndLease"] / rounds,
        free=spent["FreeLease"] / rounds,
        look=spent["look"] / rounds / 3,
        leader_plan=plan,
        ends_due=due,
        table_hash=sum(pieces),
        table_hash_step=max(pieces),
        cycles_per_s=1e3 * rounds / sum(spent.values()),
        snapshot_step=loop[0],
        snapshot_late=loop[1],
        install_step=loop[2],
        install_late=loop[3],
        rest_late=loop[4],
        snapshot_bytes=size,
    )


def _hash_pieces(machine: PoolMachine) -> list[float]:
    hashing, pieces, ended = machine.hashing(), list[float](), False

    def step() -> None:
        nonlocal ended
        ended = hashing.step() is not None

    while not ended:
        pieces.append(_time(step))
    return pieces


def _snapshot_size(machine: PoolMachine) -> int:
    from gpupool.consensus.protocol import closed_cbor

    return len(closed_cbor.encode(machine.snapshot()))


def main() -> None:
    """Measure ``SERVERS LEASES`` of the command line; one JSON object."""
    logging.disable(logging.CRITICAL)
    servers, leases = [int(each) for each in sys.argv[1:]] or [1000, 10_000]
    costs = asdict(measure(servers, leases))
    print(json.dumps({k: round(v, 4) for k, v in costs.items()}), flush=True)


if __name__ == "__main__":
    main()
