"""Scenarios: runs by name, with the kinds of their faults and how often they happen."""

from collections.abc import Callable
from dataclasses import replace

from gpupool.simulations.kernel.swarm_options import Options, random_source, swarm

Faults = tuple[tuple[str, float], ...]


def _drawn(seed: int, scenario: str, faults: Faults) -> Options:
    """Return options with these faults, each up to half as often or twice as often."""
    random = random_source(seed, "scenario")
    drawn = tuple(
        (kind, round(every_s * 2 ** random.uniform(-1, 1), 2)) for kind, every_s in faults
    )
    return replace(swarm(seed, servers=5, clients=20), scenario=scenario, faults=drawn)


def _rolling_restart(seed: int) -> Options:
    return _drawn(seed, "rolling-restart", (("roll", 3.0), ("worker-death", 10.0)))


def _split_brain(seed: int) -> Options:
    faults = (("partition", 4.0), ("isolate-leader", 6.0), ("deaf", 10.0), ("pause-leader", 10.0))
    return _drawn(seed, "split-brain", faults)


def _flapping_network(seed: int) -> Options:
    faults = (("reset", 0.7), ("flap", 0.7), ("slow-link", 3.0), ("client-cut", 5.0))
    return _drawn(seed, "flapping-network", faults)


def _disk_trouble(seed: int) -> Options:
    faults = (
        ("torn", 3.0),
        ("power", 6.0),
        ("power-all", 15.0),
        ("disk-slow", 5.0),
        ("disk-full", 6.0),
        ("disk-broken", 6.0),
    )
    return replace(_drawn(seed, "disk-trouble", faults), snapshot_entries=50)


def _mass_client_death(seed: int) -> Options:
    faults = (("client-massacre", 6.0), ("client-kill", 2.0), ("client-dark", 3.0))
    return _drawn(seed, "mass-client-death", faults)


def _moved_addresses(seed: int) -> Options:
    return _drawn(seed, "moved-addresses", (("readdress", 12.0), ("kill", 8.0), ("cut-pair", 40.0)))


SCENARIOS: dict[str, Callable[[int], Options]] = {
    "swarm": swarm,
    "rolling-restart": _rolling_restart,
    "split-brain": _split_brain,
    "flapping-network": _flapping_network,
    "disk-trouble": _disk_trouble,
    "mass-client-death": _mass_client_death,
    "moved-addresses": _moved_addresses,
}


def options_of(
    scenario: str,
    seed: int,
    *,
    servers: int | None = None,
    clients: int | None = None,
    fault_s: float | None = None,
    keep: tuple[int, ...] | None = None,
) -> Options:
    """Return the options of one seed of a scenario, with those that the caller sets."""
    options = SCENARIOS[scenario](seed)
    if servers is not None:
        options = replace(options, servers=servers)
    if clients is not None:
        options = replace(options, clients=clients)
    if fault_s is not None:
        options = replace(options, fault_s=fault_s)
    return replace(options, keep=keep)
