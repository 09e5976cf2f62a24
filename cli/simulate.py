"""``gpupool simulate``: a whole pool in one process, under faults drawn from a seed."""

import time
from typing import TYPE_CHECKING, Any

import click

from gpupool.cli.options import json_option, verbose_option
from gpupool.cli.output import print_json, say, to_plain
from gpupool.cli.values import DURATION
from gpupool.pool.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from gpupool.simulations.options import Options
    from gpupool.simulations.runner import Report

SCENARIOS = (
    "swarm",
    "rolling-restart",
    "split-brain",
    "flapping-network",
    "disk-trouble",
    "mass-client-death",
)
"""As ``gpupool.simulations.scenarios`` has them; written here as well to keep ``--help`` fast."""


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--scenario", type=click.Choice(SCENARIOS), default="swarm", show_default=True)
@click.option("--servers", type=click.IntRange(1, 1000), help="Servers, instead of a draw.")
@click.option("--clients", type=click.IntRange(1, 1000), help="Clients, instead of a draw.")
@click.option("--duration", type=DURATION, help="Virtual time with faults.  [default: 30s]")
@click.option("--keep", help="Numbers of the faults that happen, as a failure prints them.")
@click.option("--transcript", type=click.Path(dir_okay=False), help="Write a failure's here.")
@click.option("--real", is_flag=True, help="Real processes and real time: kill -9, stops, cuts.")
@verbose_option
@json_option
def command(
    seed: int,
    seeds: int,
    scenario: str,
    servers: int | None,
    clients: int | None,
    duration: float | None,
    keep: str | None,
    transcript: str | None,
    real: bool,
    as_json: bool,
) -> int:
    """Run a whole pool in virtual time, and look for anything that must never happen.

    One seed is 30 virtual seconds of faults and 10 of healing: real servers, real allocation, no
    sockets, no threads, no real time. The same seed does the same everywhere. The first failure
    ends the search; its transcript is printed, shrunk, with the command that repeats it.

    With --real, servers and clients are processes of this machine, and the same rules are checked
    on what they leave behind.
    """
    if real:
        return _run_real(seed, servers or 3, clients or 4, duration or 30.0, as_json=as_json)
    from gpupool.simulations.scenarios import options_of

    kept = _numbers(keep)

    def options(number: int) -> "Options":
        return options_of(
            scenario, number, servers=servers, clients=clients, fault_s=duration, keep=kept
        )

    failed, totals = _search([options(number) for number in range(seed, seed + seeds)])
    if failed is None:
        _print_totals(totals, as_json=as_json)
        return ExitCode.DONE
    _print_failure(failed, shrunk_already=kept is not None, to=transcript, as_json=as_json)
    return ExitCode.FAILED


def _run_real(seed: int, servers: int, clients: int, duration_s: float, *, as_json: bool) -> int:
    """Run chaos on real processes of this machine."""
    import trio

    from gpupool.simulations.real import Chaos

    began = time.monotonic()

    def tell(text: str) -> None:
        say(f"{time.monotonic() - began:7.1f} s  {text}")

    chaos = Chaos(seed, servers=servers, clients=clients, duration_s=duration_s, say=tell)
    report = trio.run(chaos.run)
    if as_json:
        print_json(ok=not report.failures, **to_plain(report))
    elif not report.failures:
        click.echo(
            f"passed: {sum(report.faults.values())} faults, {report.granted} leases granted, "
            f"{report.entries} log entries, healed within {report.converged_s:.1f} s"
        )
    if report.failures:
        for failure in report.failures:
            say(f"gpupool: {failure}")
        say(f"  hint: everything that the processes left is in {report.folder}")
        return ExitCode.FAILED
    return ExitCode.DONE


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",")) if text != "none" else ()
    except ValueError as error:
        raise UsageError(
            f"--keep {text} makes no sense", hint="numbers with commas, or none"
        ) from error


def _search(runs: "list[Options]") -> "tuple[Report | None, dict[str, Any]]":
    """Run until the first failure; returns it, and what all runs came to."""
    import logging

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from gpupool.simulations.runner import run

    # Servers that are killed and cut off complain a lot, and it would all be about nothing.
    logging.disable(logging.CRITICAL)
    totals: dict[str, Any] = {"seeds": 0, "virtual_s": 0.0, "grants": 0, "converged_s_max": 0.0}
    began = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("seeds", total=len(runs))
        for options in runs:
            report = run(options)
            totals["seeds"] += 1
            totals["virtual_s"] += report.virtual_s
            totals["grants"] += report.granted
            totals["converged_s_max"] = max(totals["converged_s_max"], report.converged_s)
            totals["real_s"] = time.monotonic() - began
            totals["digest"] = report.digest
            if report.failure is not None:
                return report, totals
            progress.advance(task)
    return None, totals


def _print_totals(totals: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(ok=True, **totals)
        return
    rate = totals["virtual_s"] / max(totals["real_s"], 1e-9)
    click.echo(
        f"{totals['seeds']} seed(s) passed: {totals['virtual_s']:.0f} virtual seconds "
        f"({rate:.0f} a second), {totals['grants']} leases granted, "
        f"healed within {totals['converged_s_max']:.1f} s"
    )
    if totals["seeds"] == 1:
        click.echo(f"trace {totals['digest']}")


def _print_failure(
    report: "Report", *, shrunk_already: bool, to: str | None, as_json: bool
) -> None:
    from gpupool.simulations.runner import run
    from gpupool.simulations.shrink import reproduce, shrink

    if not shrunk_already:
        say(f"gpupool: seed {report.options.seed} failed: {report.failure}; making it smaller")
        report = shrink(report, run)
    again = reproduce(report.options)
    if as_json:
        print_json(ok=False, failure=report.failure, digest=report.digest, command=again)
        return
    lines = [*report.options.lines(), "", *map(str, report.lines)]
    if to is not None:
        with open(to, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    else:
        click.echo("\n".join(lines))
    say(f"gpupool: {report.failure}")
    say(f"  trace {report.digest}")
    say(f"  hint: {again}")
