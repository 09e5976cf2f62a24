"""``gpupool join``: offer this machine's GPUs, in a new pool or in one that exists."""

import ctypes
import os
import re
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpupool.cli.commands.login import STDIN, argument_warning, read_token
from gpupool.cli.lib.options import (
    ADDRESS,
    DURATION,
    EMULATION,
    HISTORY_OPTIONS,
    LABEL,
    LISTEN,
    NAME_TYPE,
    SIZE_TYPE,
    history_options,
    verbose_option,
)
from gpupool.cli.lib.output import invocation
from gpupool.pool.automatic_drains import SIGN_NAMES
from gpupool.pool.errors import UsageError
from gpupool.pool.model.policy import DataEncryption
from gpupool.pool.values import Emulation
from gpupool.remoting.local import files as paths
from gpupool.remoting.local.terminal import say
from gpupool.remoting.protocol.addresses import PORT_DEFAULT, Address

if TYPE_CHECKING:
    from gpupool.remoting.daemon.join_options import JoinOptions, WebOptions


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
    help="Address that others use, when it is not the one listened on.",
)
@click.option("--state-dir", type=click.Path(file_okay=False), help="Where this server lives.")
@click.option("--name", type=NAME_TYPE, help="Name of this server (default: the host's).")
@click.option("--pool-name", type=NAME_TYPE, help="Name of a new pool.")
@click.option("--witness", is_flag=True, help="Vote, but offer no GPU.")
@click.option(
    "--emulate",
    type=EMULATION,
    help="Offer N GPUs of MEM each that NumPy emulates, as 4:16G, and no real one.",
)
@click.option(
    "--gpus",
    metavar="LIST",
    help="Offer just these GPUs: nvidia-smi's numbers, as 0,2, or beginnings of UUIDs.",
)
@click.option(
    "--gpm",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Read SM, tensor and memory activity of GPUs since Hopper every 10 s; auto: unless DCGM "
    "runs here when the server starts.",
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
    help="Of a new pool: a folder with ca.pem, ca.key and signer.key of a former pool, whose "
    'tokens then hold again after "gpupool restore".',
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
    help="How long this server keeps the leases of a client that it does not hear. A client ends "
    "its program after 4 s in which it hears nothing of the server.",
)
@click.option(
    "--drain-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long programs may go on when this server stops.",
)
@click.option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    help='NAME=VALUE, for filters and people; repeatable. "gpupool label" changes them later.',
)
@history_options
@click.option(
    "--web/--no-web",
    default=True,
    show_default=True,
    help="Answer HTTPS on the same port: the web page, and metrics for Prometheus.",
)
@click.option("--web-readonly", is_flag=True, help="A web page that changes nothing.")
@click.option(
    "--web-cert",
    type=click.Path(dir_okay=False, exists=True),
    help="Certificate for HTTPS of your own, in the place of one of the pool's CA; PEM.",
)
@click.option("--web-key", type=click.Path(dir_okay=False, exists=True), help="Its key.")
@click.option(
    "--metrics-open",
    metavar="CIDR",
    multiple=True,
    help="Clients from there read the metrics without a token; repeatable.",
)
@click.option(
    "--metrics-users",
    type=click.IntRange(0, 100),
    default=0,
    metavar="N",
    help="Give the N users with the most GPU time separate rows in the metrics.",
)
@click.option(
    "--sd-labels",
    metavar="NAMES",
    default="",
    help="Labels that Prometheus gets with the servers' addresses, as rack,zone.",
)
@click.option(
    "--drain-gpu-for",
    "drain_for",
    type=click.Choice(SIGN_NAMES),
    multiple=True,
    help="Drain a GPU that shows this sign of failing; repeatable. See docs/health.md.",
)
@click.option(
    "--suspend-memory",
    type=SIZE_TYPE,
    help="Host memory for the GPU memory of suspended programs (default: half of it).",
)
@click.option(
    "--suspend-spill",
    metavar="DIR",
    help="Folder for the overflow of --suspend-memory; encrypted, and removed at the end.",
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
    gpm: str,
    data_encryption: str,
    ca: str | None,
    operator_token: bool,
    client_timeout: float,
    drain_timeout: float,
    labels: tuple[tuple[str, str], ...],
    drain_for: tuple[str, ...],
    log_format: str,
    **more: Any,
) -> None:
    r"""Share this machine's GPUs: create or join a pool, or restart this server.

    \b
      gpupool join                          create a pool; prints how to join it
      echo TOKEN | gpupool join --token -   join the pool that TOKEN is for
      gpupool join --token-file FILE        the same; --witness: vote without offering a GPU
      gpupool join                          after a restart: the same server again
      gpupool join HOST:PORT                the same, where all servers have moved

    Runs until SIGTERM or Ctrl-C: then it takes no new leases, gives running
    programs --drain-timeout, and ends. A second signal ends it at once.
    """
    warning = token_warning(token, at_once=log_format == "text")
    token = given_token(token, token_file)
    check_gpus(gpus, witness=witness, emulates=emulate is not None)
    from gpupool.remoting.daemon.join_options import JoinOptions, history_settings
    from gpupool.remoting.daemon.state_dir import may_be_new

    folder = _folder(state_dir, address, token, ca)
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
        gpm=gpm,
        gpus=tuple(word.strip() for word in (gpus or "").split(",") if word.strip()),
        data_encryption=data_encryption,
        ca=Path(ca) if ca and may_be_new(folder) else None,
        operator_token=operator_token,
        client_timeout_s=_checked_timeout(client_timeout),
        drain_timeout_s=drain_timeout,
        labels=labels,
        suspend_memory=-1 if (size := more.pop("suspend_memory")) is None else size,
        suspend_spill=_spill_folder(more.pop("suspend_spill")),
        history=history_settings(*(more.pop(each) for each in HISTORY_OPTIONS)),
        web=_web_options(**more),
        drain_for=drain_for,
    )
    _run(options, log_format, warning)


