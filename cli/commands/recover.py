"""``gpupool recover``: go on alone with the one server that is left of a pool."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import verbose_option
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.remoting.local import files as paths
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.consensus.recovery import Survivor
    from gpupool.pool.model.ids import ServerId
    from gpupool.pool.model.state import PoolState, Server
    from gpupool.remoting.daemon.state_dir import StateDir

ANSWER_S = 2.0
"""How long the other voters have to answer before they count as lost."""


@click.command()
@click.option("--state-dir", type=click.Path(file_okay=False), help="Where this server lives.")
@click.option("--force", is_flag=True, help="Do it; without, only say what would be done.")
@verbose_option
def command(state_dir: str | None, force: bool) -> int:
    r"""Make this machine's server the only one of its pool, after most voters were lost for good.

    A pool grants while a majority of its voters lives. When that majority never returns, one
    survivor can go on with its own table: it alone votes, and all other servers are removed.
    Changes that only they had are lost. Stop the server before you run this.

    \b
    1. On every survivor: stop it, then "gpupool recover". Choose the one with the highest term,
       and of these the one with the most entries.
    2. There: "gpupool recover --force", then "gpupool join".
    3. Everywhere else: "gpupool rejoin" with a new token. The survivor dials the others and tells
       them that they were removed, which ends them; where it cannot reach them, a majority of them
       would go on with the old pool.

    The only server of a pool whose journal has lost its end goes on in the same way, without it.
    """
    from gpupool.remoting.daemon.state_dir import open_stopped

    folder = Path(state_dir) if state_dir else paths.state_dir()
    state = open_stopped(folder, "the pool is recovered while the server is down")
    try:
        return _recover(state, force=force)
    finally:
        state.close()


@dataclass(frozen=True, slots=True)
class _Case:
    """The state of the pool, as the survivor knows it, on which the decision rests."""

    pool: "PoolState"
    survivor: "Survivor"
    me: "Server"
    has_ca_key: bool

    @property
    def others(self) -> "list[Server]":
        """Return the servers that would be removed."""
        return [server for server in self.pool.servers.values() if server.id != self.me.id]

    def other_ids(self) -> "list[ServerId]":
        """Return the others' ids, voters that the table does not know included."""
        return sorted({*(s.id for s in self.others), *self.survivor.voters} - {self.me.id})

    def voter_names(self) -> str:
        """Return the Raft voters' names."""
        servers = self.pool.servers
        return ", ".join(
            sorted(servers[v].name if v in servers else v for v in self.survivor.voters)
        )


def _recover(state: "StateDir", *, force: bool) -> int:
    from gpupool.consensus.recovery import recover, replay
    from gpupool.consensus.storage.store import open_storage
    from gpupool.pool.model.state import PoolState
    from gpupool.pool.transitions.apply import PoolMachine
    from gpupool.pool.transitions.servers import removals_of_others

    storage = open_storage(state.path)
    try:
        machine = PoolMachine(PoolState())
        survivor = replay(storage, machine)
        lost = storage.superblock.floor is not None
        case = _examined(state, machine.state, survivor, lost=lost)
        _require_loss(case)
        _describe(case)
        if not force:
            raise UsageError(
                f"recovering pool {case.pool.name} is a last resort",
                why="nothing has been changed",
                hint="if most voters are lost for good: gpupool recover --force",
            )
        at_ms = max(case.pool.now, time.time_ns() // 1_000_000)
        removals = removals_of_others(case.pool, case.me.id, at_ms=at_ms)
        why = f"this server was removed from pool {case.pool.name}, which was recovered without it"
        recover(storage, case.me.id, removals, others=case.other_ids(), why=why)
    finally:
        storage.close()
    say(f"gpupool: {case.me.name} is now the only server of pool {case.pool.name}")
    say('  hint: start it with "gpupool join", then let the others join with new tokens')
    return 0


def _examined(state: "StateDir", pool: "PoolState", survivor: "Survivor", *, lost: bool) -> _Case:
    """Return the case; raises when this server cannot carry the pool on."""
    from gpupool.remoting.daemon.state_dir import CA_KEY

    assert state.identity is not None
    me = pool.servers.get(state.identity.server)
    if me is None:
        raise GpupoolError(
            f"{state.identity.name} cannot carry the pool on",
            why="its table does not know it: it was removed, or never got that far",
            hint="recover another server",
        )
    if set(survivor.voters) == {me.id} and not lost:
        raise UsageError(
            f"{me.name} is the only voter already",
            hint='there is nothing to recover: "gpupool join" starts it',
        )
    return _Case(pool, survivor, me, bool(state.read(CA_KEY)))


def _require_loss(case: _Case) -> None:
    """Refuse while so many voters answer that the pool may live, or come to life."""
    from gpupool.cli.lib.output import run_async

    voters = [s for s in case.others if s.id in case.survivor.voters]
    answering = run_async(lambda: _answering(voters))
    needed = len(case.survivor.voters) // 2 + 1
    mine = case.me.id in case.survivor.voters
    if voters and len(answering) + mine >= needed:
        also = f", and with {case.me.name} that is" if mine else ":"
        raise GpupoolError(
            f"pool {case.pool.name} is not lost",
            why=f"{', '.join(answering)} can be reached{also} a majority of the voters",
            hint='start this server instead: "gpupool join"; or stop the others for good first',
        )


async def _answering(servers: "Sequence[Server]") -> list[str]:
    """Return the names of servers with a port that accepts TCP connections."""
    import trio

    from gpupool.remoting.protocol.addresses import parse_address

    found: list[str] = []

    async def try_one(server: "Server") -> None:
        address = parse_address(server.address)
        with trio.move_on_after(ANSWER_S):
            try:
                stream = await trio.open_tcp_stream(address.host, address.port)
            except OSError:
                return
            await stream.aclose()
            found.append(server.name)

    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(try_one, server)
    return sorted(found)


def _describe(case: _Case) -> None:
    """Describe the survivor, the possible loss, and the next steps for the other servers."""
    pool, me = case.pool, case.me
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(pool.now / 1000))
    others = ", ".join(server.name for server in case.others)
    lines = [
        f"Pool {pool.name}, as {me.name} knows it:",
        f"  log       {case.survivor.last_index} entries, the last of term "
        f"{case.survivor.last_term}, written about {when}",
        f"  voters    {case.voter_names()}",
        f"  leases    {len(pool.leases)}, of which those on other servers end now, and those on "
        f"{me.name} with its next start",
        f"  removed   {others or 'nobody'}",
        "",
        f"May be lost: every grant, release, token, revocation and change of policy that {me.name}",
        "has not heard of. What its log holds is kept, even if it was never confirmed to anybody.",
        "",
        "The others must never start again with their old state directories: together they would",
        "go on with the old pool and grant their GPUs a second time. Those that this one reaches",
        'are told, and end. A machine comes back by "gpupool rejoin" with a token of',
        '"gpupool token create --server".',
    ]
    if not case.has_ca_key:
        lines += [
            "",
            f"{me.name} has no key of the pool's authority, so that nobody can join afterwards.",
            "Recover a server that had a vote, if one is left.",
        ]
    click.echo("\n".join(lines))
