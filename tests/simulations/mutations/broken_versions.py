"""Broken builds of versions: one server is older than the pool that admitted it."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from tests.simulations.mutations.patching import patched

from gpupool.pool.model.commands import ServerUp
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions import servers
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.server_process import ServerProcess

OLDER = "s2"


def _adding(add: Callable[[Cluster, str], None]) -> Callable[[Cluster, str], None]:
    def added(cluster: Cluster, name: str) -> None:
        add(cluster, name)
        if name == OLDER:
            cluster.environment.machines[name].formats = VERSION - 1

    return added


def _always(_process: ServerProcess, _peer: ServerId) -> bool:
    return True


def _never(_machine: PoolMachine) -> bool:
    return False


def _unheard(_machine: PoolMachine, _value: bool) -> None:
    pass


@contextmanager
def older_goes_on() -> Generator[None]:
    """Link to the older server, which does not stop."""
    adding = _adding(getattr(Cluster, "_add_machine"))  # noqa: B009 - it is not for others
    with (
        patched(Cluster, "_add_machine", adding),
        patched(ServerProcess, "_understands", _always),
        patched(PoolMachine, "_is_outdated", property(_never, _unheard)),
    ):
        yield


def _never_too_old(_state: PoolState, _command: ServerUp) -> str:
    return ""


@contextmanager
def older_let_in() -> Generator[None]:
    """Take an older server in as well, as if it had the others' knowledge."""
    with older_goes_on(), patched(servers, "_too_old", _never_too_old):
        yield
