"""Orders of operators that undo each other, and so must be carried out once at most.

An order is repeated, by its client and by the servers, until somebody has an answer. A repetition
that was under way may be committed seconds later, behind an order that undid the first.
"""

from gpupool.pool.model.results import Result, refuse
from gpupool.pool.model.state import Server

ORDER_SIZE = 16
ORDER_COUNT_MAX = 16
"""Orders that a server's entry remembers. A repetition comes within seconds."""


def check_order(server: Server, order: bytes) -> Result | None:
    """Return the result of an order that is not to be carried out, or None when it is."""
    if order in server.orders:
        return Result(ok=True)
    if len(order) not in (0, ORDER_SIZE):
        return refuse("invalid", "malformed number of an order")
    return None


def remembered(server: Server, order: bytes) -> tuple[bytes, ...]:
    """Return what a server's entry remembers once ``order`` is carried out."""
    if not order:
        return server.orders
    return (*server.orders, order)[-ORDER_COUNT_MAX:]
