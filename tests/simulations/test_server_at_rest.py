"""A server at rest rests: the calls that it makes while nothing happens, in virtual time."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import pytest

from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.kernel.swarm_options import Options

REST_S = 10.0
SERVER = ("/consensus/", "/pool/", "/remoting/server/", "/pysyncobj/")


@contextmanager
def counting() -> Generator[Callable[[], int]]:
    """Count the calls of functions of a server, but for those within an expression."""
    count = 0

    def called(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        code = frame.f_code
        if event == "call" and code.co_name[0] != "<":
            count += any(room in code.co_filename for room in SERVER)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield lambda: count
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize(("servers", "calls_max"), [(1, 500), (3, 12_000)])
def test_the_servers_of_a_pool_with_one_lease_make_few_calls(servers: int, calls_max: int) -> None:
    cluster = Cluster(Options(seed=3, servers=servers, clients=1, hold_s=1e6, think_s=0.01))
    scheduler = cluster.scheduler
    cluster.create()
    scheduler.run_until(10.0)
    assert cluster.complete
    cluster.start_clients()
    scheduler.run_until(scheduler.now + 10.0)
    assert cluster.counters.granted == 1
    with counting() as calls:
        scheduler.run_until(scheduler.now + REST_S)
    assert calls() <= calls_max * REST_S
    assert cluster.failures.failure is None
