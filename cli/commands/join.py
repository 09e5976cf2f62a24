"""``gpupool join``: offer this machine's GPUs, in a new pool or in one that exists."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpupool.cli.commands.login import STDIN, read_token
from gpupool.cli.lib import paths
from gpupool.cli.lib.common_options import verbose_option
from gpupool.cli.lib.output import invocation
from gpupool.cli.lib.values import (
    ADDRESS,
    DURATION,
    EMULATION,
    LABEL,
    LISTEN,
    NAME_TYPE,
    Emulation,
)
from gpupool.pool.errors import UsageError
from gpupool.pool.model.state import DataEncryption
from gpupool.remoting.protocol.addresses import PORT_DEFAULT, Address

if TYPE_CHECKING:
    from gpupool.cli.server.join_options import JoinOptions


@click.command()
@click.argument("address", metavar="[HOST:PORT]", type=ADDRESS, required=False)
@click.option(
    "--token",
    help='Made by "gpupool token create --server", or "-" for stdin; without it, a new pool.',
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, exists=True),
    help="Read the token from this file, so that it shows in no list of processes.",
)
@click.option(
    "--listen",
    type=LISTEN,
    help="Address and port of everything; port 0 takes a free one "
    f"(default: as last time, at first :{PORT_DEFAULT}).",
)
@click.option(
    "--advertise",
    type=ADDRESS,
    help="Address that others are told, when it is not the one listened on.",
)
@click.option("--state-dir", type=click.Path(file_okay=False), help="Where this server lives.")
@click.option("--name", type=NAME_TYPE, help="Name of this server (default: the host's).")
@click.option("--pool-name", type=NAME_TYPE, help="Name of a new pool.")
@click.option("--witness", is_flag=True, help="Vote, but offer no GPU.")
@click.option(
    "--emulate",
    type=EMULATION,
    help="Offer N emulated GPUs of MEM each, as 4:16G, and no real one. NumPy computes for them.",
)
@click.option(
    "--gpus",
    metavar="LIST",
    help="Offer just these GPUs: nvidia-smi's numbers, as 0,2, or beginnings of UUIDs.",
)
@click.option(
    "--data-encryption",
    type=click.Choice([each.value for each in DataEncryption]),
    default=DataEncryption.TLS.value,
    show_default=True,
    help="Of a new pool: whether the data of programs is encrypted. Control always is.",
)
@click.option(
    "--ca",
    type=click.Path(file_okay=False, exists=True),
    help="Of a new pool: a folder with ca.pem and ca.key of a former pool, whose tokens then hold "
    'again after "gpupool restore".',
)
@click.option(
    "--operator-token",
    is_flag=True,
    help="Make another operator's token once this server is up, and print it: for a pool whose "
    "operators have lost theirs.",
)
@click.option(
    "--client-timeout",
    type=DURATION,
    default="10s",
    show_default=True,
    help="A client whose network is gone loses its leases after this.",
)
@click.option(
    "--drain-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long programs may go on when this server is told to stop.",
)
@click.option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    help='NAME=VALUE, for filters and people; repeatable. "gpupool label" changes them later.',
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@verbose_option
def command(
    address: Address | None,
    token: str | None,
    token_file: str | None,
    listen: Address | None,
    advertise: Address | None,
    state_dir: str | None,
    name: str | None,
    pool_name: str | None,
    witness: bool,
    emulate: Emulation | None,
    gpus: str | None,
    data_encryption: str,
    ca: str | None,
    operator_token: bool,
    client_timeout: float,
    drain_timeout: float,
    labels: tuple[tuple[str, str], ...],
    log_format: str,
) -> None:
    r"""Offer this machine's GPUs: create a pool, join one, or resume.

    \b
      gpupool join                          create a pool; prints how to join it
      echo TOKEN | gpupool join --token -   join the pool that TOKEN is for
      gpupool join --token-file FILE        the same; --witness: vote without offering a GPU
      gpupool join                          after a restart: the same server again

    Runs until it is told to stop (SIGTERM or Ctrl-C): then it takes no new leases, gives running
    programs --drain-timeout, and ends. A second signal ends it at once.
    """
    token = given_token(token, token_file, address)
    if ca and token:
        raise UsageError("--ca is for a new pool", hint="leave out --ca or --token")
    if witness and emulate is not None:
        raise UsageError("a witness offers no GPU", hint="leave out --witness or --emulate")
    if gpus and (witness or emulate is not None):
        raise UsageError("--gpus chooses among real GPUs", hint="leave out --witness or --emulate")
    if not 1 <= client_timeout <= 3600:
        raise UsageError("--client-timeout must lie between 1s and 1h")

    from gpupool.cli.server.enter_pool import read_authority
    from gpupool.cli.server.join_options import JoinOptions
    from gpupool.cli.server.state_dir import may_be_new

    folder = Path(state_dir) if state_dir else paths.state_dir()
    options = JoinOptions(
        token=token or "",
        address=address,
        listen=listen,
        advertise=advertise,
        state_dir=folder,
        name=name or "",
        pool_name=pool_name or f"{paths.default_name()}-pool",
        witness=witness,
        emulate=emulate,
        gpus=tuple(word.strip() for word in (gpus or "").split(",") if word.strip()),
        data_encryption=data_encryption,
        ca=read_authority(Path(ca)) if ca and may_be_new(folder) else None,
        operator_token=operator_token,
        client_timeout_s=client_timeout,
        drain_timeout_s=drain_timeout,
        labels=labels,
    )
    _run(options, log_format)


def _run(options: "JoinOptions", log_format: str) -> None:
    from gpupool.cli.lib.connect import run_async
    from gpupool.cli.lib.logs import set_up
    from gpupool.cli.server.compose import serve
    from gpupool.cli.server.separate import separate

    log = set_up(log_format, verbose=invocation().verbose, log_file=invocation().log_file)
    separated = separate(options, log)
    try:
        run_async(partial(serve, separated, log))
    finally:
        separated.end()


def given_token(token: str | None, token_file: str | None, address: Address | None) -> str | None:
    """Return the token of either option; raises ``UsageError`` when they do not fit."""
    if token and token_file:
        raise UsageError("--token and --token-file exclude each other", hint="give one of them")
    if token_file:
        token = _read_token(Path(token_file))
    elif token == STDIN:
        token = read_token(token)
    if address is not None and not token:
        raise UsageError(
            "joining a pool needs a token",
            hint='"gpupool token create --server" makes one',
        )
    return token


def _read_token(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")[:8192].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read a token from {path}", why=str(error)) from error
    if not text:
        raise UsageError(f"there is no token in {path}")
    return text
