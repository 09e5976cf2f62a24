"""Bounds that are scaled down for one run, so that it reaches them.

A run's log has a hundred kilobytes, and its table a few leases. The rules that begin with a
megabyte of log, or with many leases of one token, would never matter in it.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from gpupool.consensus import followers
from gpupool.consensus.core import progress
from gpupool.consensus.core import raft_core as replication
from gpupool.consensus.protocol import raft_settings
from gpupool.consensus.storage import snapshot
from gpupool.pool.transitions import batches, clock_setting
from gpupool.pool.transitions.batches import ENDED_AT_ONCE_MAX
from gpupool.simulations.kernel.swarm_options import Options

BATCH_BYTES = 4 * 1024
PROBE_BYTES = 1024
IN_FLIGHT_BYTES = 16 * 1024
IN_FLIGHT_MESSAGES = 8
SNAPSHOT_CHUNK_BYTES = 2 * 1024

_SMALL: tuple[tuple[object, str, int], ...] = (
    (raft_settings, "BATCH_BYTES_MAX", BATCH_BYTES),
    (replication, "BATCH_BYTES_MAX", BATCH_BYTES),
    (replication, "PROBE_BYTES_MAX", PROBE_BYTES),
    (followers, "BATCH_BYTES_MAX", BATCH_BYTES),
    (progress, "IN_FLIGHT_BYTES_MAX", IN_FLIGHT_BYTES),
    (progress, "IN_FLIGHT_MESSAGES_MAX", IN_FLIGHT_MESSAGES),
    (raft_settings, "SNAPSHOT_CHUNK_BYTES", SNAPSHOT_CHUNK_BYTES),
    (snapshot, "SNAPSHOT_CHUNK_BYTES", SNAPSHOT_CHUNK_BYTES),
)


@contextmanager
def scaled(options: Options) -> Generator[None]:
    """Let servers send many messages where small ones are drawn, and end as many leases at once."""
    with ExitStack() as stack:
        stack.enter_context(_set(batches, "ENDED_AT_ONCE_MAX", options.ends_at_once))
        if options.ends_at_once < ENDED_AT_ONCE_MAX:
            moved = options.ends_at_once
            stack.enter_context(_set(clock_setting, "MOVED_AT_ONCE_MAX", moved))
        if options.small_messages:
            for module, name, value in _SMALL:
                stack.enter_context(_set(module, name, value))
        yield


@contextmanager
def _set(module: object, name: str, value: int) -> Generator[None]:
    usual = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, usual)
