"""``gpupool analyze``: GPU use before a pool is adopted, and how large the pool must be."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from gpupool.cli.lib.options import DURATION, SIZE_TYPE, json_option
from gpupool.cli.lib.output import print_json, stdout_console
from gpupool.pool.errors import UsageError
from gpupool.pool.values import duration_text
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.monitoring.analysis.sizing import Goal, Size
    from gpupool.monitoring.analysis.trace_form import Trace

FORMATS = ("slurm", "nvidia-smi", "prometheus")
"""The names in ``gpupool.monitoring.analysis.importers``, repeated here to keep help fast."""

TELL_EVERY_S = 30.0
"""Seconds between two progress messages of a computation without a terminal."""

MODES = ("recorded", "attached", "whole", "silos")


@click.group()
def command() -> None:
    r"""See how GPUs are used today, and how many a pool would need; no pool is asked.

    \b
      gpupool analyze record --for 14d             on each GPU machine, or the script
      gpupool analyze import slurm jobs.txt -o jobs.trace
      gpupool analyze report jobs.trace --html report.html
      gpupool analyze size jobs.trace --wait 5m
    """


@command.command("import")
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, allow_dash=True),
    required=True,
    help='The trace to write, packed if it ends with .gz; "-" is standard output.',
)
@click.option("--zone", default="", help="Of times that name none, as Europe/Berlin.")
@click.option(
    "--every", type=DURATION, default=0.0, help="Join readings to intervals of this length."
)
@json_option
def import_(
    form: str, files: tuple[str, ...], out: str, zone: str, every: float, as_json: bool
) -> None:
    """Convert records of a scheduler or a monitor to a trace.

    FORMAT is one of slurm, nvidia-smi, prometheus. Malformed rows are counted and reported.
    """
    from gpupool.monitoring.analysis.trace_files import read_import, write_trace

    if as_json and out == "-":
        raise UsageError("--json and --out - exclude each other", hint="give one of them")
    trace = read_import(form, files, zone=zone, thin_s=every)
    write_trace(trace, out)
    if as_json:
        print_json(**_counts(trace))
        return
    say(
        f"gpupool: {len(trace.jobs):,} jobs and {len(trace.samples):,} readings of "
        f"{trace.span_s / 86400:.1f} days"
    )
    for sentence in trace.sentences:
        say(f"  {sentence}")


def _counts(trace: "Trace") -> dict[str, object]:
    return {
        "source": trace.source,
        "jobs": len(trace.jobs),
        "readings": len(trace.samples),
        "machines": len(trace.machines),
        "begin": trace.begin,
        "end": trace.end,
        "notes": trace.notes,
    }


# --- size -----------------------------------------------------------------------------------------


def _size_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a pool's hardware and its wait goal."""
    options = (
        click.option("--wait", type=DURATION, default=300.0, help="p95 of waits.  [default: 5m]"),
        click.option(
            "--mode",
            "modes",
            type=click.Choice(MODES),
            multiple=True,
            help="How jobs use GPUs; may be given several times.  [default: all that can be]",
        ),
        click.option(
            "--server-gpus",
            type=click.IntRange(1, 64),
            default=8,
            show_default=True,
            help="GPUs of each server.",
        ),
        click.option(
            "--gpu-memory", type=SIZE_TYPE, default="80G", help="Of each.  [default: 80G]"
        ),
        click.option(
            "--slowdown",
            type=click.FloatRange(1.0, 100.0),
            default=1.0,
            show_default=True,
            help="Jobs take so many times as long over the network, as 1.05.",
        ),
        click.option(
            "--idle-timeout", type=DURATION, default=1800.0, help="Of attached.  [default: 30m]"
        ),
        click.option(
            "--resamples",
            type=click.IntRange(0, 1000),
            default=20,
            show_default=True,
            help="Draws of days that the range is made of.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of the draws."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command("size")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@_size_options
@click.option("--strict-queue", is_flag=True, help="Nobody overtakes: for comparison only.")
@click.option("--gpus", "counts", type=click.IntRange(1, 32768), multiple=True, help="Try these.")
@json_option
def size_(
    traces: tuple[str, ...],
    modes: tuple[str, ...],
    strict_queue: bool,
    counts: tuple[int, ...],
    as_json: bool,
    **given: float,
) -> None:
    r"""Find the fewest GPUs with which 95 % of all requests wait no longer than --wait.

    The jobs are replayed in virtual time, through the pool's own rules of placement and waiting.
    With --gpus, only pools of those sizes are tried. The modes:

    \b
      recorded   a job holds its GPUs from its start to its end
      attached   it holds them while it computes, and for the idle timeout after
      whole      as recorded, and a share of a GPU counts as a whole one
      silos      as whole, and no group lends to another: as without a pool
    """
    from gpupool.monitoring.analysis.sizing import sizes, tried
    from gpupool.monitoring.analysis.trace_files import read_traces

    trace = read_traces(traces)
    goal = _goal(given, strict=strict_queue)
    if counts:
        rows = {mode: tried(trace, mode, goal, counts) for mode in modes or ("recorded",)}
        if as_json:
            print_json(wait_s=goal.wait_s, modes=rows)
            return
        from gpupool.cli.lib.analysis_charts import rows_table

        for mode, each in rows.items():
            stdout_console().print(rows_table(mode, each))
        return
    from gpupool.monitoring.analysis.cores import on_all_cores

    with on_all_cores() as spread:
        found = sizes(trace, goal, _Progress().tell, modes, spread)
    if as_json:
        print_json(wait_s=goal.wait_s, sizes=found, notes=trace.sentences)
        return
    _print_sizes(trace, goal, found)


def _goal(given: "dict[str, float]", *, strict: bool) -> "Goal":
    from gpupool.monitoring.analysis.demand import Wish
    from gpupool.monitoring.analysis.sizing import Goal

    wish = Wish(given["slowdown"], given["idle_timeout"], int(given["gpu_memory"]))
    return Goal(
        wait_s=given["wait"],
        per_server=int(given["server_gpus"]),
        wish=wish,
        strict=strict,
        resamples=int(given["resamples"]),
        seed=int(given["seed"]),
    )


class _Progress:
    """Progress of a long computation: one line on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()

    def tell(self, text: str) -> None:
        """Say it."""
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text[:78]}", nl=False, err=True)
        elif time.monotonic() - self._said_at >= TELL_EVERY_S:
            self._said_at = time.monotonic()
            say(f"gpupool: {text}")


def _print_sizes(trace: "Trace", goal: "Goal", found: "list[Size]") -> None:
    from gpupool.cli.lib.analysis_charts import sizes_view

    _Progress().tell("")  # an empty line again
    for part in sizes_view(found, goal):
        stdout_console().print(part)
    for sentence in trace.sentences:
        say(f"  {sentence}")
    say(f"  waits of 95 % of requests: {duration_text(goal.wait_s)} at most")


# --- report ---------------------------------------------------------------------------------------


@command.command("report")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False), help="Write one HTML page to this file."
)
@click.option("--sizes/--no-sizes", "sized", default=True, help="Say how large a pool must be.")
@_size_options
@json_option
def report_(
    traces: tuple[str, ...], page: str | None, sized: bool, as_json: bool, **given: Any
) -> None:
    """Show GPU use (working, held idle, free) by time and user, and the GPUs that would suffice.

    The page of --html is one file that loads nothing, with the same tables. Names of users are
    in it as they are in the trace.
    """
    from pathlib import Path

    from gpupool.cli.lib.analysis_charts import report_page, report_view
    from gpupool.monitoring.analysis.cores import on_all_cores
    from gpupool.monitoring.analysis.report_figures import report_of
    from gpupool.monitoring.analysis.trace_files import read_traces
    from gpupool.remoting.local.files import write_private

    modes = cast("tuple[str, ...]", given.pop("modes"))
    goal, tell = _goal(given, strict=False), _Progress().tell
    with on_all_cores() as spread:
        found = report_of(read_traces(traces), goal, tell, sized=sized, modes=modes, spread=spread)
    if page is not None:
        write_private(Path(page), report_page(found).encode())
    if as_json:
        print_json(report=found)
        return
    _Progress().tell("")  # an empty line again
    console = stdout_console()
    for part in report_view(found):
        console.print(part)
    if page is not None:
        say(f"gpupool: the page is {page}")


# --- record ---------------------------------------------------------------------------------------


@command.command("record")
@click.option("--for", "for_s", type=DURATION, default=14 * 86400.0, help="[default: 14d]")
@click.option(
    "--out", type=click.Path(dir_okay=False), help="The recording.  [default: gpu-use-HOST.db]"
)
@click.option("--names", is_flag=True, help="Record the names of users, and not their hashes.")
def record_(for_s: float, out: str | None, names: bool) -> None:
    """Record how the GPUs of this machine are used, every 10 s; no root, no port.

    It reads by NVML how busy GPUs are, and which programs have how much memory on them. A recording
    goes on where it was when it is started again; what happened meanwhile is unknown. Users are
    named by a hash, whose salt is in a separate file beside the recording: keep that secret.
    A GPU that is divided (MIG) is recorded as a whole, without how busy it was.
    """
    from gpupool.monitoring.analysis import portable_recorder
    from gpupool.monitoring.analysis.trace_form import TraceError

    given = ["--for", f"{for_s:f}", *(["--out", out] if out else []), *(["--names"] * names)]
    try:
        portable_recorder.main(given)
    except portable_recorder.NvmlMissingError as error:
        raise TraceError(
            "there is nothing to record",
            why=str(error),
            hint="run it on a machine with an NVIDIA GPU and its driver",
        ) from error
    except portable_recorder.FAILURES as error:
        hint = "name another file with --out"
        raise TraceError("the recording cannot be written", why=str(error), hint=hint) from error


@command.command("script")
def script_() -> None:
    r"""Print a program that records as "record" does, on machines without gpupool.

    It needs Python 3.8 or newer and the driver, nothing else:

    \b
      gpupool analyze script > record.py
      python3 record.py --for 14d --out gpu-use.db
    """
    from pathlib import Path

    from gpupool.monitoring.analysis import portable_recorder

    click.echo(Path(portable_recorder.__file__).read_text(encoding="utf-8"), nl=False)
