"""A cluster of RaftNodes on the simulator's kernel, with faults drawn from one seed.

The world is a list of servers, each one ``SimulatedDriver`` with a disk and a clock of its own, and
the checks that must hold for Raft. Time, chance, disks, links and their faults are the kernel's.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.node import RaftNode
from gpupool.consensus.persisted_votes import PROBATION_S
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage, bootstrap
from gpupool.pool.errors import ConflictError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome
from gpupool.simulations.cluster.simulated_driver import SimulatedDriver
from gpupool.simulations.cluster.simulated_links import KIND, SimulatedTransport
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_disk import PowerLostError, SimulatedDisk
from gpupool.simulations.kernel.simulated_network import (
    Endpoint,
    FrameChances,
    FrameFaults,
    Network,
)
from gpupool.simulations.kernel.trace import Trace

DELAY_S = 0.0005
JITTER_S = 0.001
PEER_TIMEOUT_S = 10.0


class Register:
    """A state machine that remembers every command, so that a double application shows."""

    def __init__(self) -> None:
        self.log: list[Plain] = []

    def apply(self, index: int, command: Plain) -> Plain:
        if command == "raise":
            self.log.append("half done")
            raise ConflictError("a rule of the table")
        self.log.append(command)
        return len(self.log)

    def snapshot(self) -> Plain:
        return list(self.log)

    def restore(self, snapshot: Plain) -> None:
        assert isinstance(snapshot, list)
        self.log = list(snapshot)

    def hash_mark(self) -> int:
        """Never to be hashed, unless a test says when."""
        return 0

    def hashing(self) -> "LogHash":
        return LogHash(tuple(self.log))


class LogHash:
    """A hash of a register's log, in pieces."""

    shape = 5

    def __init__(self, log: tuple[Plain, ...]) -> None:
        self._left = iter(log)
        self._hash = blake2b(digest_size=16)

    def step(self) -> bytes | None:
        if piece := list(itertools.islice(self._left, 16)):
            self._hash.update(repr(piece).encode())
            return None
        return self._hash.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The links of a world: the mean jitter on top of their delay, and faults of frames."""

    jitter_s: float = JITTER_S
    frames: FrameChances = field(default_factory=FrameChances)


@dataclass(slots=True)
class Server:
    """One server; ``process`` is None while it is down."""

    name: ServerId
    disk: SimulatedDisk
    clock: DriftingClock
    process: Process | None = None
    driver: SimulatedDriver | None = None
    machine: Register = field(default_factory=Register)
    boots: int = 0

    @property
    def node(self) -> RaftNode | None:
        return self.driver.node if self.driver is not None else None


class Violation(AssertionError):
    """A safety property was broken."""


class World:
    """Servers, links and time; every choice comes from the random sources of one scheduler."""

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        learners: int = 0,
        faults: Faults | None = None,
        settings: ConsensusSettings | None = None,
        drift: float = 0.0,
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.random("world")
        self.trace = Trace(self.scheduler)
        faults = faults or Faults()
        self.network = Network(
            self.scheduler,
            self.trace,
            self.scheduler.random("network"),
            delay_s=DELAY_S,
            jitter_s=faults.jitter_s,
        )
        self.network.timeout_s = {KIND: PEER_TIMEOUT_S}
        self.frames = FrameFaults(self.scheduler.random("frames"), faults.frames)
        self.network.frame_faults = self.frames
        self.settings = settings or ConsensusSettings()
        self.checks = RaftChecks()
        self.acknowledged: list[Plain] = []
        self.refused: list[Plain] = []
        self.unknown: list[Plain] = []
        self.proposed = 0
        self.names = [
            ServerId(f"server-{letter}") for letter in "abcdefghijkl"[: voters + learners]
        ]
        self.servers = {name: self._server(name, drift) for name in self.names}
        for name in self.names:
            storage = Storage(self.servers[name].disk, create=True)
            if name in self.names[:voters]:
                _found(storage, self.names[:voters])
            storage.journal.close()
            self.boot(name)

    def _server(self, name: ServerId, drift: float) -> Server:
        clock = DriftingClock(
            self.scheduler,
            origin_s=1000 * self.rng.random(),
            rate=1.0 + drift * (2 * self.rng.random() - 1),
            wall_error_ms=0,
        )
        return Server(name, SimulatedDisk(self.scheduler.random(f"disk/{name}")), clock)

    # --- servers -----------------------------------------------------------------------------

    def node(self, name: ServerId) -> RaftNode:
        node = self.servers[name].node
        assert node is not None
        return node

    def alive(self) -> list[Server]:
        return [server for server in self.servers.values() if server.node is not None]

    def local(self, server: Server) -> float:
        return server.clock.monotonic()

    def boot(self, name: ServerId) -> None:
        server = self.servers[name]
        assert server.process is None
        server.process = Process(self.scheduler, name)
        server.machine = Register()
        server.boots += 1
        self.trace.note(name, "boot", str(server.boots))
        self._guard(server, partial(self._start, server, server.process))

    def _start(self, server: Server, process: Process) -> None:
        name = server.name
        storage = Storage(server.disk, create=False)
        links = SimulatedTransport(
            name,
            process=process,
            network=self.network,
            random=self.scheduler.random(f"links/{name}/{server.boots}"),
            locate=lambda peer: peer,
            identify=ServerId,
            is_removed=lambda _peer: False,
            clock=server.clock,
        )
        server.driver = SimulatedDriver(
            name,
            process=process,
            clock=server.clock,
            disk=server.disk,
            storage=storage,
            machine=_Checked(self.checks, server),
            random=self.scheduler.random(f"raft/{name}/{server.boots}"),
            links=links,
            settings=self.settings,
            clock_refusal=lambda _command: None,
            incarnation=self.scheduler.random(f"incarnation/{name}/{server.boots}"),
            after_step=partial(self._stepped, server),
            guard=partial(self._guard, server),
        )
        server.driver.node.set_servers(self.names)

        def accept(machine: str, _kind: str) -> Endpoint | None:
            return links.accept(machine)

        self.network.listen(process, accept)
        server.driver.start()

    def _guard(self, server: Server, action: Callable[[], None]) -> None:
        try:
            action()
        except PowerLostError:
            self.crash(server.name, power=True)

    def crash(self, name: ServerId, *, power: bool = False) -> None:
        """Kill a server's process; with ``power``, its unsynced files go as well.

        The peers hear of the end at once in both cases, so that a run has many restarts.
        """
        server = self.servers[name]
        process, server.process, server.driver = server.process, None, None
        self.trace.note(name, "crash", "without power" if power else "")
        if process is not None:
            process.kill()
            self.network.process_died(process)
        if power:
            server.disk.lose_power()

    def restart(self, name: ServerId, *, after_s: float) -> None:
        """Kill a server's process; the next one starts after so long, unless one has already."""
        self.crash(name)
        self.at(after_s, lambda: self.boot(name) if self.servers[name].process is None else None)

    def pause(self, name: ServerId, seconds: float) -> None:
        """Stop a server's process for a while, as SIGSTOP does."""
        process = self.servers[name].process
        if process is not None and not process.paused:
            process.pause()
            self.at(seconds, process.resume)

    def leader(self) -> ServerId | None:
        leading = [
            (server.node.core.term, server.name)
            for server in self.alive()
            if server.node is not None and server.node.core.state == LEADER
        ]
        return max(leading)[1] if leading else None

    # --- links -------------------------------------------------------------------------------

    def block(self, groups: Sequence[Sequence[ServerId]]) -> None:
        """Let frames between servers of different groups wait, as a network that went dark."""
        for one, other in itertools.permutations(self.names, 2):
            if not any(one in group and other in group for group in groups):
                self.network.block(one, other)
        self.trace.note("world", "block", str(groups))

    def heal(self) -> None:
        """End the partition: waiting messages arrive, unless the connection broke meanwhile."""
        for one, other in itertools.permutations(self.names, 2):
            if self.network.blocked(one, other):
                self.network.unblock(one, other, within_s=0.001)
        self.trace.note("world", "heal")

    # --- time --------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.scheduler.now

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self.scheduler.after(delay, action)

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.now + seconds)

    def run_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        met = self.scheduler.run_until_true(condition, self.now + seconds)
        assert met, "the condition was not met in time"

    # --- clients -----------------------------------------------------------------------------

    def propose(
        self,
        name: ServerId,
        command: Plain,
        *,
        ttl_s: float = 1.0,
        then: Callable[[Outcome], None] | None = None,
    ) -> None:
        """Propose a command at a server; while it stands still, the command waits."""
        server = self.servers[name]
        if server.process is None:
            return
        self.proposed += 1

        def resolved(outcome: Outcome) -> None:
            if isinstance(outcome, Committed):
                self.acknowledged.append(command)
            elif isinstance(outcome, NotCommitted):
                self.refused.append(command)
            else:
                self.unknown.append(command)
            if then is not None:
                then(outcome)

        def propose() -> None:
            assert server.driver is not None
            server.driver.propose(command, ttl_s, resolved)

        server.process.run(propose)

    def load(self, *, seconds: float, rate: float, size: int = 20) -> None:
        """Let clients propose distinct commands at servers drawn at random."""
        for number in range(int(seconds * rate)):
            delay = seconds * self.rng.random()
            command: Plain = [number, self.rng.randbytes(size)]
            name = self.rng.choice(self.names)
            self.at(delay, partial(self.propose, name, command))

    # --- checks ------------------------------------------------------------------------------

    def _stepped(self, server: Server, driver: SimulatedDriver) -> None:
        self.checks.stepped(server.name, driver.node)

    def settle(self, seconds: float = 20.0) -> None:
        """Heal everything; all servers must agree soon, with every acknowledged command once."""
        self.frames.chances = FrameChances()
        for one, other in itertools.permutations(self.names, 2):
            self.network.link(one, other).jitter_s = JITTER_S
        self.heal()
        for server in self.servers.values():
            server.disk.power_fails_after = None
            if server.process is None:
                self.boot(server.name)
            elif server.process.paused:
                server.process.resume()
        self.run_until(lambda: self.leader() is not None, seconds)
        self.run(1.5)  # every proposal's time is up
        if len(self.acknowledged) + len(self.refused) + len(self.unknown) > self.proposed:
            raise Violation("a proposal was decided twice")
        # A voter that started again behind the partition may be on probation for so long, and where
        # its vote is needed nobody leads meanwhile (profile "everything", seed 440 at 9d4f21c).
        self.run_until(lambda: self.leader() is not None, 2 * PROBATION_S)
        leader = self.leader()
        assert leader is not None
        self.propose(leader, "final", ttl_s=5.0)
        self.run_until(self._agreed, seconds)
        self.checks.logs([self.node(server.name) for server in self.alive()])
        log = self.servers[leader].machine.log
        seen = {repr(command) for command in log}
        if len(seen) != len(log):
            raise Violation("a command was applied twice")
        lost = [command for command in self.acknowledged if repr(command) not in seen]
        if lost:
            raise Violation(f"{len(lost)} acknowledged commands are lost, such as {lost[0]!r}")
        false = [command for command in self.refused if repr(command) in seen]
        if false:
            raise Violation(f"{len(false)} commands were refused and yet applied: {false[0]!r}")

    def _agreed(self) -> bool:
        logs = [server.machine.log for server in self.servers.values()]
        return all(log == logs[0] for log in logs) and bool(logs[0]) and logs[0][-1] == "final"


