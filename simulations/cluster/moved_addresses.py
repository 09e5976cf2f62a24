"""Servers that come back with other addresses, and the addresses that their links know."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.remoting.transport.address_book import AddressBook
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.kernel.machines import Machine

KIND = "readdress"


def links_of(
    environment: Environment, machine: Machine, table: Callable[[], PoolState], *, create: bool
) -> dict[str, Any]:
    """Return the arguments of a server's links in a run with changing addresses; else nothing."""
    if all(kind != KIND for kind, _ in environment.options.faults):
        return {}
    if create:  # It was told by those who let it in.
        machines = environment.machines.values()
        machine.remembered = {each.server: each.address for each in machines}

    def listed(peer: ServerId) -> list[str]:
        known, kept = table().servers.get(peer), machine.remembered.get(peer)
        return [each for each in (known.address if known else None, kept) if each]

    own = machine.incarnation, (machine.address,)
    return {
        "book": AddressBook(machine.server, own, listed),
        "at": partial(_at, environment, machine.name),
        "places": machine.places,
    }


def _at(environment: Environment, seeker: str, address: str) -> str | None:
    """Return the machine at an address, if ``seeker`` reaches a server there."""
    blocked = environment.network.blocked
    for name, each in environment.machines.items():
        is_up = each.process is not None and each.process.alive
        if each.address == address and is_up:
            return None if blocked(seeker, name) or blocked(name, seeker) else name
    return None


class Moves:
    """Draws the servers that move, and their new addresses."""

    def __init__(self, environment: Environment) -> None:
        """Begin with machines that have never moved."""
        self._environment = environment
        self._count = 0

    def readdress(
        self, names: list[str], random: Random, kill: Callable[[str, float], None]
    ) -> None:
        """Kill some servers, or all, and start them with other addresses."""
        machines = self._environment.machines
        random.shuffle(names)
        count = random.choice((1, 2, len(names), len(names)))
        moved, others = names[:count], names[count:]
        former = [machines[name].address for name in moved]
        self._count += 1
        new = [f"{name}-{self._count}:7470" for name in moved]
        how = random.choice(("new", "exchanged", "former"))
        if how == "exchanged":
            new = [*former[1:], former[0]]
        elif how == "former":
            new[0] = former[-1]  # which that one has left, if it is another
        self._environment.trace.note("nemesis", KIND, f"{how}: {' '.join(moved)}")
        for name, address in zip(moved, new, strict=True):
            kill(name, 0.1 + 2 * random.random())
            machine = machines[name]
            machine.address, machine.places = address, ()
            # An operator names one place, so that all can find each other. At first that is not
            # needed where they have exchanged theirs.
            if others and (how != "exchanged" or self._count > 1):
                machine.places = (machines[random.choice(others)].address,)
            others.append(name)
