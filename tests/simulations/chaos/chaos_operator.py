"""The operator of a run on real processes: it suspends, resumes and moves leases at random.

They are moved to other GPUs of their server, and to other servers.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.view import LeaseView
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.protocol import messages as m

ORDER_EVERY_S = 0.7
"""In the mean: leases of a run last some seconds."""

AGAIN_S = 0.3
MOVE_SHARE = 0.2
"""Of the orders about leases that run: to another GPU, and as many to another server."""


async def give_orders(
    credentials: Path, random: Random, note: Callable[[str], None], refused: Callable[[str], None]
) -> None:
    """Give orders about leases until cancelled.

    Args:
        credentials: of an operator.
        random: what is chosen by.
        note: takes the kind of each order that the pool has taken.
        refused: takes why an order was refused, or the pool not reached.
    """
    while True:
        try:
            loaded = load_credentials(credentials)
            async with connect_pool(loaded, version="chaos", client="operator") as pool:
                while True:
                    await trio.sleep(random.expovariate(1.0) * ORDER_EVERY_S)
                    view = await pool.view()
                    servers = [each.id for each in view.servers]
                    chosen = next_order(random, view.leases, servers)
                    if chosen is not None:
                        await pool.operate(chosen)
                        note(type(chosen).__name__)
        except* GpupoolError as group:
            refused(str(group.exceptions[0]))
        await trio.sleep(AGAIN_S)


def next_order(
    random: Random, leases: Sequence[LeaseView], servers: Sequence[ServerId]
) -> m.Order | None:
    """Return an order about one of these leases; None when there is none to give.

    Args:
        random: what is chosen by.
        leases: as the pool shows them.
        servers: all of the pool, where leases may go.
    """
    able = [each for each in leases if each.state in ("held", "suspended")]
    if not able:
        return None
    lease = random.choice(able)
    if lease.state == "suspended":
        return m.ResumeLease(lease.id)
    what, there = random.random(), random.choice(lease.partitions).server
    if what < MOVE_SHARE:
        return m.MoveLease(lease.id, there)
    if what < 2 * MOVE_SHARE and (others := [each for each in servers if each != there]):
        return m.RelocateLease(lease.id, random.choice(others))
    return m.SuspendLease(lease.id, "chaos")
