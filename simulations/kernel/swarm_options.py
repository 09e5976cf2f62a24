"""Options of a run, drawn from its seed: all that it depends on, printed before it begins."""

from dataclasses import dataclass, fields, replace
from hashlib import sha256
from random import Random
from typing import TypeVar

from gpupool.pool.transitions.leases import ENDED_AT_ONCE_MAX

T = TypeVar("T")

POLICY_KINDS = (
    "gpus",  # limits of GPUs: of users, of classes and their members, of all
    "memory",
    "leases",
    "priority",
    "places",  # which GPUs a class may use
    "idle",
    "lifetime",
    "window",
    "reservation",
    "preempt",  # who gives way to whom, for how long, and how often
)
"""Subjects of a policy."""

FAULT_KINDS = (
    "reset",  # connections of one pair of servers break, with all that is in flight
    "slow-link",  # one direction of one pair becomes slow
    "partition",  # the servers fall into two groups
    "deaf",  # one server hears nothing, or cannot be heard
    "cut",  # one direction of one pair
    "isolate-leader",  # the leader is cut off from all others
    "kill",  # kill -9 of a server, its workers live on; it restarts
    "kill-leader",
    "blink",  # kill -9 of a server, which restarts within a millisecond
    "power",  # a server's machine loses power, unsynced data and workers
    "torn",  # the power fails in the middle of one of the next file operations
    "power-all",  # all servers at once
    "pause",  # SIGSTOP, later SIGCONT
    "pause-leader",
    "clock-rate",  # a monotonic clock runs too fast or too slow
    "clock-jump",  # a wall clock jumps, by anything
    "clock-step",  # a wall clock jumps by a few seconds
    "clock-wrong",  # the leader's or another wall clock is wrong by up to 400 days for a while
    "disk-slow",
    "disk-full",
    "disk-broken",  # every sync fails
    "client-kill",
    "client-dark",  # a client's machine vanishes without a word
    "client-cut",  # a client is cut off from all servers for a while
    "client-slow",  # one direction between a client and a server becomes slow
    "client-pause",  # Ctrl-Z: its leases must stay
    "worker-death",
    "slow-kill",  # workers take long to die
    "end-lease",  # by an operator
    "revoke",  # of a user's token, by an operator
    "drain",
    "relabel",  # a server gets other labels
    "set-clock",  # an operator sets the table's time to where the voters' clocks are
    "replace",  # a server is removed for good, and its machine joins under a new identity
    "old-copy",  # a server's directory is replaced by a copy from before its last start
    "lost-tail",  # the end of a journal is gone, though a sync had confirmed it
    "rot",  # one bit of what a server has on its disk flips while it is down
    "bit",  # one flips in a row of a server's table in memory, on which no result depends
    "clone",  # a copy of a server's state directory is started on another machine beside it
    "recover",  # all servers stop, one is recovered, one returns as it was, the others join anew
    "rotate-ca",  # an operator exchanges the CA; the older one stays trusted
    "retire-ca",  # and drops the older one, unless a server still uses it
    "drain-gpu",  # one GPU of a server, by an operator
    "sign",  # of a failing GPU, for which its server drains it; an operator undrains it
    "suspend",  # a lease, by an operator, who resumes it later
    "move",  # a lease to other GPUs of its server, by an operator
)
"""Kinds of faults and of operators' orders. Scenarios add separate ones."""

NEWER_KINDS = (
    "silence",  # of a check, by an operator, or no more of it
    "forget-user",  # in the accounts, by an operator
    "backup",  # of the table, which takes note of it
)
NEWER_FROM = 100_000
"""The first seed that draws kinds of these. Runs of earlier seeds are recorded, in traces and with
broken builds, and stay as they are; each night tries later seeds."""

NEWEST_KINDS = (
    "relocate",  # a lease to another server, by an operator
    "cut-pair",  # both directions of one pair of servers, for long
    "readdress",  # servers come back with other addresses: all, some, or with one another's
)
NEWEST_FROM = 10_000_000
"""The same of these: recorded seeds go up to 7,000,002."""


