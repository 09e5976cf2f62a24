"""Invariants of the table: the rules that every state satisfies, and a sampler for production.

Tests and simulations check the whole table after every command (``violations``). A server in
production checks two rows with each command (``InvariantSampler``): a check of the whole table
would take tens of milliseconds in a pool of a thousand servers.
"""

from collections.abc import Callable, Iterator

from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.state import (
    RECORD_COUNT_MAX,
    VOTER_COUNT_MAX,
    Gpu,
    Lease,
    PartStatus,
    PoolState,
    Server,
)
from gpupool.pool.policy.rulebook import plus, usage_of

ROWS_PER_APPLY = 2
"""Rows that a server checks with each command, 2 to 4 us each: see docs/adr/smaller/servers.md."""

VIOLATION_COUNT_MAX = 5
"""Violations that a server remembers; one broken command can make thousands."""


def violations(state: PoolState) -> list[str]:
    """Return every broken invariant as a sentence; the list of a sound table is empty."""
    return [found for row in check_rows(state) for found in row]


def check_rows(state: PoolState) -> Iterator[list[str]]:
    """Check a table row by row; yield the violations of each row, mostly none.

    A row is a lease, a server, a request with a lease, or a summary of the table.
    """
    granted: dict[tuple[ServerId, GpuId], int] = {}
    usage: dict[str, Usage] = {}
    for lease in state.leases.values():
        _add(lease, granted, usage)
        yield _lease_violations(state, lease)
    offered: set[GpuId] = set()
    for server in state.servers.values():
        yield _server_violations(server, granted, offered)
    for request, lease_id in state.by_request.items():
        found: list[str] = []
        if lease_id not in state.leases:
            found.append(f"request {request.hex()} points at no lease")
        if request in state.closed:
            found.append(f"request {request.hex()} is closed and has a lease")
        yield found
    yield [f"{gpu}: granted but not in the table" for (_, gpu) in granted]
    if usage != state.usage:
        yield [f"the policy's books say {state.usage}, leases hold {usage}"]
    if len(state.voters()) > VOTER_COUNT_MAX:
        yield [f"{len(state.voters())} voters"]
    if len(state.authorities) > 2 or len({*state.authorities, b""}) <= len(state.authorities):
        yield [f"{len(state.authorities)} CAs are trusted, of which some are alike or empty"]
    numbers = [act.number for act in state.acts]
    if numbers != list(range(state.act_count - len(numbers) + 1, state.act_count + 1)):
        yield [f"{state.act_count} administrative acts, of which {numbers} are kept"]
    yield _record_violations(state)
    unknown = set(state.revoking) - state.tokens.keys()
    yield [f"leases of token {each} are to be ended, which is not in the table" for each in unknown]


def _record_violations(state: PoolState) -> list[str]:
    """Return the errors in the numbers of the records of ended leases."""
    kept = len(state.records)
    if kept != min(state.record_count, RECORD_COUNT_MAX):
        return [f"{state.record_count} records of leases, of which {kept} are kept"]
    first = state.record_count - kept + 1
    if any(record.number != first + at for at, record in enumerate(state.records)):
        return ["the numbers of the records of leases have a gap"]
    return []


class InvariantSampler:
    """Checks the table of a running server, two rows with each command.

    It keeps the table with which a check began until all rows are checked, which a table that is
    never changed in place allows, and begins the next check with the table of that moment. So the
    work for one command does not grow with the pool. A violation stops nothing: the table is the
    same on all servers, and a pool that grants nothing helps nobody.
    """

    def __init__(self, on_violation: Callable[[str], None]) -> None:
        """Make a sampler; ``on_violation`` gets the first violation only."""
        self.found: tuple[str, ...] = ()
        """The first violations since the start of the server, as sentences."""
        self._on_violation = on_violation
        self._rows: Iterator[list[str]] = iter(())
        self._index = 0

    def applied(self, state: PoolState) -> None:
        """Check the next rows, after a command has led to ``state``."""
        for _ in range(ROWS_PER_APPLY):
            row = next(self._rows, None)
            if row is None:
                self._rows, self._index = check_rows(state), state.index
                return
            if row:
                self._report(row)

    def _report(self, row: list[str]) -> None:
        first = not self.found
        texts = tuple(f"{text} (table of index {self._index})" for text in row)
        self.found = (*self.found, *texts)[:VIOLATION_COUNT_MAX]
        if first:
            self._on_violation(self.found[0])


