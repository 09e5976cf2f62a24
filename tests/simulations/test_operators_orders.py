"""Orders of silence, of forgetting a user and of a backup, in whole pools under faults."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpupool.simulations.faults.fault_schedule import EFFECTS
from gpupool.simulations.kernel.swarm_options import (
    FAULT_KINDS,
    NEWER_FROM,
    NEWER_KINDS,
    NEWEST_FROM,
    NEWEST_KINDS,
    swarm,
)
from gpupool.simulations.tools.runner import run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_orders_hold_while_servers_are_killed_and_the_time_is_set() -> None:
    options = replace(swarm(2), servers=3, clients=3, think_s=3.0, hold_s=1.0)
    faults = (("silence", 0.4), ("forget-user", 0.7), ("backup", 2.0))
    faults += (("reset", 1.0), ("kill", 3.0), ("set-clock", 3.0), ("clock-step", 2.0))
    report = run(replace(options, faults=faults, fault_s=12.0, heal_s=4.0))
    assert report.failure is None
    done = [line.text.split()[0] for line in report.lines if line.kind == "confirmed"]
    assert min(done.count(each) for each in ("silence", "no", "forget", "GetBackup")) >= 3


def test_only_later_seeds_draw_them() -> None:
    """What earlier seeds do is recorded."""
    assert set(NEWER_KINDS) < EFFECTS.keys()
    for seed in range(200):
        assert {kind for kind, _ in swarm(seed).faults} <= set(FAULT_KINDS)
    later = [{kind for kind, _ in swarm(NEWER_FROM + seed).faults} for seed in range(50)]
    assert all(any(kind in drawn for drawn in later) for kind in NEWER_KINDS)
    assert not any(drawn & set(NEWEST_KINDS) for drawn in later)
    newest = [{kind for kind, _ in swarm(NEWEST_FROM + seed).faults} for seed in range(50)]
    assert all(any(kind in drawn for drawn in newest) for kind in NEWEST_KINDS)


@pytest.mark.parametrize("seed", [0, 2])
def test_programs_go_to_other_servers_while_servers_and_clients_are_killed(seed: int) -> None:
    options = replace(swarm(seed), servers=4, clients=6, gpus=2, think_s=1.0, hold_s=6.0)
    faults = (("relocate", 0.4), ("kill", 3.0), ("reset", 1.0), ("client-kill", 3.0))
    faults += (("client-cut", 4.0), ("worker-death", 3.0), ("slow-kill", 4.0), ("suspend", 2.0))
    report = run(replace(options, faults=faults, fault_s=15.0, heal_s=4.0))
    assert report.failure is None
    assert sum(line.kind == "moved" for line in report.lines) >= 2
