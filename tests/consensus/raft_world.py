"""A cluster of RaftNodes in memory, under virtual time, with faults drawn from one seed."""

import errno
import hashlib
import heapq
import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.node import RaftNode
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.store import Storage, bootstrap
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome

PAGE = 4096


@dataclass(slots=True)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class MemoryDisk:
    """A directory whose unsynced content a power loss destroys page by page.

    Stricter than a real file system: nothing becomes durable by itself.
    """

    def __init__(self) -> None:
        self.inodes: dict[str, Inode] = {}
        self.durable: list[dict[str, Inode]] = [{}]  # the directory at each step since its sync
        self.failing: dict[str, int] = {}
        self.syncs = 0
        self.crash_at: int | None = None
        self.operations = 0

    def _operation(self, name: str) -> None:
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            raise PowerLossError
        if (number := self.failing.get(name)) is not None:
            raise OSError(number, os.strerror(number))

    def names(self) -> Sequence[str]:
        return sorted(self.inodes)

    def read(self, name: str) -> bytes:
        self._operation("read")
        if name not in self.inodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return bytes(self.inodes[name].data)

    def append(self, name: str, data: bytes) -> None:
        self._operation("append")
        self.inodes[name].data += data

    def write(self, name: str, data: bytes) -> None:
        self._operation("write")
        self.inodes[name] = Inode(bytearray(data))
        self.durable.append(dict(self.inodes))

    def sync(self, name: str) -> None:
        self._operation("sync")
        self.syncs += 1
        inode = self.inodes[name]
        inode.synced = bytes(inode.data)

    def rename(self, old: str, new: str) -> None:
        self._operation("rename")
        self.inodes[new] = self.inodes.pop(old)
        self.durable.append(dict(self.inodes))

    def remove(self, name: str) -> None:
        self._operation("remove")
        del self.inodes[name]
        self.durable.append(dict(self.inodes))

    def sync_directory(self) -> None:
        self._operation("sync_directory")
        self.durable = [dict(self.inodes)]

    def reserve(self, name: str, size: int) -> None:
        self._operation("reserve")
        self.inodes.setdefault(name, Inode()).data += b"\0" * 0

    def lose_power(self, rng: random.Random) -> None:
        """Forget what was not synced; some of it may have reached the disk all the same."""
        self.crash_at = None
        self.failing.clear()
        self.inodes = dict(rng.choice(self.durable))
        self.durable = [dict(self.inodes)]
        for inode in self.inodes.values():
            synced, data = inode.synced, bytes(inode.data)
            if len(data) > len(synced) and data.startswith(synced):
                tail = bytearray(data[len(synced) : rng.randint(len(synced), len(data))])
                for start in range(0, len(tail), PAGE):
                    if rng.random() < 0.3:
                        page = min(PAGE, len(tail) - start)
                        tail[start : start + page] = bytes(page)
                inode.data = bytearray(synced + tail)
            else:
                inode.data = bytearray(rng.choice((synced, data)))
            inode.synced = bytes(inode.data)


class PowerLossError(Exception):
    """The power went in the middle of a file operation."""