def _add(lease: Lease, granted: dict[tuple[ServerId, GpuId], int], usage: dict[str, Usage]) -> None:
    """Add a lease's memory and usage to the sums that are compared with the books."""
    one, known = usage_of(lease), usage.get(lease.user)
    usage[lease.user] = one if known is None else plus(known, one)
    for partition in lease.partitions:
        if lease.is_charged(partition.server):
            key = (partition.server, partition.gpu)
            granted[key] = granted.get(key, 0) + partition.memory


def _server_violations(
    server: Server, granted: dict[tuple[ServerId, GpuId], int], offered: set[GpuId]
) -> list[str]:
    found: list[str] = []
    for gpu in server.gpus.values():
        found += _gpu_violations(gpu, granted.pop((server.id, gpu.id), 0))
        order = server.gpu_orders.get(gpu.id)
        if gpu.drain_reason != (order.drain_reason if order else ""):
            found.append(f"{gpu.id}: drained as {gpu.drain_reason!r}, ordered as {order}")
        if not gpu.clash:
            if gpu.id in offered:
                found.append(f"{gpu.id}: offered by two servers")
            offered.add(gpu.id)
    return found


def _gpu_violations(gpu: Gpu, total: int) -> list[str]:
    found: list[str] = []
    if total != gpu.memory_granted:
        found.append(f"{gpu.id}: books say {gpu.memory_granted}, leases hold {total}")
    if total and total > gpu.capacity and not gpu.fault:
        found.append(f"{gpu.id}: {total} granted of {gpu.capacity}")
    return found


def _part_violations(lease: Lease) -> list[str]:
    """Return the parts of a held lease with a status that contradicts its relocation."""
    ending = lease.relocation.ending if lease.relocation is not None else None
    return [
        f"lease {lease.id}: held, with a part {part.value} on {server}"
        for server, part in lease.parts.items()
        if part is not (PartStatus.ENDING if server == ending else PartStatus.HELD)
    ]


def _lease_violations(state: PoolState, lease: Lease) -> list[str]:
    found: list[str] = []
    move = state.moving
    now = move.before if move is not None and move.is_due(lease.id) else state.now
    parts = lease.parts.values()
    if {p.server for p in lease.partitions} != lease.parts.keys():
        found.append(f"lease {lease.id}: parts and partitions name different servers")
    if state.by_request.get(lease.request) != lease.id:
        found.append(f"lease {lease.id}: not found by its request")
    if not set(parts) - {PartStatus.FREED}:
        found.append(f"lease {lease.id}: freed everywhere, and still there")
    if (suspension := lease.suspension) is not None:
        if set(suspension.confirmed) >= lease.parts.keys():
            found.append(f"lease {lease.id}: {suspension.state.value}, and confirmed by all")
        if suspension.number > state.index or suspension.since > now:
            found.append(f"lease {lease.id}: suspended after the table's time")
    if (lease.history is not None and lease.history.away_since != 0) != lease.is_away:
        found.append(f"lease {lease.id}: known as away, or its history not")
    if lease.held:
        found += _part_violations(lease)
    if (goes := lease.relocation) is not None:
        if lease.parts.keys() != {goes.source, goes.target} or lease.suspension is not None:
            found.append(f"lease {lease.id}: goes to another server, and is elsewhere or suspended")
        if goes.number > state.index or goes.since > now:
            found.append(f"lease {lease.id}: goes to another server after the table's time")
    if max(lease.granted_at, lease.ended_at) > now:
        found.append(f"lease {lease.id}: granted or ended after the table's time")
    if len({p.gpu for p in lease.partitions}) != len(lease.partitions):
        found.append(f"lease {lease.id}: two partitions on one GPU")
    return found
