"""The pool's time against the clocks, as people and programs see it."""

from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import PoolState
from gpupool.pool.policy.admission import duration_text
from gpupool.pool.table_clock import BOUND_S, ClockReading, Source
from gpupool.pool.view import ClockView, ServerClock

HELD_MAX_S = 10.0
"""A server that has just started, or lost its links, does not know the others' clocks yet."""


def clock_view(state: PoolState, reading: ClockReading) -> ClockView:
    """Return a clock reading as a view for people."""
    return ClockView(
        table=state.now,
        pool=Milliseconds(reading.pool_ms),
        wall=Milliseconds(reading.wall_ms),
        source=reading.source.value,
        table_ahead_s=reading.table_ahead_s,
        servers=tuple(
            ServerClock(server, clock.ahead_s, clock.error_s)
            for server, clock in reading.clocks.items()
        ),
        problems=tuple(clock_problems(state, reading).values()),
    )


def clock_problems(state: PoolState, reading: ClockReading) -> dict[str, str]:
    """Return the problems of the time as sentences; the keys do not change with the figures."""
    found: dict[str, str] = {}
    held = reading.source is Source.HELD
    if held and len(state.voters()) == 1:
        found["held"] = (
            "the pool's time does not follow the only voter's clock, which is too far ahead of it: "
            "set that clock right, or take it with gpupool clock --mend"
        )
    elif held and reading.held_s > HELD_MAX_S:
        found["held"] = (
            "too few of the voters' clocks are known here: the pool's time runs on by itself"
        )
    if reading.table_ahead_s > BOUND_S:
        found["ahead"] = (
            f"the pool's time is {_text(reading.table_ahead_s)} ahead of the voters' clocks, and "
            "runs at half speed until they have caught up: gpupool clock --mend sets it back"
        )
    # Without a majority's word nobody can say which clock is wrong.
    for server_id, clock in reading.clocks.items() if not held else ():
        server = state.servers.get(server_id)
        if server is not None and abs(clock.ahead_s) > BOUND_S + clock.error_s:
            ahead = "ahead of" if clock.ahead_s > 0 else "behind"
            found[f"clock of {server_id}"] = (
                f"the clock of server {server.name} is {_text(clock.ahead_s)} {ahead} the pool's "
                "time: set it with chrony or systemd-timesyncd"
            )
    return found


def _text(seconds: float) -> str:
    return duration_text(int(abs(seconds)) * 1000)
