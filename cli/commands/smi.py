"""``gpupool smi``: what nvidia-smi would show; in a lease its partitions, elsewhere the pool.

Programs of a lease find it as ``nvidia-smi`` (``tools/nvidia-smi``), so it takes those options of
nvidia-smi's that programs use.
"""

import json
import os
import socket
from typing import cast

import click

from gpupool.cli.lib.options import json_option, pool_options
from gpupool.cli.lib.output import print_json
from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.pool.values import size_text

ANSWER_S = 5.0
LINE_LENGTH_MAX = 64 * 1024
WIDTHS = (4, 24, 14, 17, 6, 6, 7)
TITLES = ("GPU", "Name", "Server", "Memory", "Util", "Temp", "Power")


@click.command()
@click.option("-L", "--list-gpus", "names", is_flag=True, help="One line for each, with its UUID.")
@click.option("-i", "--id", "wanted", metavar="LIST", help="Only these: indices, UUIDs, addresses.")
@click.option(
    "--query-gpu", "asked", metavar="FIELDS", help="Print fields, such as name,memory.used."
)
@click.option(
    "--format",
    "form",
    default="csv",
    metavar="FORMAT",
    help="Of a query: csv[,noheader][,nounits].  [default: csv]",
)
@pool_options
@json_option
def command(
    names: bool,
    wanted: str | None,
    asked: str | None,
    form: str,
    credentials: str | None,
    as_json: bool,
) -> None:
    """Show GPUs as nvidia-smi does: inside "gpupool run" its partitions, elsewhere the pool.

    Programs that "gpupool run" starts find it as nvidia-smi.
    """
    from gpupool.remoting.program.smi_query import chosen, listed, query

    agent = os.environ.get("GPUPOOL_AGENT", "")
    fields = ask_agent(agent) if agent else ask_pool(credentials)
    devices = cast("list[dict[str, object]]", fields["devices"])
    if wanted is not None:
        fields["devices"] = devices = list(chosen(devices, wanted))
    if names or asked is not None:
        driver = str(fields["driver"])
        lines = listed(devices) if names else query(devices, driver, asked or "", form)
        click.echo("\n".join(lines))
        return
    if as_json:
        print_json(**fields)
        return
    for line in smi_lines(fields, os.environ.get("GPUPOOL_LEASE", "") if agent else ""):
        click.echo(line)


def ask_agent(path: str) -> dict[str, object]:
    """Return what ``gpupool run`` says of the lease in which this process runs.

    Raises:
        GpupoolError: when it does not answer, or cannot.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(path)
            sock.sendall(b'{"op":"nvml"}\n')
            line = sock.makefile("rb").readline(LINE_LENGTH_MAX)
        fields = cast("dict[str, object]", json.loads(line))
    except (OSError, ValueError) as error:
        raise UnreachableError("gpupool run does not answer", why=str(error)) from error
    if not fields.pop("ok", False):
        raise GpupoolError(str(fields.get("what")), why=str(fields.get("why", "")))
    return fields


def ask_pool(credentials: str | None) -> dict[str, object]:
    """Return every GPU of the pool."""
    from gpupool.cli.lib.listing import fetch_snapshot
    from gpupool.remoting.program.lease_devices import pool_devices

    snapshot = fetch_snapshot(credentials)
    return pool_devices(snapshot.view, snapshot.telemetry.values()).fields()


def smi_lines(fields: dict[str, object], lease: str) -> list[str]:
    """Return a table in nvidia-smi's shape."""
    rule = "+" + "+".join("-" * (width + 2) for width in WIDTHS) + "+"
    versions = [f"Driver Version: {fields['driver']}"] if fields["driver"] else []
    versions += [f"CUDA Version: {fields['cuda']}"] if fields["cuda"] else []
    head = "   ".join(["gpupool smi", f"lease {lease}" if lease else "whole pool", *versions])
    lines = ["+" + "-" * (len(rule) - 2) + "+", f"| {head:{len(rule) - 4}} |", rule]
    lines += [_row(TITLES), rule.replace("-", "=")]
    devices = cast("list[dict[str, object]]", fields["devices"])
    lines += [_row(_cells(device)) for device in devices]
    return [*lines, rule]


def _row(cells: tuple[str, ...]) -> str:
    texts = [f" {c[:w]:{w}} " for c, w in zip(cells, WIDTHS, strict=True)]
    return "|" + "|".join(texts) + "|"


def _cells(device: dict[str, object]) -> tuple[str, ...]:
    def reading(key: str, scale: float, unit: str) -> str:
        value = device[key]
        return f"{value * scale:.0f}{unit}" if isinstance(value, int | float) else "-"

    used, memory = cast("int", device["used"]), cast("int", device["memory"])
    return (
        str(device["index"]),
        str(device["name"]),
        str(device["server"]),
        f"{size_text(used)} / {size_text(memory)}",
        reading("utilization", 100, "%"),
        reading("temperature_c", 1, "C"),
        reading("power_w", 1, "W"),
    )
