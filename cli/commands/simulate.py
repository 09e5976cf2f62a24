"""``gpupool simulate``: a whole pool in one process, under faults drawn from a seed."""

import click

from gpupool.cli.lib.options import DURATION, verbose_option
from gpupool.pool.errors import ExitCode

SCENARIOS = (
    "swarm",
    "rolling-restart",
    "split-brain",
    "flapping-network",
    "disk-trouble",
    "mass-client-death",
    "moved-addresses",
)
"""The names in ``gpupool.simulations.tools.scenarios``, repeated here to keep ``--help`` fast."""


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="The seed.")
@click.option("--scenario", type=click.Choice(SCENARIOS), default="swarm", show_default=True)
@click.option("--servers", type=click.IntRange(1, 1000), help="Servers, instead of a draw.")
@click.option("--clients", type=click.IntRange(1, 1000), help="Clients, instead of a draw.")
@click.option("--duration", type=DURATION, help="Virtual time with faults.  [default: 30s]")
@verbose_option
def command(
    seed: int,
    scenario: str,
    servers: int | None,
    clients: int | None,
    duration: float | None,
) -> int:
    """Test gpupool itself: run a whole pool in virtual time, under random faults.

    A seed is a number that decides all faults and all timing. One seed is 30 virtual seconds of
    faults and 10 of healing. The servers' and clients' own code runs, without sockets, threads or
    real time. The same seed gives the same run on every machine: its trace, a hash over all events,
    is the same. It prints its options, its phases and its verdict, and of a failure every event.
    """
    import logging

    from gpupool.simulations.tools.runner import simulate
    from gpupool.simulations.tools.scenarios import options_of

    # Servers that are killed and cut off log many errors, all of them expected.
    logging.disable(logging.CRITICAL)
    options = options_of(scenario, seed, servers=servers, clients=clients, fault_s=duration)
    report = simulate(options, click.echo)
    return ExitCode.DONE if report.failure is None else ExitCode.FAILED
