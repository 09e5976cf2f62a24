"""The fault schedule: the faults of a run and their times, drawn from the seed before it begins.

Each fault has a random source of its own, so leaving one out changes no other. That lets ``shrink``
take them away one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gpupool.simulations.cluster.cluster_faults import ClusterFaults
from gpupool.simulations.kernel.swarm_options import Options, random_source

FAULT_COUNT_MAX = 400


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; its target is chosen when it happens."""

    number: int
    at: float  # virtual seconds after the beginning of the faults
    kind: str

    def random(self, seed: int) -> Random:
        """Return this fault's own random source."""
        return random_source(seed, f"fault/{self.kind}/{self.number}")


def schedule(options: Options) -> list[Fault]:
    """Return the faults of a run, in the order in which they happen."""
    found: list[Fault] = []
    for kind, interval_s in options.faults:
        random = random_source(options.seed, f"schedule/{kind}")
        at = random.expovariate(1.0) * interval_s
        while at < options.fault_s and len(found) < FAULT_COUNT_MAX:
            found.append(Fault(0, at, kind))
            at += random.expovariate(1.0) * interval_s
    found.sort(key=lambda fault: (fault.at, fault.kind))
    return [Fault(number, fault.at, fault.kind) for number, fault in enumerate(found)]


def happen(fault: Fault, target: ClusterFaults, random: Random) -> None:
    """Let one fault happen."""
    EFFECTS[fault.kind](target, random)


def _span(random: Random, low_s: float, high_s: float) -> float:
    """Draw a duration: short ones often, long ones now and then."""
    return low_s * (high_s / low_s) ** random.random()


def _server(target: ClusterFaults, random: Random) -> str:
    return random.choice(target.server_names())


def _client(target: ClusterFaults, random: Random) -> str:
    return random.choice(target.client_names())


def _reset(target: ClusterFaults, random: Random) -> None:
    one, other = random.sample(target.server_names(), 2)
    target.reset(one, other)


def _slow_link(target: ClusterFaults, random: Random) -> None:
    one, other = random.sample(target.server_names(), 2)
    target.slow(one, other, _span(random, 0.005, 0.5), _span(random, 0.5, 8.0))


def _partition(target: ClusterFaults, random: Random) -> None:
    names = target.server_names() + target.client_names()
    left = [name for name in names if random.random() < 0.5]
    right = [name for name in names if name not in left]
    pairs = [(a, b) for a in left for b in right]
    target.cut([*pairs, *((b, a) for a, b in pairs)], _span(random, 0.3, 14.0))


def _deaf(target: ClusterFaults, random: Random) -> None:
    names = target.server_names()
    victim = random.choice(names)
    pairs = [(name, victim) for name in names if name != victim]
    if random.random() < 0.5:
        pairs = [(b, a) for a, b in pairs]
    target.cut(pairs, _span(random, 0.3, 14.0))


def _cut(target: ClusterFaults, random: Random) -> None:
    one, other = random.sample(target.server_names(), 2)
    target.cut([(one, other)], _span(random, 0.3, 14.0))


def _isolate_leader(target: ClusterFaults, random: Random) -> None:
    leader = target.leader_name()
    others = target.server_names()
    if random.random() < 0.5:
        others += target.client_names()
    pairs = [(leader, name) for name in others if leader is not None and name != leader]
    target.cut([*pairs, *((b, a) for a, b in pairs)], _span(random, 0.3, 14.0))


def _kill_leader(target: ClusterFaults, random: Random) -> None:
    leader = target.leader_name()
    if leader is not None:
        target.kill(leader, _span(random, 0.05, 8.0))


def _flap(target: ClusterFaults, random: Random) -> None:
    one, other = random.sample(target.server_names(), 2)
    target.cut([(one, other), (other, one)], _span(random, 0.05, 1.0))


