"""Whole clusters under faults drawn from seeds: nothing acknowledged is lost, nothing forks.

``python tests/consensus/test_cluster_under_faults.py PROFILE FIRST LAST`` runs more seeds.
"""

import logging
import random
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from raft_world import Faults, Violation, World

from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.pool.model.ids import ServerId
from gpupool.simulations.kernel.simulated_network import FrameChances

OFTEN = ConsensusSettings(snapshot_entries=40, snapshots_per_rewrite=1)
"""Snapshots every 40 entries, so that a run of eight seconds takes several."""

SOME_RESETS = Faults(jitter_s=0.005, frames=FrameChances(reset=0.002))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The possible faults of a run."""

    faults: Faults = field(default_factory=Faults)
    settings: ConsensusSettings | None = None
    drift: float = 0.0
    learners: int = 0
    rate: float = 60  # commands a second
    crashes: bool = False
    alone: bool = False  # one voter
    sync_s: float = 0.0  # what a sync of a disk takes
    power: bool = False  # crashes are power losses, some in the middle of a disk operation
    partitions: bool = False
    members: bool = False
    haunted: bool = False  # whoever has just voted may die of it


PROFILES = {
    "clean": Profile(),
    "network": Profile(faults=SOME_RESETS, drift=0.3, partitions=True),
    "crashes": Profile(faults=SOME_RESETS, drift=0.3, crashes=True, partitions=True),
    "power": Profile(faults=Faults(frames=FrameChances(reset=0.001)), crashes=True, power=True),
    "hostile": Profile(
        faults=Faults(frames=FrameChances(duplicate=0.05, reorder=0.05, reset=0.002)),
        partitions=True,
    ),
    "lossy": Profile(  # TLS forbids it; an inbox that overflows does not
        faults=Faults(frames=FrameChances(lose=0.02, truncate=0.01, duplicate=0.02, reorder=0.02)),
        settings=OFTEN,
        crashes=True,
        partitions=True,
    ),
    "slow disks": Profile(  # entries are with the others long before the leader has them
        faults=Faults(frames=FrameChances(reset=0.001)),
        rate=300,
        crashes=True,
        power=True,
        sync_s=0.02,
    ),
    "one voter": Profile(learners=2, rate=400, crashes=True, power=True, alone=True, sync_s=0.005),
    "snapshots": Profile(
        faults=Faults(frames=FrameChances(reset=0.002)),
        settings=OFTEN,
        crashes=True,
        power=True,
        partitions=True,
    ),
    "elections": Profile(
        faults=Faults(jitter_s=0.025), crashes=True, partitions=True, haunted=True
    ),
    "everything": Profile(
        faults=Faults(
            jitter_s=0.005, frames=FrameChances(reset=0.003, duplicate=0.02, reorder=0.02)
        ),
        settings=OFTEN,
        drift=0.5,
        learners=2,
        rate=120,
        crashes=True,
        power=True,
        partitions=True,
        members=True,
    ),
}


def run_seed(name: str, seed: int) -> World:
    """Eight seconds of faults and load, then everything heals and must agree."""
    profile = PROFILES[name]
    world = World(
        seed,
        voters=1 if profile.alone else 3 if seed % 3 else 5,
        learners=profile.learners,
        faults=profile.faults,
        settings=profile.settings,
        drift=profile.drift,
    )
    for server in world.servers.values():
        server.disk.sync_latency_s = profile.sync_s
    rng = random.Random(seed * 7 + 1)
    world.run_until(lambda: world.leader() is not None)
    world.run(0.1)  # Everybody has heard of the leader.
    world.load(seconds=8, rate=profile.rate)
    for number in range(16):
        world.at(0.5 * number + 0.4 * rng.random(), lambda: disturb(world, profile, rng))
    revive(world, rng)
    if profile.haunted:
        haunt(world, rng, {})
    world.run(8.5)
    world.settle()
    return world


def disturb(world: World, profile: Profile, rng: random.Random) -> None:
    """Draw at most a few faults."""
    if profile.crashes and rng.random() < 0.5:
        victim = world.servers[rng.choice(world.names)]
        if profile.power and rng.random() < 0.3:
            victim.disk.power_fails_after = rng.randint(1, 12)
        elif victim.node is not None:
            world.crash(victim.name, power=profile.power and rng.random() < 0.7)
    if profile.crashes and rng.random() < 0.05:
        for server in world.alive():
            world.crash(server.name, power=profile.power)
    if profile.partitions and rng.random() < 0.3:
        names = list(world.names)
        rng.shuffle(names)
        size = rng.randint(1, len(names) - 1)
        sides = [names[:size], names[size:]]
        world.block(sides)
        world.at(rng.uniform(0.2, 1.2), world.heal)
        if profile.members and rng.random() < 0.5:  # Lost servers are replaced by those in reach.
            reconcile(world, rng.choice(sides))
    if profile.partitions and rng.random() < 0.2:
        world.pause(rng.choice(world.names), rng.uniform(0.1, 1))
    if profile.members and rng.random() < 0.3:
        reconcile(world, rng.sample(world.names, rng.randint(1, len(world.names))))


def reconcile(world: World, desired: list[ServerId]) -> None:
    for server in world.alive():
        assert server.node is not None
        server.node.reconcile_voters(desired)


def revive(world: World, rng: random.Random) -> None:
    for server in world.servers.values():
        if server.node is None and rng.random() < 0.6:
            world.boot(server.name)
    world.at(0.3, lambda: revive(world, rng))


def haunt(world: World, rng: random.Random, seen: dict[str, tuple[int, str | None]]) -> None:
    """Kill servers that have just voted, and start them again while others still campaign."""
    for server in world.alive():
        assert server.node is not None
        journal = server.node.storage.journal
        before, now = seen.get(server.name), (journal.term, journal.vote)
        seen[server.name] = now
        if before not in (None, now) and journal.vote is not None and rng.random() < 0.3:
            world.restart(server.name, after_s=rng.choice((0.001, 0.01)))
    if world.now < 8.0:
        world.at(0.002, lambda: haunt(world, rng, seen))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
@pytest.mark.parametrize(
    "name",
    [
        # "everything" has the faults of most others.
        name if name in ("clean", "everything") else pytest.param(name, marks=pytest.mark.long)
        for name in PROFILES
    ],
)
def test_seed(name: str, seed: int) -> None:
    world = run_seed(name, seed)
    assert len(world.acknowledged) > 50
    if name == "clean":
        assert not world.refused
        assert not world.unknown


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PROFILES))
def test_many_seeds(name: str) -> None:
    for seed in (*range(3, 8), *range(1000, 1400)):
        run_seed(name, seed)


# Everything has the network's faults too.
@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("network", marks=pytest.mark.slow), "everything"])
def test_a_seed_gives_the_same_run_in_every_process(name: str) -> None:
    program = (
        f"import test_cluster_under_faults as t; print(t.run_seed({name!r}, 3).trace.digest())"
    )
    folder = __file__.rpartition("/")[0]
    traces = {
        subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r}); {program}"],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "777")
    }
    assert len(traces) == 1
    assert len(traces.pop().strip()) == 64


def test_the_checks_can_fail() -> None:
    """The world's checks notice a majority with disks set back to an older copy."""
    world = World(1)
    world.load(seconds=1, rate=100)
    world.run(0.6)
    copies = {name: world.servers[name].disk.image() for name in world.names[:2]}
    world.run(0.9)
    for name in world.names:
        world.crash(name)
    for name, copy in copies.items():
        world.servers[name].disk.restore(copy)
        world.boot(name)
    world.run(2.0)  # They elect one of themselves before the third comes back.
    with pytest.raises(Violation, match="two different entries"):
        world.settle()


def main() -> None:
    name, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.disable(logging.CRITICAL)
    failed: list[Any] = []
    for seed in range(first, last):
        try:
            run_seed(name, seed)
        except Exception as error:  # noqa: BLE001 - the seed is what matters.
            failed.append((seed, type(error).__name__, str(error)))
            print(failed[-1], flush=True)
    print(f"{name}: {len(failed)} of {last - first} seeds failed")


if __name__ == "__main__":
    main()
