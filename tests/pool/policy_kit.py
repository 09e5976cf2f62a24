"""A pool of two servers with four GPUs each, its users, and policies written in TOML."""

from calendar import timegm
from collections.abc import Sequence
from datetime import datetime

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import TableHash, decode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.policy import Policy, Zone
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Gpu, Partition, PoolState, Request, TokenKind, with_changes
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.policy.policy_document import parse_policy
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.ranking import rank
from gpupool.pool.transitions import policy_versions
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.uploads import parts_of
from gpupool.remoting.protocol.time_zones import zone_of

GIB = 1 << 30
ONE = Incarnation(1)
A, B = ServerId("a" * 12), ServerId("b" * 12)
USERS: tuple[str, ...] = ("ada", "bob", "cy", "dee", "boss")
MODELS = {A: "NVIDIA H200", B: "NVIDIA A100-SXM4-80GB"}
LABELS = {A: {"rack": "1"}, B: {"rack": "2"}}
MONDAY_MS = timegm((2026, 11, 23, 0, 0, 0)) * 1000
"""Midnight UTC."""


def at(text: str) -> int:
    """Return the table time of a moment in UTC."""
    return timegm(datetime.fromisoformat(text).timetuple()) * 1000


def zone(name: str) -> Zone | None:
    return zone_of(name, MONDAY_MS)


def parse(text: str) -> Policy:
    return parse_policy(text, zone)


def policy_commands(text: str, base: int, by: str = "root") -> list[c.Command]:
    """Return the commands that put a policy in force, as a server would propose them."""
    data = policy_versions.pack_draft(
        policy_versions.Draft(policy_versions.pack_text(text), parse(text))
    )
    digest = policy_versions.digest_of(data)
    parts = parts_of(data)
    found: list[c.Command] = [c.StagePart(digest[:16], n, p) for n, p in enumerate(parts)]
    found.append(c.ApplyPolicy(digest[:16], len(parts), digest, base, by))
    return found


def founding(
    servers: Sequence[ServerId], gpu_count: int, capacity: int, *, emulated: bool = False
) -> list[c.Command]:
    """Return the commands that make the pool."""
    found: list[c.Command] = [
        c.CreatePool("cluster", "lab", "tls"),
        c.JoinServer(servers[0], servers[0][0], "a:1", False, None),
    ]
    far = Milliseconds(2**52)
    for server in servers[1:]:
        token = TokenId(f"token-{server[0]}")
        found.append(c.CreateToken(token, TokenKind.SERVER, "s", bytes(32), far, "root"))
        found.append(c.JoinServer(server, server[0], "b:1", False, token))
    found += [
        c.CreateToken(TokenId(user), TokenKind.USER, user, bytes(32), far, "root") for user in USERS
    ]
    for server in servers:
        gpus = tuple(
            Gpu(GpuId(f"{server}-{n}"), n, MODELS.get(server, "GPU"), capacity, emulated=emulated)
            for n in range(gpu_count)
        )
        labels = LABELS.get(server, {})
        found.append(
            c.ServerUp(server, ONE, "x:1", "1", "580.2", "13.0", gpus, labels, accounts=True)
        )
    return found


def upgraded(machine: PoolMachine, version: int = VERSION) -> None:
    """Set this version of the formats on all servers, as if they had come up with it."""
    servers = {
        key: with_changes(each, formats=version) for key, each in machine.state.servers.items()
    }
    machine.state = with_changes(machine.state, servers=PersistentMap(servers.items()))


class Pool:
    """A founded pool; everything happens at ``now_ms``."""

    def __init__(
        self,
        policy: str = "",
        *,
        gpu_count: int = 4,
        capacity: int = 80 * GIB,
        emulated: bool = False,
    ) -> None:
        self.machine = PoolMachine(PoolState())
        self.now_ms: int = MONDAY_MS
        self.number = 0
        for command in founding((A, B), gpu_count, capacity, emulated=emulated):
            assert self.do(command).ok, command
        if policy:
            self.put(policy)

    @property
    def state(self) -> PoolState:
        return self.machine.state

    def do(self, command: c.Command) -> Result:
        plain = wrap(command, at_ms=self.now_ms, ttl_ms=0)
        result = decode(Result, self.machine.apply(self.state.index + 1, plain))
        assert violations(self.state) == []
        return result

    def put(self, text: str) -> None:
        for command in policy_commands(text, self.state.policy.version):
            assert (result := self.do(command)).ok, result

    def go_to(self, text: str) -> None:
        """Let it be this moment."""
        self.now_ms = at(text)
        self.do(c.Tick())

    def request(self, count: int = 1, fraction: float = 1.0, memory: int = 0) -> Request:
        self.number += 1
        number = RequestId(self.number.to_bytes(16, "big"))
        return Request(number, count, 0.0 if memory else fraction, memory)

    def ask(self, user: str, request: Request) -> list[Offer | NoOffer]:
        state = self.state
        return [make_offer(state, server, request, user) for server in state.servers.values()]

    def refusal(self, user: str, request: Request) -> NoOffer:
        """Return the refusal of every server, which must not differ in kind."""
        answers = self.ask(user, request)
        refusals = [answer for answer in answers if isinstance(answer, NoOffer)]
        assert len(refusals) == len(answers), answers
        assert len({refusal.kind for refusal in refusals}) == 1, refusals
        return refusals[0]

    def claim(self, user: str, request: Request, anyway: str = "") -> c.Grant:
        """Return the best claim; with ``anyway`` as another user would get it offered."""
        offers = [o for o in self.ask(anyway or user, request) if isinstance(o, Offer)]
        choice = rank(offers, request)[0]
        incarnations = choice.incarnations
        return c.Grant(request, user, TokenId(user), bytes(32), choice.partitions, incarnations)

    def grant(self, user: str, count: int = 1, fraction: float = 1.0, memory: int = 0) -> LeaseId:
        result = self.do(self.claim(user, self.request(count, fraction, memory)))
        assert result.ok, result
        assert result.lease is not None
        return result.lease

    def hold(self, *places: tuple[GpuId, int], user: str = "ada") -> LeaseId:
        """Grant GPUs with so many GiB of each."""
        request = Request(self.request().id, len(places), memory=places[0][1] * GIB, across=True)
        parts = tuple(Partition(ServerId(name[:12]), name, gib * GIB) for name, gib in places)
        incarnations = dict.fromkeys({part.server for part in parts}, ONE)
        done = self.do(c.Grant(request, user, TokenId(user), bytes(32), parts, incarnations))
        assert done.lease is not None, done
        return done.lease

    def end(self, lease: LeaseId) -> None:
        """End a lease to the last."""
        parts = self.state.leases[lease].parts
        self.do(c.EndLease(lease, "over"))
        for server in parts:
            self.do(c.FreeLease(lease, server, ONE))


def whole_hash(value: object) -> bytes:
    """Return the hash of ``value`` at one go."""
    hashing = TableHash(value)
    while (digest := hashing.step()) is None:
        pass
    return digest
