"""``gpupool history``: measurements of servers, as charts, CSV or JSON."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gpupool import __version__
from gpupool.cli.lib.options import check_span, json_option, pool_options, span_options
from gpupool.cli.lib.output import print_json, run_async
from gpupool.cli.lib.terminal_chart import Frame, chart
from gpupool.pool.errors import ExitCode, UnknownNameError, UsageError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.monitoring.history.history_report import Places, Subject
    from gpupool.remoting.client.history_answers import HistoryAnswer

WIDTH_MIN, WIDTH_MAX = 40, 160
HEIGHT = 8
SPAN_S = 6 * 3600
"""Default range of ``--since``."""


@click.command()
@click.argument("subject", metavar="SERVER|GPU|LEASE|USER|pool")
@click.option(
    "--metric",
    help="Metric: busy, memory, power, temperature, granted, bytes, waits, rtt and others; "
    "one that does not exist lists them (default: busy, of the pool granted).",
)
@span_options("6h")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with the unit in its header.")
@click.option("--ascii", "in_ascii", is_flag=True, help="Draw with ASCII alone.")
@click.option(
    "--file",
    "database",
    type=click.Path(dir_okay=False, exists=True),
    help="Read this history.db of one server, or a copy; no pool is asked. Without --since and "
    "--until, its last 6 hours are shown.",
)
@click.option("--strict", is_flag=True, help="Exit with 3 when a server does not answer.")
@pool_options
@json_option
def command(
    credentials: str | None,
    subject: str,
    metric: str | None,
    since: float,
    until: float | None,
    as_csv: bool,
    in_ascii: bool,
    database: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    r"""Chart metrics that servers measured of GPUs, servers, leases, users and clients.

    A GPU is SERVER:NUMBER or the beginning of its id; "lease:", "user:", "client:", "gpu:" or
    "server:" before a name tells the kind; a client is USER@HOST. Each server keeps its figures;
    the command names servers that do not answer. Users see their leases, operators all.

    \b
    Examples:
      gpupool history gpu-1                           how busy its GPUs were
      gpupool history gpu-1:0 --metric power --since 30d
      gpupool history lease:7f3a --metric rtt --csv
      gpupool history --file history.db gpu-1         of a server that has left
    """
    from gpupool.monitoring.history.history_report import as_csv as csv_of
    from gpupool.monitoring.history.history_report import as_plain, lines_of, metrics_of

    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other", hint="give one of them")
    until_s = None if until is None else round(until)
    if database is not None:
        source = click.get_current_context().get_parameter_source("since")
        since_s = None if source is ParameterSource.DEFAULT else round(since)
        view, found, query, answer = _read(Path(database), subject, metric, since_s, until_s)
    else:
        within = _range(round(since), until_s if until_s is not None else round(time.time()))
        view, found, query, answer = run_async(lambda: _ask(credentials, subject, metric, within))
    name = query.metric
    names: dict[ServerId, str] = {each.id: each.name for each in view.servers}
    figure = metrics_of(found.of)[name]
    lines = lines_of(found, figure, answer.pages, names)
    silent = {names.get(each, each): why for each, why in answer.silent.items()}
    if as_json:
        series = as_plain(lines, name, figure)
        problems = {names.get(s, s): page.problem for s, page in answer.pages.items()}
        print_json(version=__version__, **series, silent=silent, problems=problems)
    elif as_csv:
        click.echo(csv_of(lines, name, figure).encode(), nl=False)
    else:
        began = min((t for line in lines for t, _, _ in line.points), default=0)
        since_s = max(query.since // 1000, began)  # a young pool's chart begins when it did
        plain = in_ascii or not _draws_braille()
        frame = Frame(since_s, query.until // 1000, _width(), HEIGHT, plain)
        if not lines:
            held = {lease.name for lease in view.leases} if isinstance(view, PoolView) else None
            _say_none(subject, found, name, held)
        for line in lines:
            points = [(t, value) for t, value, _ in line.points]
            for text in chart(f"{line.title}: {name}", figure.unit, points, frame):
                click.echo(text)
    for server, why in silent.items():
        say(f"gpupool: server {visible(server)} did not answer ({visible(why)})")
    for server, page in answer.pages.items():
        if page.problem:
            say(f"gpupool: server {visible(names.get(server, server))}: {visible(page.problem)}")
    if strict and silent:
        raise SystemExit(ExitCode.UNHEALTHY)


def _say_none(text: str, found: "Subject", metric: str, held: set[str] | None) -> None:
    """Say that there are no figures; a word without any may be no name at all."""
    if found.of == "user" and not text.startswith("user:"):
        what = f"{visible(text)} is no server, GPU or lease of the pool"
        why = "and no user of that name has figures in this time"
        raise UnknownNameError(what, why=why, hint='"gpupool gpus" lists servers and GPUs')
    if found.of == "lease" and held is not None and found.title.split()[-1] not in held:
        raise UnknownNameError(
            f"the pool has no {found.title}",
            why=f"and no figures of {metric} of an ended one in this time",
            hint='"gpupool leases" shows those that it has; --since 30d looks further back',
        )
    click.echo(f"{visible(found.title)}: no figures of {metric} in this time")


def _read(
    path: Path, text: str, metric: str | None, since_s: int | None, until_s: int | None
) -> tuple["Places", "Subject", HistoryQuery, "HistoryAnswer"]:
    """Return metrics from a history file; a range without an end ends with the file."""
    from gpupool.monitoring.history.history_file import look_into, read_whole
    from gpupool.monitoring.history.history_report import find_subject
    from gpupool.remoting.client.history_answers import HistoryAnswer

    kept = look_into(path)
    until_s = until_s if until_s is not None else kept.until_s or round(time.time())
    within = _range(since_s if since_s is not None else until_s - SPAN_S, until_s)
    (server,) = kept.servers
    numbers = ", ".join(str(gpu.index) for gpu in server.gpus) or "none"
    hint = f"it is of server {visible(server.name)}, whose GPUs are {numbers}"
    found = find_subject(text, kept)
    if found is None:
        raise UsageError(f"{path} has no {text}", hint=hint)
    query = _query(found, metric, within)
    return kept, found, query, HistoryAnswer({server.id: read_whole(path, query)})


def _range(since_s: int, until_s: int) -> tuple[int, int]:
    check_span(since_s, until_s)
    return since_s, until_s


def _query(found: "Subject", metric: str | None, within: tuple[int, int]) -> HistoryQuery:
    from gpupool.monitoring.history.history_report import metrics_of

    since_s, until_s = within
    name = metric or ("granted" if found.of == "pool" else "busy")
    known = metrics_of(found.of)
    if name not in known:
        what = f"a {found.of} has no {name}"
        raise UsageError(what, hint=f"it has {', '.join(sorted(known))}")
    return HistoryQuery(
        found.of,
        name,
        found.name,
        since=Milliseconds(1000 * since_s),
        until=Milliseconds(1000 * until_s),
    )


async def _ask(
    credentials: str | None, text: str, metric: str | None, within: tuple[int, int]
) -> tuple[PoolView, "Subject", HistoryQuery, "HistoryAnswer"]:
    from gpupool.monitoring.history.history_report import find_subject

    async with connected(credentials) as pool:
        view = await pool.view()
        found = find_subject(text, view)
        if found is None:
            hint = '"gpupool gpus" lists servers and GPUs'
            raise UnknownNameError(f"the pool has no {text}", hint=hint)
        query = _query(found, metric, within)
        return view, found, query, await pool.history(query, found.servers)


def _width() -> int:
    return max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size((80, 24)).columns))


def _draws_braille() -> bool:
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
    return encoding.startswith("utf") and os.environ.get("TERM") not in ("linux", "dumb")
