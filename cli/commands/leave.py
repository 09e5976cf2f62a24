"""``gpupool leave``: remove a server from the pool for good."""

import sys

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.completion_names import SERVER_NAME
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say
from gpupool.pool.errors import UsageError


@click.command()
@click.argument("server", type=SERVER_NAME, required=False)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False),
    help="Remove the server that lives in this state directory.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pool_options
def command(credentials: str | None, server: str | None, state_dir: str | None, yes: bool) -> None:
    """Remove SERVER, or this machine's server, from the pool for good.

    Its leases end, its vote is taken from it, and its certificate is refused from then on. To
    come back it needs a new token and an empty state directory.
    """
    wanted = server or _server_here(state_dir)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"removing {wanted} is for good", hint="--yes does it without asking")
        click.confirm(f"Remove {wanted} from the pool for good?", abort=True, err=True)

    async def remove() -> None:
        async with connected(credentials) as pool:
            await pool.remove_server(wanted)

    run_async(remove)
    say(f"gpupool: {wanted} is no longer in the pool; stop its gpupool join if it still runs")


def _server_here(given: str | None) -> str:
    """Return the id of the server that lives in a state directory of this machine."""
    import json
    from pathlib import Path

    from gpupool.cli.lib.paths import state_dir

    folder = Path(given) if given else state_dir()
    try:
        body: object = json.loads((folder / "identity.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            "which server?", why=f"none lives in {folder}", hint="gpupool leave NAME"
        ) from error
    server = body.get("server") if isinstance(body, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(server, str):
        raise UsageError("which server?", why=f"{folder} makes no sense", hint="gpupool leave NAME")
    return server
