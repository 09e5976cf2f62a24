"""``gpupool leases``: who has what, and who waits for what."""

import click

from gpupool.cli.lib.columns import LEASE_COLUMNS, Look, lease_rows, waiting_rows
from gpupool.cli.lib.listing import look_once, print_table, view_options
from gpupool.cli.lib.output import print_json


@click.command()
@click.option("--waiting", "only_waiting", is_flag=True, help="Only requests that wait.")
@view_options
def command(
    credentials: str | None, wide: bool, in_ascii: bool, as_json: bool, only_waiting: bool
) -> None:
    """List leases, then requests that wait, in the order in which they will be served."""
    seen = look_once(credentials)
    if as_json:
        print_json(leases=[] if only_waiting else seen.view.leases, waiting=seen.view.waiting)
        return
    rows = [*([] if only_waiting else lease_rows(seen)), *waiting_rows(seen)]
    print_table(LEASE_COLUMNS, rows, wide=wide, look=Look(ascii=in_ascii))
