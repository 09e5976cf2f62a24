"""``gpupool up`` and ``gpupool down``: a pool in the background, to play with."""

import click

import gpupool
from gpupool.cli.lib.options import EMULATION, verbose_option
from gpupool.pool.errors import UsageError
from gpupool.pool.values import Emulation
from gpupool.remoting.local.files import playground_dir, program
from gpupool.remoting.local.terminal import say

EMULATE = "2:8G"
SERVERS_MAX = 7


@click.command()
@click.option(
    "--servers",
    type=click.IntRange(1, SERVERS_MAX),
    default=3,
    show_default=True,
    help="Number of servers, each a separate process.",
)
@click.option(
    "--emulate",
    type=EMULATION,
    default=EMULATE,
    show_default=True,
    help="Emulated GPUs of each server, N of MEM each.",
)
@click.option("--real", is_flag=True, help="One server with this machine's GPUs instead.")
@verbose_option
def up(servers: int, emulate: Emulation, real: bool) -> None:
    """Start a pool on this machine, in the background, to play with.

    Its servers listen on loopback only, and end with "gpupool down" or when the machine does;
    "gpupool up" then starts them again. You are logged in to it, unless you have a login already.
    """
    from gpupool.cli.lib.background_pool import BackgroundPool
    from gpupool.remoting.daemon.join_options import need_numpy

    context = click.get_current_context()
    given = [
        name
        for name in ("servers", "emulate")
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    ]
    if real and given:
        raise UsageError(f"--real and --{given[0]} exclude each other", hint="give one of them")
    if not real:
        need_numpy()
    pool = BackgroundPool(playground_dir())
    if not pool.living():
        old = pool.record is not None
        say(f"gpupool: {'starting the servers of last time' if old else 'creating a pool'}")
    arguments = [] if real else ["--emulate", f"{emulate.count}:{emulate.memory >> 20}M"]
    pool.start(
        1 if real else servers, arguments, lambda login: gpupool.Pool(credentials=login).status()
    )
    assert pool.record is not None
    word = program()
    click.echo(f"A pool of {len(pool.record.names)} servers runs. Try:")
    if not pool.record.login:
        click.echo(f"  export GPUPOOL_CREDENTIALS={pool.credentials}")
    click.echo(f"  {word} status")
    click.echo(f"  {word} top")
    click.echo(f"  {word} run -p 0.5 -- nvidia-smi")
    click.echo(f"The servers' logs are in {pool.folder}. To end it:")
    click.echo(f"  {word} down")


@click.command()
@click.option(
    "--keep", is_flag=True, help='Keep the state of the servers for the next "gpupool up".'
)
@verbose_option
def down(keep: bool) -> None:
    """End the pool that "gpupool up" started, and remove it."""
    from gpupool.cli.lib.background_pool import BackgroundPool

    pool = BackgroundPool(playground_dir())
    if pool.record is None:
        say("gpupool: there is no pool that up started")
        return
    ended = pool.stop(remove=not keep)
    servers = "1 server" if ended == 1 else f"{ended} servers"
    say(f"gpupool: ended {servers}{'' if keep else f'; {pool.folder} is removed'}")