class RaftChecks:
    """Raft's safety properties, checked at every step of every node."""

    def __init__(self) -> None:
        self.leaders: dict[int, ServerId] = {}
        self._votes: dict[tuple[ServerId, int], str] = {}
        self.entries: dict[int, tuple[bytes, int]] = {}
        self._violations: list[str] = []

    def stepped(self, name: ServerId, node: RaftNode) -> None:
        """One leader a term, one vote a term, and nothing is applied that is not committed."""
        core, journal = node.core, node.storage.journal
        if self._violations:
            raise Violation(self._violations[0])
        if core.state == LEADER:
            first = self.leaders.setdefault(core.term, name)
            if first != name:
                raise Violation(f"{first} and {name} both lead in term {core.term}")
        if journal.vote is not None:
            voted = self._votes.setdefault((name, journal.term), journal.vote)
            if voted != journal.vote:
                raise Violation(f"{name} voted twice in term {journal.term}")
        if not core.applied_index <= core.commit_index <= journal.last_index:
            raise Violation(f"{name}: applied, committed and last are out of order")

    def applied(self, index: int, command: bytes, term: int) -> None:
        """State-machine safety: an index holds the same entry on every server, for ever."""
        known = self.entries.setdefault(index, (command, term))
        if known != (command, term):
            # Raised later: the node itself survives whatever a state machine raises.
            self._violations.append(f"index {index} was applied as two different entries")

    def logs(self, nodes: Sequence[RaftNode]) -> None:
        """Log matching: the same index and term mean the same log up to there."""
        for one, other in itertools.combinations([node.storage.journal for node in nodes], 2):
            first = max(one.base_index, other.base_index) + 1
            last = min(one.last_index, other.last_index)
            same = True
            for index in range(last, first - 1, -1):
                mine = one.entries[index - one.base_index]
                theirs = other.entries[index - other.base_index]
                if mine[2] == theirs[2]:
                    same = False
                if not same and mine != theirs:
                    raise Violation(f"two logs agree on a later entry but not on {index}")


class _Checked:
    """A state machine that reports its server's applied commands and their places to the checks."""

    def __init__(self, checks: RaftChecks, server: Server) -> None:
        self._checks, self._server = checks, server
        self._machine = server.machine

    def apply(self, index: int, command: Plain) -> Plain:
        node = self._server.node
        assert node is not None
        journal = node.storage.journal
        entry, entry_index, term = journal.entries[index - journal.base_index]
        assert entry_index == index
        self._checks.applied(index, entry, term)
        return self._machine.apply(index, command)

    def snapshot(self) -> Plain:
        return self._machine.snapshot()

    def restore(self, snapshot: Plain) -> None:
        self._machine.restore(snapshot)

    def hash_mark(self) -> int:
        return self._machine.hash_mark()

    def hashing(self) -> LogHash:
        return self._machine.hashing()


def _found(storage: Storage, voters: Sequence[ServerId]) -> None:
    """Start every voter from the same configuration, as if it had been agreed on."""
    if len(voters) == 1:
        bootstrap(storage, voters[0])
        return
    storage.journal.set_vote(1, None)
    storage.journal.append(MEMBERSHIP_TYPE + encode_voters(voters), 2, 1)
    storage.journal.sync()