LINE_KINDS = ("limit", "drained", "endless", "sleepers", "across")
LINE_FROM = 200_000_000
"""The first seed of which one in eight has a long line, and no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run. Durations are virtual seconds."""

    seed: int
    scenario: str = "swarm"
    servers: int = 5
    clients: int = 20
    fault_s: float = 30.0
    heal_s: float = 10.0
    gpus: int = 2  # of each server
    gpu_gib: tuple[int, ...] = (16,)  # their memory: all GPUs of a server have one of these
    delay_s: float = 0.0003  # one way
    jitter_s: float = 0.0002
    sync_s: float = 0.0002  # of every disk
    drift: float = 0.0  # clocks run at up to this much off
    wall_error_s: float = 0.0
    kill_s: float = 0.05  # mean time until a killed worker is gone
    worker_start_s: float = 0.1
    hold_s: float = 3.0  # mean time for which a client keeps a lease
    think_s: float = 1.0  # mean time between two leases of a client
    across: float = 0.1  # share of requests that several servers may satisfy together
    snapshot_entries: int = 10_000
    by_memory: float = 0.0  # share of requests for bytes instead of a fraction
    filtered: float = 0.0  # share of requests with filters
    wide: float = 0.0  # share of requests for as many GPUs as a server has
    placements: tuple[str, ...] = ("pack",)
    idle: float = 0.0  # share of programs that rest at times, and of requests with an idle timeout
    preemptible: float = 0.0  # share of requests that say so
    policy_s: float = 0.0  # mean time until operators put another policy in force; 0 for none
    policy: tuple[str, ...] = ()  # kinds of rules in policies; see ``drawn_policies``
    starved_s: float = 60.0  # after so long a wait, others may not overtake
    line: tuple[str, ...] = ()  # who waits in it; see ``long_lines``
    small_messages: bool = False  # between servers: batches of 4 KiB, snapshots by 2 KiB
    bulk_kib: int = 0  # of each policy, in bytes that cannot be deflated
    ends_at_once: int = ENDED_AT_ONCE_MAX  # leases that one command ends
    hash_s: float = 0.0  # of the table's time between two hashes of whole tables; 0: none
    faults: tuple[tuple[str, float], ...] = ()  # kind, mean seconds between two of them
    keep: tuple[int, ...] | None = None  # numbers of the faults that happen; None for all

    def lines(self) -> list[str]:
        """Return every option as one line each, the seed first."""
        rest = [f"{f.name:<16}  {getattr(self, f.name)}" for f in fields(self)[1:]]
        return [f"SEED={self.seed}", *rest]


def random_source(seed: int, purpose: str) -> Random:
    """Return a random source for one purpose of one seed."""
    digest = sha256(f"{seed}/{purpose}".encode()).digest()
    return Random(int.from_bytes(digest))  # noqa: S311 - a source that repeats is the point


