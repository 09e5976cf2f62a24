"""``gpupool audit``: administrative acts, with users and times."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import Parsed, json_option, parse_since, pool_options
from gpupool.cli.lib.output import print_json, print_lines, run_async
from gpupool.pool.errors import UsageError
from gpupool.pool.model.state import Act
from gpupool.pool.view import readable, visible
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.remoting.protocol.messages import AuditNow

TITLES = ("WHEN (UTC)", "WHO", "WHAT", "SUBJECT", "DETAILS")


@click.command()
@click.option(
    "--since", type=Parsed("time", parse_since), help="From 2h or 7d ago, or 2026-11-21T14:30 UTC."
)
@click.option("--user", help="Only what this user did.")
@click.option(
    "--export",
    type=click.Path(dir_okay=False, allow_dash=True),
    help='Write it to this file instead, one JSON object a line; "-" is standard output.',
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, exists=True),
    help="Read the file that the server of this directory keeps; no pool is asked.",
)
@pool_options
@json_option
def command(
    credentials: str | None,
    since: float | None,
    user: str | None,
    export: str | None,
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Show every administrative act with its user and time.

    The pool keeps the latest 1024. Every server writes all that it has seen to audit.jsonl in its
    state directory; --state-dir reads that, on the server, even when the pool does not answer.
    """
    if export is not None and as_json:
        raise UsageError("--export and --json exclude each other", hint="give one of them")
    from gpupool.remoting.daemon.record_files import lines_of, read_acts
    from gpupool.remoting.local.files import write_private

    if state_dir is not None:
        acts, dropped = read_acts(Path(state_dir)), 0
    else:
        answer = run_async(lambda: _ask(credentials))
        acts, dropped = [*answer.former, *answer.acts], answer.count - len(answer.acts)
    chosen = [
        act
        for act in acts
        if (since is None or act.at >= since * 1000) and (user is None or act.by == user)
    ]
    if export == "-":
        click.echo("".join(lines_of(chosen)), nl=False)
    elif export is not None:
        write_private(Path(export), "".join(lines_of(chosen)).encode())
        say(f"gpupool: {len(chosen)} acts written to {export}")
    elif as_json:
        print_json(acts=chosen, dropped=dropped)
    else:
        _print(chosen)
    oldest = acts[0].at if acts else 0
    if dropped and (since is None or since * 1000 < oldest):
        say(
            f"gpupool: the pool has dropped {dropped} older acts; each server has them: "
            "gpupool audit --state-dir DIR"
        )


async def _ask(credentials: str | None) -> "AuditNow":
    async with connected(credentials) as pool:
        return await pool.audit()


def _print(acts: list[Act]) -> None:
    lines: list[tuple[str, ...]] = [TITLES]
    for act in acts:
        when = datetime.fromtimestamp(act.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        words = (when, act.by, act.kind, act.subject or "-", readable(act.text))
        lines.append(tuple(visible(word) for word in words))
    print_lines(lines)
