"""Servers that a transcript moves step by step: each has its clock, and frames wait to be let go.

Unlike ``raft_world``, nothing happens by itself: time passes at a server, and a frame arrives, only
when the transcript says so. The disk and the chance are those of the simulator, so that a crash
loses what was not synced, and a transcript is the same on every machine.
"""

import itertools
from dataclasses import dataclass, field
from random import Random

from gpupool.consensus.core.library import BARRIER_TYPE
from gpupool.consensus.node import RaftNode
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.membership import decode_voters, encode_voters
from gpupool.consensus.protocol.raft_messages import FrameReader, Message, decode_message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import Entry, decode_entries
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage, bootstrap
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, Outcome
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

JUST_AFTER_S = 0.001
FRAMES_MAX = 10_000
"""A transcript that delivers more at once is going round in circles."""


class Register:
    """A state machine that keeps every command, and notes each applied one."""

    def __init__(self, name: ServerId, notes: list[str]) -> None:
        self.log: list[Plain] = []
        self._name = name
        self._notes = notes

    def apply(self, index: int, command: Plain) -> Plain:
        self.log.append(command)
        self._notes.append(f"{self._name} applies {command} at {index}")
        return len(self.log)

    def snapshot(self) -> Plain:
        return list(self.log)

    def restore(self, snapshot: Plain) -> None:
        assert isinstance(snapshot, list)
        self.log = list(snapshot)
        self._notes.append(f"{self._name} restores {len(snapshot)} commands")


@dataclass(slots=True)
class Server:
    """One server; ``node`` is None while it is down."""

    name: ServerId
    disk: SimulatedDisk
    now: float = 100.0
    node: RaftNode | None = None
    boots: int = 0
    readers: dict[ServerId, FrameReader] = field(default_factory=dict[ServerId, FrameReader])


