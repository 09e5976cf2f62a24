"""``gpupool simulate``: a whole pool in one process, under faults drawn from a seed."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import DURATION, json_option, verbose_option
from gpupool.cli.lib.output import print_json
from gpupool.pool.errors import ExitCode, GpupoolError, UsageError
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.simulations.kernel.swarm_options import Options
    from gpupool.simulations.tools.runner import Report
    from gpupool.simulations.tools.search import Totals

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
@click.option("--seed", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--scenario", type=click.Choice(SCENARIOS), default="swarm", show_default=True)
@click.option("--servers", type=click.IntRange(1, 1000), help="Servers, instead of a draw.")
@click.option("--clients", type=click.IntRange(1, 1000), help="Clients, instead of a draw.")
@click.option("--duration", type=DURATION, help="Virtual time with faults.  [default: 30s]")
@click.option("--keep", help="Numbers of the faults that happen, as a failure prints them.")
@click.option("--transcript", type=click.Path(dir_okay=False), help="Write a failure's here.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes."
)
@click.option("--keep-going", is_flag=True, help="Run all seeds, and list those that fail.")
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
    jobs: int,
    keep_going: bool,
    as_json: bool,
) -> int:
    """Test gpupool itself: run a whole pool in virtual time, under random faults.

    A seed is a number that decides all faults and all timing. One seed is 30 virtual seconds of
    faults and 10 of healing. The servers' and clients' own code runs, without sockets, threads or
    real time. The same seed gives the same run on every machine: its trace, a hash over all events,
    is the same. One seed prints its options, its phases and its verdict; several print a summary.
    The first failure ends the search. Its shortened transcript is printed, with the command that
    repeats it.
    """
    from gpupool.simulations.tools.scenarios import options_of

    kept = _numbers(keep)

    def options(number: int) -> "Options":
        return options_of(
            scenario, number, servers=servers, clients=clients, fault_s=duration, keep=kept
        )

    shrunk = kept is not None
    runs = [options(number) for number in range(seed, seed + seeds)]
    if seeds == 1 and not as_json:
        report = _run_one(runs[0], shrunk_already=shrunk, to=transcript)
        return ExitCode.DONE if report.failure is None else ExitCode.FAILED
    first, found = _search(runs, jobs=jobs, keep_going=keep_going)
    if first is None or keep_going:
        found.print(as_json=as_json)
    elif as_json:
        _print_smaller(first, shrunk_already=shrunk)
    elif _run_one(first, shrunk_already=shrunk, to=transcript).failure is None:
        raise GpupoolError(f"seed {first.seed} failed once, and passed when it was repeated")
    return ExitCode.DONE if first is None else ExitCode.FAILED


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",")) if text != "none" else ()
    except ValueError as error:
        raise UsageError(
            f"--keep {text} makes no sense", hint="numbers with commas, or none"
        ) from error


@dataclass(slots=True)
class _Found:
    """The results of a search, in all and for each process."""

    totals: "Totals"
    by_process: "dict[int, Totals]" = field(default_factory=dict[int, "Totals"])
    real_s: float = 0.0

    def print(self, *, as_json: bool) -> None:
        totals = self.totals
        if as_json:
            processes = [self.by_process[key].plain() for key in sorted(self.by_process)]
            print_json(
                ok=not totals.failed,
                **totals.plain(),
                real_s=round(self.real_s, 3),
                processes=processes,
            )
            return
        passed = totals.seeds - len(totals.failed)
        click.echo(
            f"{passed} of {totals.seeds} seed(s) passed: {totals.virtual_s:.0f} virtual seconds "
            f"({totals.virtual_s / max(totals.processor_s, 1e-9):.0f} a processor second), "
            f"{totals.grants} leases granted, {totals.histories} histories checked, "
            f"healed within {totals.converged_s_max:.1f} s"
        )
        click.echo(f"trace {totals.digest}")


def _search(
    runs: "list[Options]", *, jobs: int, keep_going: bool
) -> "tuple[Options | None, _Found]":
    """Run all seeds, or until the first failure; return a run that failed, and the totals."""
    import logging

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from gpupool.simulations.tools.search import Totals, search

    # Servers that are killed and cut off log many errors, all of them expected.
    logging.disable(logging.CRITICAL)
    by_seed = {options.seed: options for options in runs}
    first: Options | None = None
    found = _Found(Totals())
    began = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("seeds", total=len(runs))
        for result in search(runs, jobs=jobs):
            found.totals.add(result)
            found.by_process.setdefault(result.process, Totals()).add(result)
            found.real_s = time.monotonic() - began
            progress.advance(task)
            if result.failure:
                first = first or by_seed[result.seed]
                if not keep_going:
                    break
                say(f"gpupool: seed {result.seed} failed: {result.failure}")
    return first, found


def _run_one(options: "Options", *, shrunk_already: bool, to: str | None) -> "Report":
    """Run one seed; print its options, phases and verdict, and the transcript of a failure."""
    import logging

    from gpupool.simulations.__main__ import simulate

    # Servers that are killed and cut off log many errors, all of them expected.
    logging.disable(logging.CRITICAL)
    lines: list[str] = []
    transcript = lines.append if to is not None else None
    report = simulate(options, click.echo, transcript=transcript, smaller=not shrunk_already)
    if lines and to is not None:
        with open(to, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return report


def _print_smaller(failed: "Options", *, shrunk_already: bool) -> None:
    """Shrink a seed that failed, and print the failure as JSON."""
    from gpupool.simulations.tools.runner import run
    from gpupool.simulations.tools.shrink import reproduce, shrink

    report = run(failed)
    if report.failure is None:
        raise GpupoolError(f"seed {failed.seed} failed once, and passed when it was repeated")
    if not shrunk_already:
        report = shrink(report, run)
    again = reproduce(report.options)
    print_json(ok=False, failure=report.failure, digest=report.digest, command=again)
