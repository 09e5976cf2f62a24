"""``gpupool run --dry-run``: the expected GPUs and door of a run, without asking for them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import trio

from gpupool.pool.errors import ExitCode, GpupoolError
from gpupool.pool.expected_start import NEVER, start_by_s
from gpupool.pool.model.state import Request
from gpupool.pool.values import free_text
from gpupool.pool.view import PoolView
from gpupool.remoting.local.logins import connected
from gpupool.remoting.program.door_choice import DoorChoice
from gpupool.remoting.program.lease_source import Wanted, unknown_text
from gpupool.remoting.program.program_run import REPEAT_S

if TYPE_CHECKING:
    from gpupool.remoting.protocol.messages import PolicyVerdict

SUSPENSION_S = 60.0
"""Leases with the memory of a whole GPU take tens of seconds to let go."""


async def describe_run(
    wanted: Wanted,
    program: str,
    choose: Callable[[], DoorChoice],
    credentials: str | None,
    say: Callable[[str], None],
) -> int:
    """Say how a request would be answered now, and by which door the program would run.

    Returns:
        The exit code: 0 when it would be granted, 75 when it would wait, 1 when it is denied.
    """
    door = await trio.to_thread.run_sync(choose, abandon_on_cancel=True)
    request = wanted.request(program)
    async with connected(credentials) as pool:
        unknown = pool.unknown_servers(wanted.servers)
        view = await pool.view()
        silent = silent_servers(view, request)
        # The table does not know who answers: only those are asked about.
        asked = tuple(each for each in request.servers if each not in silent)
        verdict = await pool.check_policy("", replace(request, servers=asked))
    if unknown:
        say(unknown_text(unknown))
    if silent:
        from gpupool.remoting.client.refusals import silence_text

        say(silence_text(silent))
    if silent and not asked:
        return ExitCode.NOT_NOW
    for line in verdict.lines:
        say(line)
    if any(" would be suspended for it: " in line for line in verdict.lines):
        say("it can start once these leases are suspended, which takes seconds to a minute")
    elif verdict.kind == "busy":
        say(start_text(min(start_by_s(view, request), preempted_by_s(verdict))))
    say(f"door: {door.door or 'none'}, because {door.why}")
    if door.warning:
        say(door.warning)
    codes = {"": ExitCode.DONE, "busy": ExitCode.NOT_NOW}
    return codes.get(verdict.kind, ExitCode.FAILED)


def silent_servers(view: PoolView, request: Request) -> list[str]:
    """Return the servers that a request names and that are down."""
    down = [server for server in view.servers if server.state == "down"]
    known = {name for server in down for name in (server.name, server.id)}
    return [name for name in request.servers if name in known]


def start_text(by_s: float) -> str:
    """Return when a request that waits can start, as far as limits on lease times say."""
    if by_s == NEVER:
        return "nobody knows when it can start: leases in its way have no limit of time"
    if by_s == 0:
        return "enough memory is free now: it waits for its turn, or for its limits"
    return free_text(by_s)


class Asked(Protocol):
    """A pool that a request waits for."""

    async def view(self) -> PoolView:
        """Return the pool as it is now."""
        ...

    async def check_policy(self, user: str, request: Request) -> "PolicyVerdict":
        """Return how the policy treats a request of the caller."""
        ...


async def follow_start(pool: Asked, request: Request, tell: Callable[[float], None]) -> None:
    """Tell after how long a request that waits can start, now and each minute; for ever."""
    while True:
        with suppress(GpupoolError):
            by_s = start_by_s(await pool.view(), request)
            if by_s:  # else it waits for its turn or for its limits, which nobody gives way to
                by_s = min(by_s, preempted_by_s(await pool.check_policy("", request)))
            tell(by_s)
        await trio.sleep(REPEAT_S)


def preempted_by_s(verdict: "PolicyVerdict") -> float:
    """Return after how long leases have let go for a request; infinite if none gives way."""
    if verdict.suspendable_in < 0:
        return NEVER
    return verdict.suspendable_in / 1000 + SUSPENSION_S
