"""A broken build: its name, the checker that must notice it, and the runs in which it matters."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from gpupool.pool.transitions.leases import ENDED_AT_ONCE_MAX
from gpupool.simulations.kernel.swarm_options import (
    NEWER_KINDS,
    NEWEST_KINDS,
    Options,
    swarm,
    with_line,
)

ONLY_WHERE_MEANT = (
    *("rotate-ca", "retire-ca", "drain-gpu", "sign", "bit", "suspend", "move"),
    *NEWER_KINDS,
    *NEWEST_KINDS,
)

Broken = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One broken build."""

    name: str
    checker: str  # the one that must notice
    rule: str  # how the rule is broken
    broken: Broken
    faults: tuple[tuple[str, float], ...] = ()  # added to those of the swarm: kind, interval
    tune: Callable[[Options], Options] = lambda options: options

    def options(self, seed: int) -> Options:
        """Return a run of the swarm in which the broken rule matters.

        The CA is exchanged, GPUs are drained, leases give way or end a few at a time, and whole
        tables are hashed, in runs that are about it: in all others it only moves what happens.
        """
        drawn = swarm(seed)
        faults = tuple(each for each in drawn.faults if each[0] not in ONLY_WHERE_MEANT)
        policy = tuple(each for each in drawn.policy if each != "preempt")
        drawn = replace(drawn, policy=policy, policy_s=drawn.policy_s if policy else 0.0)
        drawn = replace(drawn, preemptible=0.0, faults=faults + self.faults, hash_s=0.0)
        drawn = replace(drawn, ends_at_once=ENDED_AT_ONCE_MAX)
        return self.tune(drawn)


def short(fault_s: float, heal_s: float) -> Callable[[Options], Options]:
    """Return a function that shortens runs that only their end can judge."""
    return lambda options: replace(options, fault_s=fault_s, heal_s=heal_s)


def two_gpus(options: Options) -> Options:
    """Return a run in which leases have somewhere to go."""
    return replace(options, gpus=max(2, options.gpus), think_s=0.3)


def with_long_line(*kinds: str) -> Callable[[Options], Options]:
    """Return a function that gives runs a long line with these in it."""
    return lambda options: with_line(options, kinds)


def with_policy(*kinds: str) -> Callable[[Options], Options]:
    """Return a function that gives runs policies about these things, one after the other."""
    return lambda options: replace(options, policy=kinds, policy_s=2.0, think_s=0.3)
