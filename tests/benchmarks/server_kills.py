"""Accounts of pools with servers killed again and again, in virtual time.

    python tests/benchmarks/server_kills.py [--kills 1000] [--seed 0]

Seeds are run until as many servers' processes were killed; power cuts are counted apart. After each
command the checker ``accounts-close`` compares the records of the table with a count of its own, to
the millisecond, and the first difference ends the run.
"""

import argparse
import logging
import sys

from gpupool.pool.model.commands import Envelope
from gpupool.pool.model.state import PoolState
from gpupool.simulations.checkers.accounts_checker import AccountsClose
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.cluster_faults import ClusterFaults
from gpupool.simulations.tools.runner import run
from gpupool.simulations.tools.scenarios import options_of


class Counts:
    """Counts of kills and power cuts of running servers, and of records."""

    def __init__(self) -> None:
        self.kills = self.power_cuts = self.records = 0
        kill, power_off, applied = ClusterFaults.kill, Cluster.power_off, AccountsClose.applied

        def counted_kill(faults: ClusterFaults, server: str, down_s: float) -> None:
            process = faults._cluster.servers.get(server)  # pyright: ignore[reportPrivateUsage]
            self.kills += process is not None and process.alive
            kill(faults, server, down_s)

        def counted_cut(cluster: Cluster, server: str, down_s: float) -> None:
            process = cluster.servers.get(server)
            self.power_cuts += process is not None and process.alive
            power_off(cluster, server, down_s)

        def counted_records(
            checker: AccountsClose, envelope: Envelope, before: PoolState, after: PoolState
        ) -> None:
            self.records += max(0, after.record_count - before.record_count)
            applied(checker, envelope, before, after)

        ClusterFaults.kill = counted_kill  # pyright: ignore[reportAttributeAccessIssue]
        Cluster.power_off = counted_cut  # pyright: ignore[reportAttributeAccessIssue]
        AccountsClose.applied = counted_records  # pyright: ignore[reportAttributeAccessIssue]


def main() -> int:
    """Run seeds, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    counts, seed = Counts(), given.seed
    while counts.kills < given.kills:
        report = run(options_of("swarm", seed))
        if report.failure is not None:
            sys.stdout.write(f"seed {seed}: {report.failure}\n")
            return 1
        seed += 1
    sys.stdout.write(
        f"{seed - given.seed} seeds: {counts.kills} kills of servers, "
        f"{counts.power_cuts} power cuts, {counts.records} records of leases; none lost, none "
        "twice, and each to the millisecond\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