class Cluster:
    """Some servers, the frames between them, and notes of events since the notes were taken."""

    def __init__(self, settings: ConsensusSettings) -> None:
        self.settings = settings
        self.servers: dict[ServerId, Server] = {}
        self.in_flight: list[tuple[ServerId, ServerId, bytes]] = []
        self.parted: list[set[ServerId]] = []
        self.notes: list[str] = []
        self._roles: dict[ServerId, str] = {}

    # --- servers -----------------------------------------------------------------------------

    def add(self, names: list[ServerId], voters: list[ServerId]) -> None:
        """Start servers; ``voters`` is the configuration that their logs begin with, or none."""
        for name in names:
            server = self.servers[name] = Server(name, SimulatedDisk(Random(name)))
            storage = Storage(server.disk, create=True)
            if voters == [name]:
                bootstrap(storage, name)
            elif voters:
                storage.journal.set_vote(1, None)
                storage.journal.append(MEMBERSHIP_TYPE + encode_voters(voters), 2, 1)
                storage.journal.sync()
            storage.journal.close()
        for name in names:
            self.boot(name)

    def boot(self, name: ServerId) -> None:
        """Start a server from its disk's content, and connect it with all reachable servers."""
        server = self.servers[name]
        server.boots += 1
        server.readers = {}
        node = server.node = RaftNode(
            name,
            storage=Storage(server.disk, create=False),
            machine=Register(name, self.notes),
            randomness=Random(f"{name}/{server.boots}"),
            now=server.now,
            settings=self.settings,
        )
        for each in self.servers.values():
            if each.node is not None:
                each.node.set_servers(list(self.servers))
        self.step(server)
        for other in self.servers.values():
            if other is not server and other.node is not None and not self._apart(name, other.name):
                other.readers.pop(name, None)
                node.connected(other.name, server.now)
                other.node.connected(name, other.now)
                self.step(other)
        self.step(server)

    def crash(self, name: ServerId) -> None:
        """Cut a server's power."""
        server = self.servers[name]
        server.node = None
        server.disk.lose_power()
        self._roles.pop(name, None)
        self._disconnect({name}, set(self.servers) - {name})

    def part(self, groups: list[set[ServerId]]) -> None:
        """Break all connections between servers of different groups."""
        self.parted = groups
        for one, other in itertools.combinations(groups, 2):
            self._disconnect(one, other)

    def heal(self) -> None:
        """Connect everything that is apart."""
        groups, self.parted = self.parted, []
        for one, other in itertools.combinations(groups, 2):
            for a, b in itertools.product(sorted(one), sorted(other)):
                first, second = self.servers[a], self.servers[b]
                if first.node is not None and second.node is not None:
                    first.node.connected(b, first.now)
                    second.node.connected(a, second.now)
                    self.step(first)
                    self.step(second)

    def _apart(self, one: ServerId, other: ServerId) -> bool:
        return any((one in group) != (other in group) for group in self.parted)

    def _disconnect(self, one: set[ServerId], other: set[ServerId]) -> None:
        pairs = {frozenset(pair) for pair in itertools.product(one, other)}
        self.in_flight = [f for f in self.in_flight if frozenset(f[:2]) not in pairs]
        for pair in sorted(sorted(pair) for pair in pairs):
            for a, b in (pair, pair[::-1]):
                server = self.servers[a]
                if server.node is not None:
                    server.node.disconnected(b, server.now)
                    self.step(server)

    # --- time and frames ---------------------------------------------------------------------

    def step(self, server: Server) -> None:
        """Let one server do its due work; its frames wait in ``in_flight``."""
        node = server.node
        if node is None:
            return
        node.step(server.now)
        ready = node.ready()
        role = f"{server.name} is {node.role.value} in term {node.core.term}"
        if self._roles.get(server.name) != role:
            self._roles[server.name] = role
            self.notes.append(role)
        for peer, frame in ready.frames:
            reader = self.servers[peer].readers.setdefault(server.name, FrameReader())
            body = reader.body(frame)
            assert body is not None, "a node numbers its frames"
            message = decode_message(body)
            if message["type"] != "hello":  # Every connection begins with it, at both ends.
                self.notes.append(f"{server.name} -> {peer} {describe(message)}")
            self.in_flight.append((server.name, peer, frame))
        for callback, outcome in ready.resolved:
            callback(outcome)

    def advance(self, server: Server, seconds: float) -> None:
        """Let time pass at one server, timer by timer."""
        end = server.now + seconds
        while server.node is not None and (due := server.node.next_step_at()) <= end:
            server.now = max(server.now, due)
            self.step(server)
        server.now = end

    def deliver(self, source: str = "", target: str = "", *, once: bool = False) -> None:
        """Let frames arrive in order, with those that they cause unless ``once``."""
        for count in itertools.count(1):
            assert count < FRAMES_MAX, "the servers never come to rest"
            batch = [f for f in self.in_flight if source in ("", f[0]) and target in ("", f[1])]
            for item in batch:
                if item in self.in_flight:  # A crash may have taken it.
                    self.in_flight.remove(item)
                    self._arrive(*item)
            if once or not batch:
                return

    def _arrive(self, source: ServerId, target: ServerId, frame: bytes) -> None:
        server = self.servers[target]
        if server.node is not None:
            server.node.receive(source, frame, server.now)
            self.step(server)

    def propose(self, name: ServerId, command: Plain, ttl_s: float) -> None:
        """Propose a command at a server, and note its outcome."""

        def resolved(outcome: Outcome) -> None:
            text = f"committed at {outcome.index}" if isinstance(outcome, Committed) else ""
            kind = "unknown" if type(outcome).__name__ == "Unknown" else "not committed"
            text = text or f"{kind}: {getattr(outcome, 'reason')}"  # noqa: B009
            self.notes.append(f"{name}: {command} is {text}")

        server = self.servers[name]
        assert server.node is not None, f"{name} is down"
        server.node.propose(command, ttl_s, resolved, server.now)
        self.step(server)

    def status(self) -> list[str]:
        """Return a line for each server, and one for its log."""
        lines: list[str] = []
        for name, server in sorted(self.servers.items()):
            node = server.node
            if node is None:
                lines.append(f"{name} down")
                continue
            core, journal = node.core, node.storage.journal
            entries = [entry for entry in journal.entries if entry[1] > journal.base_index]
            lines.append(
                f"{name} {node.role.value} term={core.term} leader={core.leader or '-'} "
                f"commit={core.commit_index} applied={core.applied_index} "
                f"voters={','.join(core.voters) or '-'}"
            )
            lines.append(f"  log {' '.join(map(describe_entry, entries)) or '-'}")
        return lines


def describe_entry(entry: Entry) -> str:
    """Return an entry as index/term:content."""
    command, index, term = entry
    if command[:1] == MEMBERSHIP_TYPE:
        content = f"voters({','.join(decode_voters(command[1:]))})"
    elif command[:1] == BARRIER_TYPE:
        content = "nothing"
    else:
        content = str(closed_cbor.decode_command(command[1:]))
    return f"{index}/{term}:{content}"


def describe(message: Message) -> str:
    """Return a message without its clock-dependent fields."""
    kind = str(message["type"])
    known = {key: value for key, value in message.items() if key not in ("type", "data")}
    for key in ("clock_ms", "majority_age_ms", "deadline_ms", "request_id"):
        known.pop(key, None)
    if "entries" in known:
        entries = decode_entries(known.pop("entries"))
        known["entries"] = f"[{' '.join(map(describe_entry, entries))}]"
    if kind == "forward":
        known["command"] = describe_entry((message["command"], 0, 0)).partition(":")[2]
    names = {"prevLogIdx": "after", "prevLogTerm": "after_term", "commit_index": "commit"}
    words = [f"{names.get(key, key)}={_value(value)}" for key, value in sorted(known.items())]
    return " ".join([kind, *words])


def _value(value: object) -> str:
    if value is None:
        return "-"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
