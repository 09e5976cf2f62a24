"""The commands that give one order each: drain, undrain, label, kill, suspend, resume, leave.

An order's class has its rights and the sentence about its outcome; here are its arguments alone.
"""

import sys
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import Parsed, pool_options
from gpupool.cli.lib.output import operate, run_async, stdout_console
from gpupool.pool.errors import LeaseLostError, NotNowError, UnknownNameError, UsageError
from gpupool.pool.model.ids import LeaseId, lease_name
from gpupool.pool.values import parse_label, parse_lease, size_text
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.remoting.protocol import messages as m

PATIENCE_S = 3.0
"""Seconds to wait for the queried server to apply another server's commit."""

POLL_S = 0.3
"""Between two looks at a lease that is being suspended or resumed."""

if TYPE_CHECKING:
    from gpupool.pool.view import PoolView, ServerView


@click.command()
@click.argument("server")
@click.option("--gpu", help="Drain this GPU alone, by number or id; see gpupool gpus.")
@click.option("--reason", required=True, help="Why; everybody who looks at the pool sees it.")
@click.option(
    "--move",
    "moves",
    is_flag=True,
    help="Move the leases there to other GPUs or servers, and say why others stay.",
)
@pool_options
def drain(credentials: str | None, server: str, gpu: str | None, reason: str, moves: bool) -> None:
    """Stop grants on SERVER, or on one of its GPUs; running leases continue.

    With --move, leases on the GPU go on with others of the same server, where these have room.
    Leases on a whole server go on with other servers, as far as "gpupool move" can move them.
    """
    from gpupool.cli.commands.moves import move_away
    from gpupool.remoting.protocol import messages as m

    if not reason.strip():
        raise UsageError("a drain needs a reason", hint='--reason "new fan"')
    order = m.DrainServer(server, reason) if gpu is None else m.DrainGpu(server, gpu, reason)
    if not moves:
        operate(credentials, order)
        return

    async def drain_and_move() -> None:
        async with connected(credentials) as pool:
            say(f"gpupool: {await pool.operate(order)}")
            await move_away(pool, server, gpu)

    run_async(drain_and_move)


@click.command()
@click.argument("server")
@click.option("--gpu", help="Undrain this GPU alone, by number or id; see gpupool gpus.")
@pool_options
def undrain(credentials: str | None, server: str, gpu: str | None) -> None:
    """Grant on a drained SERVER, or on a drained GPU of it, again.

    A GPU that was drained automatically stays undrained until the same sign comes anew.
    """
    from gpupool.remoting.protocol import messages as m

    if gpu is not None:
        operate(credentials, m.DrainGpu(server, gpu, None))
        return

    async def undrain_server() -> None:
        async with connected(credentials) as pool:
            say(f"gpupool: {await pool.operate(m.DrainServer(server, None))}")
            for line in still_drained(await pool.view(), server):
                say(line)

    run_async(undrain_server)


def still_drained(view: "PoolView", name: str) -> list[str]:
    """Return a line for each GPU of a server that is still drained individually."""
    found: list[str] = []
    for server in view.servers:
        for gpu in server.gpus if name in (server.name, server.id) else ():
            if gpu.drain:
                command = f"gpupool undrain {server.name} --gpu {gpu.index}"
                found.append(f"gpupool: GPU {gpu.index} stays drained ({gpu.drain}): {command}")
    return found


@click.command()
@click.argument("lease", type=Parsed("lease", parse_lease))
@click.option(
    "--reason", default="ended by gpupool kill", show_default=True, help="Its owner sees it."
)
@pool_options
def kill(credentials: str | None, lease: int, reason: str) -> None:
    """End LEASE now: its workers are killed, its memory is free again.

    Users end their own leases, operators any.
    """
    from gpupool.remoting.protocol import messages as m

    operate(credentials, m.EndLease(LeaseId(lease), reason))


@click.command()
@click.argument("lease", type=Parsed("lease", parse_lease))
@click.option("--reason", "--why", default="", help="Its owner sees it.")
@pool_options
def suspend(credentials: str | None, lease: int, reason: str) -> None:
    """Suspend LEASE and free its GPUs until it is resumed; its program waits.

    Users suspend their own leases, operators any. The server keeps the contents of the GPU memory
    in its own memory meanwhile. The command returns once the GPUs are free.
    """
    from gpupool.remoting.protocol import messages as m

    order = m.SuspendLease(LeaseId(lease), reason)
    run_async(lambda: _follow(credentials, order, LeaseId(lease), "suspended"))


@click.command()
@click.argument("lease", type=Parsed("lease", parse_lease))
@pool_options
def resume(credentials: str | None, lease: int) -> None:
    """Let a suspended LEASE go on, on the same GPUs.

    Users resume their own leases, operators any. Without room it goes on later by itself, in its
    turn, and the command says so.
    """
    from gpupool.remoting.protocol import messages as m

    order = m.ResumeLease(LeaseId(lease))
    run_async(lambda: _follow(credentials, order, LeaseId(lease), "held"))


