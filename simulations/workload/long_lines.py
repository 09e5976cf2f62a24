"""Clients of a long line: unservable requests, endless leases, and one that wants a server."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Protocol

from gpupool.pool.model.ids import RequestId, ServerId
from gpupool.pool.model.state import Request
from gpupool.simulations.kernel.swarm_options import Options

AT_LIMIT_COUNT = 20
"""Requests of one user with a limit that lets one of them through."""

LARGE, AT_LIMIT, OF_DRAINED, ENDLESS, SLEEPER, SMALL = (
    *("large", "at-limit", "of-drained", "endless", "sleeper", "small"),
)

NEVER_ENDING = (ENDLESS, SLEEPER, AT_LIMIT)
"""Clients that keep a lease for as long as the pool lets them: of those at the limit, one has
one."""


class Operator(Protocol):
    """The actions of an operator of the simulated pool."""

    def put_policy(self, text: str, base: int, done: Callable[[], None]) -> None:
        """Put a policy in force."""
        ...

    def drain(self, server: ServerId, for_s: float) -> None:
        """Stop granting on a server for a while."""
        ...


def begin_line(options: Options, operator: Operator, drained: ServerId) -> None:
    """Give orders: a limit, leases that give way, a drained server, where the line has them."""
    text = "[user.user3]\nmax_leases = 1\n" if "limit" in options.line else ""
    if "sleepers" in options.line:
        text += '[defaults]\npriority = 5\nmin_run_time = "1s"\n'
        text += '[class.low]\nusers = ["user1"]\npriority = 0\npreemptible = true\n'
    if text:
        operator.put_policy(text, 0, lambda: None)
    if "drained" in options.line:
        operator.drain(drained, options.fault_s + options.heal_s)


def part_in_line(options: Options, client: str) -> tuple[str, str] | None:
    """Return the user of a client, by its name, and its part; None: there is no line."""
    if not options.line:
        return None
    number = int(client[1:])
    parts = [("user2", ENDLESS)] * ("endless" in options.line)
    parts += [("user3", AT_LIMIT)] * (AT_LIMIT_COUNT * ("limit" in options.line))
    parts += [("user2", OF_DRAINED)] * ("drained" in options.line)
    parts += [("user2", LARGE)]
    others = SLEEPER if "sleepers" in options.line else SMALL
    return parts[number - 1] if number <= len(parts) else ("user1", others)


def draw_in_line(random: Random, options: Options, client: str, part: str, drained: str) -> Request:
    """Return the next request of a client; ``drained`` is the name of a server."""
    one = Request(RequestId(random.randbytes(16)), 1, 1.0, client=client)
    if part in (LARGE, OF_DRAINED):
        one = replace(one, count=options.gpus)
    if part == LARGE and "across" in options.line:
        one = replace(one, count=options.gpus + 1, across=True)
    return replace(one, servers=(drained,)) if part == OF_DRAINED else one
