"""Clients of a long line: what nothing can serve, what never ends, and one that wants a server."""

from dataclasses import replace
from random import Random

from gpupool.pool.model.ids import RequestId
from gpupool.pool.model.state import Request
from gpupool.simulations.kernel.swarm_options import Options

AT_LIMIT_COUNT = 20
"""Requests of one user whose limit lets one of them through."""

LARGE, AT_LIMIT, OF_DRAINED, ENDLESS, SLEEPER, SMALL = (
    *("large", "at-limit", "of-drained", "endless", "sleeper", "small"),
)

NEVER_ENDING = (ENDLESS, SLEEPER, AT_LIMIT)
"""Who keeps a lease for as long as the pool lets them: of those at the limit, one has one."""


def line_policy(options: Options) -> str:
    """Return the policy of the run: a limit, and leases that give way, where the line has them."""
    text = "[user.user3]\nmax_leases = 1\n" if "limit" in options.line else ""
    if "sleepers" in options.line:
        text += '[defaults]\npriority = 5\nmin_run_time = "1s"\n'
        text += '[class.low]\nusers = ["user1"]\npriority = 0\npreemptible = true\n'
    return text


def part_in_line(options: Options, number: int) -> tuple[str, str]:
    """Return the user of a client, by its number from 1 on, and what it does."""
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