async def _follow(given: str | None, order: "m.Order", lease: LeaseId, wanted: str) -> None:
    """Give an order, and return once the lease is as it should be, or will not be for long.

    Raises:
        NotNowError: when it could not be suspended.
        LeaseLostError: when it has ended meanwhile.
    """
    import trio

    async with connected(given) as pool:
        said = await pool.operate(order)
        say(f"gpupool: {said}")
        name, began, patience = lease_name(lease), False, trio.current_time() + PATIENCE_S
        is_news = said == order.outcome("")  # else it says that nothing had to be done
        while True:
            leases = (await pool.view()).leases
            found = next((each for each in leases if each.id == lease), None)
            if found is None or found.state == "ending":
                why = found.reason if found is not None else ""
                raise LeaseLostError(f"lease {name} has ended", why=why)
            if found.state == wanted:
                if not is_news and not began:
                    return
                if wanted == "suspended":
                    size = size_text(found.kept_bytes) if found.kept_bytes else ""
                    kept = f"; {size} of it are kept in its servers' memory" if size else ""
                    say(f"gpupool: lease {name} is suspended{kept}")
                else:
                    say(f"gpupool: lease {name} goes on")
                return
            began = began or found.state in ("suspending", "resuming")
            late = trio.current_time() > patience
            if wanted == "suspended" and found.state == "held" and (began or late):
                raise NotNowError(
                    f"lease {name} was not suspended, and runs on",
                    why=found.not_suspended or "somebody resumed it before it had let go",
                    hint=f'"gpupool suspend {name}" tries again',
                )
            if wanted == "held" and found.state == "suspended" and found.waits_to_resume:
                return
            await trio.sleep(POLL_S)


@click.command()
@click.argument("server")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE|NAME-]...")
@pool_options
def label(credentials: str | None, server: str, changes: tuple[str, ...]) -> None:
    r"""Set labels of SERVER, take some away, or show them.

    \b
      gpupool label gpu-a rack=r3 owner=physics
      gpupool label gpu-a owner-
      gpupool run --filter 'server.labels.rack = r3' -- python train.py
    """
    from gpupool.remoting.protocol import messages as m

    if changes:
        operate(credentials, m.LabelServer(server, *_parse_changes(changes)))
        return

    found = run_async(lambda: _known(credentials, server)).labels
    if not found:
        say(f"gpupool: {server} has no labels")
    for name, value in sorted(found.items()):
        stdout_console().print(f"{name}={value}", markup=False, highlight=False, soft_wrap=True)


async def _known(credentials: str | None, server: str) -> "ServerView":
    """Return a server of the pool by its name or id.

    Raises:
        UsageError: when the pool has none such.
    """
    async with connected(credentials) as pool:
        servers = (await pool.view()).servers
    for each in servers:
        if server in (each.name, each.id):
            return each
    names = ", ".join(sorted(each.name for each in servers))
    raise UnknownNameError(f"the pool has no server named {server}", hint=f"it has {names}"[:300])


def _parse_changes(changes: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    labels: dict[str, str] = {}
    without: list[str] = []
    for change in changes:
        if "=" not in change and change.endswith("-") and len(change) > 1:
            without.append(change[:-1])
            continue
        try:
            name, value = parse_label(change)
        except ValueError as error:
            hint = "write NAME=VALUE to set a label, NAME- to take it away"
            raise UsageError(str(error), hint=hint) from error
        labels[name] = value
    if both := labels.keys() & set(without):
        raise UsageError(f"{min(both)} is both set and taken away")
    return labels, tuple(dict.fromkeys(without))


@click.command()
@click.argument("server", required=False)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False),
    help="Remove the server that lives in this state directory.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pool_options
def leave(credentials: str | None, server: str | None, state_dir: str | None, yes: bool) -> None:
    """Remove SERVER, or this machine's server, from the pool for good.

    Its leases end, its vote is taken from it, and its certificate is refused from then on. To
    come back it needs a new token and an empty state directory.
    """
    from gpupool.remoting.protocol import messages as m

    wanted = server or _server_here(state_dir)
    if not yes:
        if server:
            run_async(lambda: _known(credentials, server))
        if not sys.stdin.isatty():
            raise UsageError(f"removing {wanted} is for good", hint="--yes does it without asking")
        click.confirm(f"Remove {wanted} from the pool for good?", abort=True, err=True)
    operate(credentials, m.RemoveServer(wanted))


def _server_here(given: str | None) -> str:
    """Return the id of the server that lives in a state directory of this machine."""
    import json
    from pathlib import Path

    from gpupool.remoting.local.files import state_dir

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