def _spill_folder(folder: str | None) -> Path | None:
    if folder and os.geteuid():
        raise UsageError(
            "--suspend-spill needs a server that root starts",
            why="no other may read its workers' memory",
            hint="start it as root, or by the units for systemd",
        )
    return Path(folder).absolute() if folder else None


def _folder(
    state_dir: str | None, address: Address | None, token: str | None, ca: str | None
) -> Path:
    """Return the state directory; raises ``UsageError`` for options that do not fit it."""
    from gpupool.remoting.daemon.state_dir import may_be_new

    folder = Path(state_dir) if state_dir else paths.state_dir()
    if ca and token:
        raise UsageError("--ca is for a new pool", hint="leave out --ca or --token")
    if address is not None and not token and may_be_new(folder):
        raise UsageError(
            "joining a pool needs a token",
            why=f"no server lives in {folder} yet",
            hint='"gpupool token create --server" makes one',
        )
    return folder


def _checked_timeout(client_timeout: float) -> float:
    if not 1 <= client_timeout <= 3600:
        raise UsageError("--client-timeout must lie between 1s and 1h")
    return client_timeout


def check_gpus(gpus: str | None, *, witness: bool, emulates: bool) -> None:
    """Raise ``UsageError`` when the options about GPUs do not fit each other."""
    if witness and emulates:
        raise UsageError("a witness offers no GPU", hint="leave out --witness or --emulate")
    if gpus and (witness or emulates):
        raise UsageError("--gpus chooses among real GPUs", hint="leave out --witness or --emulate")
    if emulates:
        from gpupool.remoting.daemon.join_options import need_numpy

        need_numpy()


def _web_options(
    *,
    web: bool,
    web_cert: str | None,
    web_key: str | None,
    web_readonly: bool,
    metrics_open: tuple[str, ...],
    metrics_users: int,
    sd_labels: str,
) -> "WebOptions | None":
    """Return the options of HTTPS; None for none."""
    from gpupool.remoting.daemon.join_options import WebOptions
    from gpupool.remoting.transport.authority.web_certificate import SiteFiles

    if bool(web_cert) is not bool(web_key):
        raise UsageError("--web-cert and --web-key go together")
    for network in metrics_open:
        try:
            ip_network(network)
        except ValueError as error:
            raise UsageError(f"--metrics-open {network} is no network", why=str(error)) from None
    words = [word.strip() for word in sd_labels.split(",")]
    names = tuple(word for word in words if word)
    for name in names:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name in ("server", "pool"):
            raise UsageError(f"Prometheus can have no label {name}", hint="--sd-labels rack,zone")
    if not web:
        return None
    site = SiteFiles(Path(web_cert), Path(web_key)) if web_cert and web_key else None
    if site is not None:
        site.read()
    return WebOptions(site, metrics_open, metrics_users, names, web_readonly)


def _run(options: "JoinOptions", log_format: str, warning: str) -> None:
    from gpupool.cli.lib.output import run_async
    from gpupool.remoting.daemon.compose import serve
    from gpupool.remoting.daemon.separate import separate
    from gpupool.remoting.local.logs import set_up
    from gpupool.remoting.privileges.first_process import leave_first_place

    leave_first_place()
    log = set_up(log_format, verbose=invocation().verbose, log_file=invocation().log_file)
    if warning:
        log.warning("%s", warning)
    separated = separate(options, log)
    try:
        run_async(partial(serve, separated, log))
    finally:
        separated.end()


def token_warning(token: str | None, *, at_once: bool) -> str:
    """Say it of a token that was an argument, or return it for the log; else an empty text."""
    if not token or token == STDIN:
        return ""
    warning = argument_warning("token", "--token-file FILE, or --token - for stdin")
    if warning and at_once:
        say(f"gpupool: {warning}")
    return "" if at_once else warning


def given_token(token: str | None, token_file: str | None) -> str | None:
    """Return the token of either option; raises ``UsageError`` when they do not fit."""
    forget_variable(f"{click.get_current_context().auto_envvar_prefix}_TOKEN")
    if token and token_file:
        raise UsageError("--token and --token-file exclude each other", hint="give one of them")
    if token_file:
        token = _read_token(Path(token_file))
    elif token == STDIN:
        token = read_token(token)
    return token


def forget_variable(name: str) -> None:
    """Remove a variable from this process's environment, so that no child gets it.

    ``/proc/PID/environ`` shows the memory in which the environment came, for as long as the process
    lives. So the value is overwritten there.
    """
    value = os.environ.get(name)
    if value is None:
        return
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    if place := getenv(os.fsencode(name)):
        ctypes.memset(place, 0, len(os.fsencode(value)))
    del os.environ[name]


def _read_token(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")[:8192].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read a token from {path}", why=str(error)) from error
    if not text:
        raise UsageError(f"there is no token in {path}")
    return text
