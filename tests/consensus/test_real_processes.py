"""Real processes, disks and TLS connections that are killed: nothing acknowledged is lost."""

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

_PATH = Path(__file__).parent.parent / "benchmarks" / "consensus.py"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """Three server processes of the benchmark, connected by mutual TLS."""
    spec = importlib.util.spec_from_file_location("consensus_benchmark", _PATH)
    assert spec is not None and spec.loader is not None
    benchmark: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = benchmark
    spec.loader.exec_module(benchmark)
    cluster = benchmark.Cluster("ours", 3, tmp_path)
    yield cluster
    cluster.stop()
    for process in cluster.processes.values():
        for stream in (process.process.stdin, process.process.stdout):
            stream.close()


def kill(cluster: Any, *names: str) -> None:
    for name in names:
        process = cluster.processes[name].process
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.long
def test_killed_servers_come_back_with_everything(cluster: Any) -> None:
    committed = 0.0
    for round_number in range(3):
        leader = cluster.leader()
        rate, _, _ = cluster.processes[leader].do(do="load", in_flight=16, seconds=0.3)
        committed += rate * 0.3
        # In the middle of the next load, the leader alone or all of them are killed.
        cluster.processes[leader].ask(do="load", in_flight=16, seconds=5)
        time.sleep(0.15)
        victims = cluster.names if round_number == 2 else [leader]
        kill(cluster, *victims)
        for name in victims:
            cluster.processes[name] = cluster.start(name)
    cluster.leader()
    counts = [process.do(do="count") for process in cluster.processes.values()]
    assert committed > 100
    assert min(counts) >= round(committed)
    assert len(set(counts)) == 1


def test_a_killed_leader_is_replaced(cluster: Any) -> None:
    """How soon is measured by the benchmarks, and tested in virtual time."""
    leader = cluster.leader()
    survivors = [process for name, process in cluster.processes.items() if name != leader]
    cluster.processes[leader].process.kill()
    for survivor in survivors:
        survivor.ask(do="first_write")
    for survivor in survivors:
        survivor.answer()  # once its write is committed
    assert [survivor.do(do="count") for survivor in survivors] == [2, 2]
