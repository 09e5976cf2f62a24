"""``gpupool rejoin``: make a server that must not go on as itself a new member of its pool."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import ADDRESS, NAME_TYPE, verbose_option
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.remoting.local import files as paths
from gpupool.remoting.local.terminal import say
from gpupool.remoting.protocol.addresses import PORT_DEFAULT, Address, parse_address

if TYPE_CHECKING:
    from gpupool.remoting.daemon.state_dir import StateDir


@click.command()
@click.option(
    "--token",
    help='Made by "gpupool token create --server" in the same pool; "-" reads it from stdin.',
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, exists=True),
    help="Read the token from this file, so that it shows in no list of processes.",
)
@click.option("--state-dir", type=click.Path(file_okay=False), help="Where this server lives.")
@click.option("--name", type=NAME_TYPE, help="Another name than before.")
@click.option("--advertise", type=ADDRESS, help="Address that others use.")
@click.option("--force", is_flag=True, help="Also when nothing is wrong with this server.")
@verbose_option
def command(
    token: str | None,
    token_file: str | None,
    state_dir: str | None,
    name: str | None,
    advertise: Address | None,
    force: bool,
) -> int:
    r"""Make this machine's server a new member of its pool, with a new id.

    A server whose state directory was restored from an old copy, cloned, damaged, or left behind by
    "gpupool recover" has forgotten its votes and acknowledgements, and the others refuse it. They
    refuse it, too, when the pool has removed it, or trusts its certificate no more. Its machine
    comes back as another server. Its leases have ended, and nothing else is lost: the pool keeps
    its table on the others. The server must not run meanwhile.

    \b
    1. As an operator: "gpupool token create --server", and "gpupool leave NAME", or choose
       another --name below. Then the new member removes the old one by itself.
    2. Here: "gpupool rejoin --token -", which reads the token from stdin; then "gpupool join"
       with the same options as before.
    """
    from gpupool.cli.commands.join import given_token, token_warning
    from gpupool.remoting.daemon.state_dir import open_stopped

    token_warning(token, at_once=True)
    text = given_token(token, token_file)
    if not text:
        raise UsageError(
            "coming back to a pool needs a token",
            hint='"gpupool token create --server" makes one',
        )
    folder = Path(state_dir) if state_dir else paths.state_dir()
    state = open_stopped(folder, "it joins anew while it is down")
    try:
        _rejoin(state, text, advertise, name, force=force)
    finally:
        state.close()
    return 0


def _rejoin(
    state: "StateDir", token: str, advertise: Address | None, name: str | None, *, force: bool
) -> None:
    from gpupool.cli.lib.output import run_async
    from gpupool.remoting.daemon.enter_pool import rejoin_pool

    old = state.identity
    assert old is not None
    name = name or old.name
    known = next((m.address for m in old.members if m.server == old.server), "")
    address = advertise or (
        parse_address(known) if known else Address(socket.gethostname(), PORT_DEFAULT)
    )
    try:
        run_async(lambda: rejoin_pool(state, token, address, name, force=force))
    except GpupoolError as error:
        if f"a server named {name}" in f"{error.what} {error.why}":
            hint = f'an operator removes it: "gpupool leave {name}"; or choose another --name'
            raise GpupoolError(error.what, why=error.why, hint=hint) from error
        raise
    assert state.identity is not None
    say(f"gpupool: {name} is admitted to pool {old.pool} as a new member, {state.identity.server}")
    say(f'  hint: start it with "gpupool join"; it removes its former self, {old.server}')