class Register:
    """A state machine that remembers every command, so that a double application shows."""

    def __init__(self) -> None:
        self.log: list[Plain] = []
        self.digest = hashlib.sha256()

    def apply(self, index: int, command: Plain) -> Plain:
        if command == "raise":
            self.log.append("half done")
            raise RuntimeError("a bug in a state machine")
        self.log.append(command)
        return len(self.log)

    def snapshot(self) -> Plain:
        return list(self.log)

    def restore(self, snapshot: Plain) -> None:
        assert isinstance(snapshot, list)
        self.log = list(snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances per message or per second, and times in seconds."""

    latency_min: float = 0.0003
    latency_spread: float = 0.002
    reset: float = 0.0  # per message
    duplicate: float = 0.0
    reorder: float = 0.0
    slow_disk_s: float = 0.0


@dataclass(slots=True)
class Server:
    name: ServerId
    disk: MemoryDisk
    rate: float
    offset: float
    node: RaftNode | None = None
    machine: Register = field(default_factory=Register)
    timer: int = 0
    busy: bool = False
    paused_until: float = 0.0


class Violation(AssertionError):
    """A safety property was broken."""


class World:
    """Servers, links and time; every choice comes from one ``random.Random(seed)``."""

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
        self.rng = random.Random(seed)
        self.now = 0.0
        self.faults = faults or Faults()
        self.settings = settings or ConsensusSettings()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.trace = hashlib.sha256()
        self.connections: dict[frozenset[ServerId], int] = {}
        self.epochs = itertools.count(1)
        self.fifo: dict[tuple[ServerId, ServerId], float] = {}
        self.blocked: set[frozenset[ServerId]] = set()
        self.held: list[tuple[ServerId, ServerId, int, bytes]] = []
        self.leaders: dict[int, ServerId] = {}
        self.votes: dict[tuple[ServerId, int], str] = {}
        self.applied: dict[int, tuple[bytes, int]] = {}
        self.acknowledged: list[Plain] = []
        self.refused: list[Plain] = []
        self.unknown: list[Plain] = []
        self.violations: list[str] = []
        self.proposed = 0
        self.frames = 0
        self.tamper: Callable[[ServerId, ServerId, bytes], bytes | None] | None = None
        names = [ServerId(f"server-{letter}") for letter in "abcdefghijkl"[: voters + learners]]
        self.names = names
        self.servers = {
            name: Server(
                name,
                MemoryDisk(),
                1.0 + drift * (2 * self.rng.random() - 1),
                1000 * self.rng.random(),
            )
            for name in names
        }
        for name in names:
            storage = Storage(self.servers[name].disk, create=True)
            if name in names[:voters]:
                _found(storage, names[:voters])
            storage.journal.close()
            self.boot(name)

    # --- servers -----------------------------------------------------------------------------

    def node(self, name: ServerId) -> RaftNode:
        node = self.servers[name].node
        assert node is not None
        return node

    def alive(self) -> list[Server]:
        return [server for server in self.servers.values() if server.node is not None]

    def local(self, server: Server) -> float:
        return self.now * server.rate + server.offset

    def boot(self, name: ServerId) -> None:
        server = self.servers[name]
        assert server.node is None
        server.machine = Register()
        server.busy = False
        try:
            server.node = RaftNode(
                name,
                storage=Storage(server.disk, create=False),
                machine=_Checked(self, server),
                randomness=random.Random(self.rng.random()),
                now=self.local(server),
                settings=self.settings,
            )
        except PowerLossError:
            server.disk.lose_power(self.rng)
            self._note("crash at boot", name)
            return
        server.node.set_servers(self.names)
        self._note("boot", name)
        self._schedule_work(server)
        for other in self.names:
            self.dial(name, other)

    def crash(self, name: ServerId, *, power: bool = False) -> None:
        """Kill a server's process; with ``power``, its unsynced files go as well."""
        server = self.servers[name]
        server.node = None
        server.timer += 1
        self._note("crash", name, power)
        for pair in [pair for pair in self.connections if name in pair]:
            self.reset(pair)
        if power:
            server.disk.lose_power(self.rng)

    def leader(self) -> ServerId | None:
        leading = [
            (server.node.core.term, server.name)
            for server in self.alive()
            if server.node is not None and server.node.core.state == LEADER
        ]
        return max(leading)[1] if leading else None

    # --- links -------------------------------------------------------------------------------

    def dial(self, a: ServerId, b: ServerId) -> None:
        pair = frozenset((a, b))
        if a == b or pair in self.connections or pair in self.blocked:
            return
        if self.servers[a].node is None or self.servers[b].node is None:
            return
        epoch = next(self.epochs)
        self.connections[pair] = epoch
        self.fifo.pop((a, b), None)
        self.fifo.pop((b, a), None)
        for one, other in sorted(((a, b), (b, a))):
            self.at(0.001, lambda one=one, other=other: self._connected(one, other, epoch))

    def _connected(self, a: ServerId, b: ServerId, epoch: int) -> None:
        if self.connections.get(frozenset((a, b))) == epoch:
            server = self.servers[a]
            self.node(a).connected(b, self.local(server))
            self._schedule_work(server)

    def reset(self, pair: frozenset[ServerId]) -> None:
        """Break a connection: everything in flight is lost; it is dialled again later."""
        if self.connections.pop(pair, None) is None:
            return
        a, b = sorted(pair)
        for one, other in ((a, b), (b, a)):
            server = self.servers[one]
            if server.node is not None:
                server.node.disconnected(other, self.local(server))
                self._schedule_work(server)
        self.at(0.02 + 0.1 * self.rng.random(), lambda: self.dial(a, b))

    def block(self, groups: Sequence[Sequence[ServerId]]) -> None:
        """Let frames between servers of different groups wait, as a network that went dark."""
        for one, other in itertools.combinations(self.names, 2):
            if not any(one in group and other in group for group in groups):
                self.blocked.add(frozenset((one, other)))
        self._note("block", len(self.blocked))

    def heal(self) -> None:
        """End the partition: what waited arrives, unless the connection broke meanwhile."""
        self.blocked.clear()
        held, self.held = self.held, []
        for source, target, epoch, frame in held:
            self.at(0.001, lambda s=source, t=target, e=epoch, f=frame: self._deliver(s, t, e, f))
        for one, other in itertools.combinations(self.names, 2):
            self.dial(one, other)
        self._note("heal")

    def _send(self, source: ServerId, target: ServerId, frame: bytes) -> None:
        pair = frozenset((source, target))
        epoch = self.connections.get(pair)
        if epoch is None:
            return
        self.frames += 1
        faults = self.faults
        if self.tamper is not None:
            changed = self.tamper(source, target, frame)
            if changed is None:
                return
            frame = changed
        if faults.reset and self.rng.random() < faults.reset:
            self.at(0.0, lambda: self.reset(pair))
            return
        due = self.now + faults.latency_min + faults.latency_spread * self.rng.random()
        if faults.reorder and self.rng.random() < faults.reorder:
            due += 0.3 * self.rng.random()
        else:
            due = max(due, self.fifo.get((source, target), 0.0) + 1e-7)
            self.fifo[source, target] = due
        delay = due - self.now
        self.at(delay, lambda: self._deliver(source, target, epoch, frame))
        if faults.duplicate and self.rng.random() < faults.duplicate:
            again = delay + 0.3 * self.rng.random()
            self.at(again, lambda: self._deliver(source, target, epoch, frame))

    def _deliver(self, source: ServerId, target: ServerId, epoch: int, frame: bytes) -> None:
        pair = frozenset((source, target))
        if self.connections.get(pair) != epoch:
            return
        if pair in self.blocked:
            self.held.append((source, target, epoch, frame))
            return
        server = self.servers[target]
        if server.node is None:
            return
        if server.paused_until > self.now:
            pause = server.paused_until - self.now
            self.at(pause, lambda: self._deliver(source, target, epoch, frame))
            return
        try:
            self.node(target).receive(source, frame, self.local(server))
        except PowerLossError:
            self.crash(target, power=True)
        self._schedule_work(server)

    # --- time --------------------------------------------------------------------------------

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.events and self.events[0][0] <= end:
            self.now, _, action = heapq.heappop(self.events)
            action()
        self.now = end

    def run_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        end = self.now + seconds
        while not condition():
            assert self.now < end and self.events, "the condition was not met in time"
            self.now, _, action = heapq.heappop(self.events)
            action()

    def _schedule_work(self, server: Server) -> None:
        if server.busy or server.node is None:
            return
        server.busy = True
        node = server.node
        self.at(0.0001, lambda: self._work(server, node))

    def _work(self, server: Server, node: RaftNode) -> None:
        if server.node is not node:
            return
        if server.paused_until > self.now:
            self.at(server.paused_until - self.now, lambda: self._work(server, node))
            return
        server.busy = False
        try:
            node.step(self.local(server))
            ready = node.ready()
        except PowerLossError:
            self.crash(server.name, power=True)
            return
        self._check(server, node)
        for target, frame in ready.frames:
            self.trace.update(repr((round(self.now, 7), server.name, target)).encode() + frame)
            self._send(server.name, target, frame)
        for callback, outcome in ready.resolved:
            callback(outcome)
        wait = max(node.next_step_at() - self.local(server), 0.0) / server.rate
        server.timer += 1
        if wait < 3600:
            timer = server.timer
            self.at(wait, lambda: self._timer(server, timer))

    def _timer(self, server: Server, timer: int) -> None:
        if server.timer == timer:
            self._schedule_work(server)

    # --- clients -----------------------------------------------------------------------------

    def propose(
        self,
        name: ServerId,
        command: Plain,
        *,
        ttl_s: float = 1.0,
        then: Callable[[Outcome], None] | None = None,
    ) -> None:
        server = self.servers[name]
        if server.node is None:
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

        server.node.propose(command, ttl_s, resolved, self.local(server))
        self._schedule_work(server)

    def load(self, *, seconds: float, rate: float, size: int = 20) -> None:
        """Let clients propose distinct commands at servers drawn at random."""
        for number in range(int(seconds * rate)):
            delay = seconds * self.rng.random()
            command: Plain = [number, self.rng.randbytes(size)]
            name = self.rng.choice(self.names)
            self.at(delay, lambda name=name, command=command: self.propose(name, command))

    # --- checks ------------------------------------------------------------------------------

    def _note(self, *what: object) -> None:
        self.trace.update(repr((round(self.now, 7), *what)).encode())

    def _check(self, server: Server, node: RaftNode) -> None:
        core, journal = node.core, node.storage.journal
        if self.violations:
            raise Violation(self.violations[0])
        if core.state == LEADER:
            first = self.leaders.setdefault(core.term, server.name)
            if first != server.name:
                raise Violation(f"{first} and {server.name} both lead in term {core.term}")
        if journal.vote is not None:
            voted = self.votes.setdefault((server.name, journal.term), journal.vote)
            if voted != journal.vote:
                raise Violation(f"{server.name} voted twice in term {journal.term}")
        if not core.applied_index <= core.commit_index <= journal.last_index:
            raise Violation(f"{server.name}: applied, committed and last are out of order")

    def check_applied(self, index: int, command: bytes, term: int) -> None:
        """State-machine safety: an index holds the same entry on every server, for ever."""
        known = self.applied.setdefault(index, (command, term))
        if known != (command, term):
            # Raised later: the node itself survives whatever a state machine raises.
            self.violations.append(f"index {index} was applied as two different entries")

    def check_logs(self) -> None:
        """Log matching: the same index and term mean the same log up to there."""
        alive = [self.node(server.name).storage.journal for server in self.alive()]
        for one, other in itertools.combinations(alive, 2):
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

    def settle(self, seconds: float = 20.0) -> None:
        """Heal everything; all servers must agree soon, with every acknowledged command once."""
        self.faults = Faults()
        self.heal()
        for server in self.servers.values():
            server.paused_until = 0.0
            server.disk.crash_at = None
            if server.node is None:
                self.boot(server.name)
        self.run_until(lambda: self.leader() is not None, seconds)
        self.run(1.5)  # every proposal's time is up
        if len(self.acknowledged) + len(self.refused) + len(self.unknown) > self.proposed:
            raise Violation("a proposal was decided twice")
        leader = self.leader()
        assert leader is not None
        self.propose(leader, "final", ttl_s=5.0)
        self.run_until(self._agreed, seconds)
        self.check_logs()
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


class _Checked:
    """A state machine that reports to the world what its server applies, and where."""

    def __init__(self, world: World, server: Server) -> None:
        self._world, self._server = world, server

    def apply(self, index: int, command: Plain) -> Plain:
        node = self._server.node
        assert node is not None
        journal = node.storage.journal
        entry, entry_index, term = journal.entries[index - journal.base_index]
        assert entry_index == index
        self._world.check_applied(index, entry, term)
        return self._server.machine.apply(index, command)

    def snapshot(self) -> Plain:
        return self._server.machine.snapshot()

    def restore(self, snapshot: Plain) -> None:
        self._server.machine.restore(snapshot)


def _found(storage: Storage, voters: Sequence[ServerId]) -> None:
    """Start every voter from the same configuration, as if it had been agreed on."""
    if len(voters) == 1:
        bootstrap(storage, voters[0])
        return
    from gpupool.consensus.protocol.membership import encode_voters
    from gpupool.consensus.storage.store import MEMBERSHIP_TYPE

    storage.journal.set_vote(1, None)
    storage.journal.append(MEMBERSHIP_TYPE + encode_voters(voters), 2, 1)
    storage.journal.sync()