def _client_massacre(target: ClusterFaults, random: Random) -> None:
    names = target.client_names()
    for name in random.sample(names, len(names) // 2):
        target.kill_client(name, silently=random.random() < 0.5)


def _torn(target: ClusterFaults, random: Random) -> None:
    name = _server(target, random)
    target.tear(name, random.randint(1, 40), _span(random, 0.5, 5.0))


def _cut_pair(target: ClusterFaults, random: Random) -> None:
    one, other = random.sample(target.server_names(), 2)
    target.cut([(one, other), (other, one)], _span(random, 14.0, 40.0))


def _power_all(target: ClusterFaults, random: Random) -> None:
    down_s = _span(random, 0.5, 4.0)
    for name in target.server_names():
        target.power_off(name, down_s * (0.5 + random.random()))


def _pause_leader(target: ClusterFaults, random: Random) -> None:
    leader = target.leader_name()
    if leader is not None:
        target.pause(leader, _span(random, 0.1, 12.0))


def _clock_rate(target: ClusterFaults, random: Random) -> None:
    rate = random.choice((0.5, 0.8, 0.95, 1.05, 1.25, 2.0))
    target.clock_rate(_server(target, random), rate, _span(random, 1.0, 10.0))


def _clock_jump(target: ClusterFaults, random: Random) -> None:
    by_ms = random.choice((-1, 1)) * int(_span(random, 10.0, 100_000.0))
    target.clock_jump(_server(target, random), by_ms)


def _clock_wrong(target: ClusterFaults, random: Random) -> None:
    server = _server(target, random)
    if random.random() < 0.6:
        server = target.leader_name() or server
    by_ms = random.choice((-1, 1, 1)) * int(_span(random, 60.0, 400 * 86400.0) * 1000)
    target.clock_wrong(server, by_ms, _span(random, 0.5, 8.0))


def _disk(what: str) -> Callable[[ClusterFaults, Random], None]:
    return lambda target, random: target.disk(
        _server(target, random), what, _span(random, 0.5, 6.0)
    )


def _forget(what: str) -> Callable[[ClusterFaults, Random], None]:
    return lambda target, random: target.forget(_server(target, random), what, random)


def _client_cut(target: ClusterFaults, random: Random) -> None:
    client = _client(target, random)
    servers = target.server_names()
    servers = random.sample(servers, random.randint(1, len(servers)))
    pairs = [(client, server) for server in servers]
    target.cut([*pairs, *((b, a) for a, b in pairs)], _span(random, 0.3, 14.0))


def _client_slow(target: ClusterFaults, random: Random) -> None:
    pair = [_client(target, random), _server(target, random)]
    random.shuffle(pair)
    target.slow(pair[0], pair[1], _span(random, 0.05, 2.0), _span(random, 0.5, 8.0))


def _slow_kill(target: ClusterFaults, random: Random) -> None:
    name = _server(target, random)
    target.slow_kills(name, _span(random, 0.5, 3.0), _span(random, 2.0, 10.0))


def _sign(target: ClusterFaults, random: Random) -> None:
    name, for_s = _server(target, random), _span(random, 1.0, 12.0)
    target.show_sign(name, random.random(), for_s, for_s * random.random())


def _operate(what: str) -> Callable[[ClusterFaults, Random], None]:
    return lambda target, random: target.operate(what, random)


EFFECTS: dict[str, Callable[[ClusterFaults, Random], None]] = {
    "reset": _reset,
    "slow-link": _slow_link,
    "partition": _partition,
    "deaf": _deaf,
    "cut": _cut,
    "cut-pair": _cut_pair,
    "readdress": lambda target, random: target.readdress(random),
    "isolate-leader": _isolate_leader,
    "kill": lambda target, random: target.kill(_server(target, random), _span(random, 0.05, 8.0)),
    "kill-leader": _kill_leader,
    "roll": lambda target, random: target.kill(target.next_server(), _span(random, 0.1, 2.0)),
    "flap": _flap,
    "client-massacre": _client_massacre,
    # The next process starts before anybody has noticed, in the middle of an election maybe.
    "blink": lambda target, random: target.kill(
        _server(target, random), _span(random, 0.0001, 0.001)
    ),
    "power": lambda target, random: target.power_off(
        _server(target, random), _span(random, 0.5, 8.0)
    ),
    "torn": _torn,
    "power-all": _power_all,
    "pause": lambda target, random: target.pause(_server(target, random), _span(random, 0.1, 12.0)),
    "pause-leader": _pause_leader,
    "clock-rate": _clock_rate,
    "clock-jump": _clock_jump,
    # As far as a clock may be off before its server is not believed any more.
    "clock-step": lambda target, random: target.clock_jump(
        _server(target, random), random.choice((-4500, 4500))
    ),
    "clock-wrong": _clock_wrong,
    "disk-slow": _disk("slow"),
    "disk-full": _disk("full"),
    "disk-broken": _disk("broken"),
    "client-kill": lambda target, random: target.kill_client(
        _client(target, random), silently=False
    ),
    "client-dark": lambda target, random: target.kill_client(
        _client(target, random), silently=True
    ),
    "client-cut": _client_cut,
    "client-slow": _client_slow,
    "client-pause": lambda target, random: target.pause_client(
        _client(target, random), _span(random, 0.5, 12.0)
    ),
    "worker-death": lambda target, random: target.kill_worker(random.random()),
    "slow-kill": _slow_kill,
    "end-lease": _operate("end-lease"),
    "revoke": _operate("revoke"),
    "drain": _operate("drain"),
    "relabel": _operate("relabel"),
    "set-clock": _operate("set-clock"),
    "replace": _operate("replace"),
    "old-copy": _forget("old-copy"),
    "lost-tail": _forget("lost-tail"),
    "rot": _forget("rot"),
    "bit": lambda target, random: target.flip(_server(target, random), random.random()),
    "clone": lambda target, random: target.clone(_server(target, random)),
    "recover": lambda target, random: target.recover(random),
    "rotate-ca": _operate("rotate-ca"),
    "retire-ca": _operate("retire-ca"),
    "drain-gpu": _operate("drain-gpu"),
    "suspend": _operate("suspend"),
    "move": _operate("move"),
    "sign": _sign,
    "silence": _operate("silence"),
    "forget-user": _operate("forget-user"),
    "backup": _operate("backup"),
    "relocate": _operate("relocate"),
}
