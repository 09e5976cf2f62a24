"""``gpupool move``, and ``drain --move``: leases go on with other GPUs, or on another server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import Parsed, pool_options
from gpupool.cli.lib.output import run_async
from gpupool.pool.errors import (
    GpupoolError,
    LeaseLostError,
    NotNowError,
    UnknownNameError,
    UsageError,
)
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId, lease_name
from gpupool.pool.values import parse_lease
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.pool.view import GpuView, LeaseView, PoolView, ServerView
    from gpupool.remoting.client.pool_client import Pool

POLL_S = 0.3
"""Between two looks at a lease that is on its way."""

PATIENCE_S = 3.0
"""Seconds to wait for the queried server to apply another server's commit."""

REASONS_MAX = 3
"""Of so many servers it is said why a lease does not go there."""

RESUMED = "it was resumed before its program had let go, which ends a move"


@click.command()
@click.argument("lease", type=Parsed("lease", parse_lease))
@click.option(
    "--to",
    "targets",
    required=True,
    multiple=True,
    metavar="GPU|SERVER",
    help="A GPU, by number or id; one for each GPU that the lease has there, in their order. Or a "
    "server, its own or another one, whose GPUs the pool chooses from.",
)
@pool_options
def move(credentials: str | None, lease: int, targets: tuple[str, ...]) -> None:
    r"""Move LEASE to other GPUs, or to another server; its program waits for a moment.

    \b
      gpupool move 7f3a --to 2            # GPU 2 of its server
      gpupool move 7f3a --to gpu-a        # any other GPU of its server with room
      gpupool move 7f3a --to gpu-b        # another server, with GPUs of the same model

    Users move their own leases, operators any. The lease is suspended and resumed. When it cannot
    have the GPUs by then, or the NVIDIA driver refuses, it goes on where it was. The other GPUs are
    of the same model. A suspended lease goes on with them, or stays suspended. A program that uses
    NCCL or managed variables, or whose processes share GPU memory, is not moved.

    To another server goes a program of the array door with one process. All that it has there is
    sent to the other server, and until that is done it stays where it is. A program of the CUDA
    door stays on its server.
    """

    async def order() -> None:
        async with connected(credentials) as pool:
            view = await pool.view()
            found = next((each for each in view.leases if each.id == lease), None)
            if found is None:
                hint = '"gpupool leases" shows those that it has'
                raise UnknownNameError(
                    f"the pool has no lease {lease_name(LeaseId(lease))}", hint=hint
                )
            server, gpus = target_of(view, found, targets)
            if server in {part.server for part in found.partitions} or gpus:
                said = await _order(pool, found, server, (), gpus)
            else:
                said = await _send(pool, found, server)
            say(f"gpupool: {said}")
            say(f"gpupool: {await arrived(pool, found)}")

    run_async(order)


async def move_away(pool: "Pool", server: str, gpu: str | None) -> None:
    """Move leases off a drained server, or one of its GPUs; print each lease's outcome."""
    view = await pool.view()
    found = next((each for each in view.servers if server in (each.name, each.id)), None)
    if found is None:
        return  # it has left since it was drained
    known = found.gpus if gpu is None else tuple(_gpus_named(found, gpu))
    gpus = {each.id for each in known}
    moving: list[LeaseView] = []
    for lease in view.leases:
        mine = [p.gpu for p in lease.partitions if p.server == found.id and p.gpu in gpus]
        if not mine or lease.state == "ending":
            continue
        if lease.state == "suspended":
            who = f"lease {lease.name} of {lease.user}"
            say(f"gpupool: {who} stays suspended, and has nothing on a GPU")
            continue
        try:
            if gpu is None:
                said = await _send_somewhere(pool, view, lease)
            else:
                said = await _order(pool, lease, found.id, tuple(mine), ())
        except GpupoolError as error:
            say(f"gpupool: lease {lease.name} of {lease.user} stays: {error.why or error.what}")
        else:
            say(f"gpupool: {said}")
            moving.append(lease)
    for lease in moving:
        try:
            say(f"gpupool: {await arrived(pool, lease)}")
        except LeaseLostError as error:
            say(f"gpupool: {error}")
        except NotNowError as error:
            say(f"gpupool: {error}")
            say(f"  hint: {error.hint}")


async def _order(
    pool: "Pool",
    lease: "LeaseView",
    server: ServerId,
    gpus: tuple[GpuId, ...],
    to: tuple[GpuId, ...],
) -> str:
    from gpupool.remoting.protocol import messages as m

    return await pool.operate(m.MoveLease(lease.id, server, gpus, to))


async def _send(pool: "Pool", lease: "LeaseView", server: ServerId) -> str:
    from gpupool.remoting.protocol import messages as m

    return await pool.operate(m.RelocateLease(lease.id, server))


async def _send_somewhere(pool: "Pool", view: "PoolView", lease: "LeaseView") -> str:
    """Move a lease to another server, trying the one with most free memory first.

    Raises:
        GpupoolError: when none takes it; the reason has those of all.
    """
    here = {part.server for part in lease.partitions}
    others = [each for each in view.servers if each.id not in here and each.gpus]
    reasons: dict[str, GpupoolError] = {}
    for server in sorted(others, key=lambda each: -_free(each)):
        try:
            return await _send(pool, lease, server.id)
        except GpupoolError as error:
            reasons.setdefault(error.why or error.what, error)
    if len(reasons) == 1:
        raise next(iter(reasons.values()))
    why = "; ".join(list(reasons)[:REASONS_MAX]) or "no other server of the pool has GPUs"
    raise NotNowError("no other server takes it", why=why)