def swarm(seed: int, *, servers: int | None = None, clients: int | None = None) -> Options:
    """Draw options: each run has some of the faults only, each at a separate rate.

    A run with all faults at once is a run in which nothing else happens; leaving out a random
    part of them reaches deeper (Groce et al., Swarm testing, ISSTA 2012).
    """
    some = _pick(seed, "some", 0.15, 0.3, 0.5)
    faults: list[tuple[str, float]] = []
    newer = NEWER_KINDS if seed >= NEWER_FROM else ()
    for kind in FAULT_KINDS + newer + (NEWEST_KINDS if seed >= NEWEST_FROM else ()):
        random = random_source(seed, f"options/{kind}")
        interval_s = random.choice((3.0, 6.0, 12.0, 25.0)) * (0.5 + random.random())
        if random.random() < some:
            faults.append((kind, round(interval_s, 2)))
    policy_s = _pick(seed, "policy_s", 0.0, 4.0, 8.0, 16.0)
    policy = tuple(
        k for k in POLICY_KINDS if random_source(seed, f"options/policy/{k}").random() < 0.4
    )
    drawn = Options(
        seed=seed,
        servers=_pick(seed, "many_servers", *[0] * 9, 9, 10, 12)
        or _pick(seed, "servers", 3, 3, 5, 5, 5, 7),
        clients=_pick(seed, "clients", 6, 12, 20, 20),
        gpus=_pick(seed, "gpus", 1, 2, 2, 4),
        gpu_gib=_pick(seed, "gpu_gib", (16,), (16,), (16, 32), (8, 16, 40)),
        delay_s=_pick(seed, "delay_s", 0.0001, 0.0003, 0.001, 0.005),
        jitter_s=_pick(seed, "jitter_s", 0.00005, 0.0002, 0.002),
        sync_s=_pick(seed, "sync_s", 0.0, 0.0002, 0.001, 0.005),
        drift=_pick(seed, "drift", 0.0, 0.0001, 0.05),
        wall_error_s=_pick(seed, "wall_error_s", 0.0, 0.5, 3.0),
        kill_s=_pick(seed, "kill_s", 0.01, 0.05, 0.5),
        worker_start_s=_pick(seed, "worker_start_s", 0.01, 0.1, 0.5),
        hold_s=_pick(seed, "hold_s", 1.0, 3.0, 8.0),
        think_s=_pick(seed, "think_s", 0.3, 1.0, 3.0),
        across=_pick(seed, "across", 0.0, 0.1, 0.4),
        by_memory=_pick(seed, "by_memory", 0.0, 0.3),
        filtered=_pick(seed, "filtered", 0.0, 0.1, 0.5),
        wide=_pick(seed, "wide", 0.0, 0.1, 0.3),
        placements=_pick(seed, "placements", ("pack",), ("spread",), ("pack", "spread", "near")),
        idle=_pick(seed, "idle", 0.0, 0.0, 0.5),
        policy_s=policy_s if policy else 0.0,
        policy=policy if policy_s else (),
        preemptible=_pick(seed, "preemptible", 0.0, 0.3) if "preempt" in policy else 0.0,
        starved_s=_pick(seed, "starved_s", 1.0, 3.0, 10.0, 60.0),
        snapshot_entries=_pick(seed, "snapshot_entries", 40, 200, 1000, 10_000),
        small_messages=_pick(seed, "small_messages", False, False, False, True),
        bulk_kib=_pick(seed, "bulk_kib", 0, 0, 0, 0, 0, 0, 20, 38),
        ends_at_once=_pick(seed, "ends_at_once", ENDED_AT_ONCE_MAX, 1, 2),
        hash_s=_pick(seed, "hash_s", 0.0, 2.0, 2.0, 5.0),
        faults=tuple(faults),
    )
    if seed >= LINE_FROM and _pick(seed, "has_line", *[False] * 7, True):
        kinds = tuple(each for each in LINE_KINDS if _pick(seed, f"line/{each}", False, True))
        drawn = with_line(drawn, kinds)
    if servers is not None:
        drawn = replace(drawn, servers=servers)
    return replace(drawn, clients=clients) if clients is not None else drawn


def with_line(options: Options, kinds: tuple[str, ...]) -> Options:
    """Return a run in which a line forms: requests go first soon, and leases are short."""
    return replace(
        options,
        line=("large", *kinds),
        servers=3 + ("drained" in kinds),
        clients=40 if "limit" in kinds else 20,
        gpus=4,
        gpu_gib=(16,),
        fault_s=60.0,
        hold_s=1.0,
        think_s=0.1,
        idle=0.0,
        starved_s=1.0,
        policy=(),
        policy_s=0.0,
        bulk_kib=0,
        faults=(),
    )


def _pick(seed: int, name: str, *values: T) -> T:
    """Draw one option from a separate source: a new option leaves the others as they were."""
    return random_source(seed, f"options/{name}").choice(values)