def _free(server: "ServerView") -> int:
    return sum(gpu.capacity - gpu.memory_granted for gpu in server.gpus)


async def arrived(pool: "Pool", before: "LeaseView") -> str:
    """Return where a lease goes on, once it does.

    Raises:
        NotNowError: when it is where it was.
        LeaseLostError: when it has ended meanwhile.
    """
    import trio

    name, began, patience = before.name, False, trio.current_time() + PATIENCE_S
    while True:
        view = await pool.view()
        found = next((each for each in view.leases if each.id == before.id), None)
        if found is None or found.state == "ending":
            raise LeaseLostError(f"lease {name} has ended", why=found.reason if found else "")
        where, is_there = _places_text(view, found), found.partitions != before.partitions
        if found.state == "suspended":
            if is_there:  # by somebody else, as soon as it had gone on
                return f"lease {name} was moved to {where}, and is suspended now {found.reason}"
            if before.state == "suspended":
                if not began and trio.current_time() <= patience and _is_as_before(found, before):
                    await trio.sleep(POLL_S)
                    continue
                raise NotNowError(
                    f"lease {name} was not moved, and stays suspended",
                    why=found.not_suspended,
                    hint='"gpupool gpus" lists GPUs with room; then move it again',
                )
            raise NotNowError(
                f"lease {name} was not moved, and is suspended now {found.reason}",
                hint=f'"gpupool resume {name}" first, then move it again',
            )
        if found.state == "held":
            if is_there:
                return f"lease {name} goes on with {where}"
            if began or trio.current_time() > patience:
                raise NotNowError(
                    f"lease {name} was not moved, and runs on with {where}",
                    why=_why_not(view, found, before),
                    hint='"gpupool gpus" lists GPUs with room; then move it again',
                )
        began = began or found.state in ("moving", "suspending", "resuming")
        await trio.sleep(POLL_S)


def _why_not(view: "PoolView", lease: "LeaseView", before: "LeaseView") -> str:
    """Return why a lease has not gone: the table forgets it with the part on the other server."""
    if said := lease.not_moved or lease.not_suspended:
        return said
    last = [each for each in view.events if each.subject == before.name and "mov" in each.kind]
    return last[-1].text if last and last[-1].kind == "not-moved" else RESUMED


def _is_as_before(lease: "LeaseView", before: "LeaseView") -> bool:
    return (lease.partitions, lease.not_suspended) == (before.partitions, before.not_suspended)


def _places_text(view: "PoolView", lease: "LeaseView") -> str:
    """Return a lease's GPUs, for people: ``GPU 2 of gpu-a``."""
    names = {server.id: server.name for server in view.servers}
    indices = {gpu.id: gpu.index for server in view.servers for gpu in server.gpus}
    places = (f"GPU {indices.get(p.gpu, p.gpu)} of {names[p.server]}" for p in lease.partitions)
    return ", ".join(places)


def target_of(
    view: "PoolView", lease: "LeaseView", targets: Sequence[str]
) -> tuple[ServerId, tuple[GpuId, ...]]:
    """Return the server and the GPUs that the words of ``--to`` name; no GPUs for a server.

    Raises:
        UsageError: when they name none, or GPUs of several servers.
    """
    here = dict.fromkeys(part.server for part in lease.partitions)
    mine = [each for each in view.servers if each.id in here]
    named = [each for each in view.servers if targets[0] in (each.name, each.id)]
    if len(targets) == 1 and named:
        if not _gpus_of(view, mine, targets[0]):
            return named[0].id, ()
        names = " and ".join(each.name for each in mine)
        raise UsageError(
            f"{targets[0][:64]} is a GPU of {names}, and a server of the pool",
            hint='name either by its id, as "gpupool status --json" has it',
        )
    places: list[tuple[ServerId, GpuId]] = []
    for text in targets:
        found = _gpus_of(view, mine, text)
        if not found:
            raise _unknown(view, mine, text)
        if len(found) > 1:
            names = " and ".join(each.name for each in mine)
            raise UsageError(
                f"which GPU {text}?",
                why=f"lease {lease.name} has GPUs of {names}",
                hint='name it by its id, which "gpupool gpus" shows',
            )
        places += found
    if len({server for server, _ in places}) > 1:
        raise UsageError("a lease is moved on one server at a time", hint="move it twice")
    return places[0][0], tuple(gpu for _, gpu in places)


def _unknown(view: "PoolView", mine: "Sequence[ServerView]", text: str) -> UsageError:
    """Return that a word of ``--to`` names nothing that a lease can be moved to."""
    names = " or ".join(each.name for each in mine)
    if any(text in (each.name, each.id) for each in view.servers):
        return UsageError(
            f"{text[:64]} is a server, and is named alone: the pool chooses among its GPUs then",
            hint=f"name the server alone, or GPUs of {names}",
        )
    hint = '"gpupool gpus" shows the GPUs by number and id'
    if text.isdecimal():
        return UsageError(f"{names} has no GPU {text[:64]}", hint=hint)
    return UsageError(f"{text[:64]} is no GPU of {names}, and no server of the pool", hint=hint)


def _gpus_of(
    view: "PoolView", mine: "Sequence[ServerView]", text: str
) -> list[tuple[ServerId, GpuId]]:
    """Return the GPUs that a word names: any by its id, by number those of a lease's servers."""
    by_id = [(s.id, gpu.id) for s in view.servers for gpu in s.gpus if gpu.id == text]
    return by_id or [(s.id, gpu.id) for s in mine for gpu in s.gpus if str(gpu.index) == text]


def _gpus_named(server: "ServerView", text: str) -> "Sequence[GpuView]":
    return [each for each in server.gpus if text in (each.id, str(each.index))]
