"""The checker of accounts: records of ended leases match an independent count of time.

It follows the log as the first server to apply each command saw it. It does not read when a lease
was granted, but adds up the time that passes while each server's part of it is not freed. It takes
off the time in which the lease was suspended, as it saw it come and go. A lease that has gone to
another server has a time for each; of memory that was kept where it never came there is no record.
In the end, a server's own store of records must give what all these times add up to.
"""

from collections.abc import Iterable
from pathlib import Path

from gpupool.monitoring.accounting import Range
from gpupool.monitoring.usage_report import live_records
from gpupool.monitoring.usage_store import UsageStore
from gpupool.pool.model.commands import Envelope, SetClock
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.relocation import RelocationState
from gpupool.pool.model.state import Lease, LeaseRecord, PartStatus, PoolState
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.transitions.kept_records import records_since
from gpupool.pool.view_building import build_view
from gpupool.simulations.kernel.failure_reporter import FailureReporter

Key = tuple[LeaseId, ServerId]
NO_HEALTH = RaftHealth(Role.FOLLOWER, None, 0, 0, 0, (), (), 0.0, {}, 0)


class AccountsClose:
    """Each part that is freed has one record, of the memory and the milliseconds that it had."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._passed = 0  # milliseconds of the table's time, since the first command
        self._began: dict[Key, int] = {}
        self._granted: dict[Key, int] = {}
        self._away: dict[LeaseId, list[tuple[int, int]]] = {}
        """When each lease was suspended, in the table's time; an end of -1 is not known yet."""
        self.freed: dict[Key, int] = {}
        """Byte-milliseconds of parts freed since the accounts began."""
        self._records: list[LeaseRecord] = []

    def applied(self, envelope: Envelope, before: PoolState, after: PoolState) -> None:
        """Count a command that was applied for the first time, and judge its records."""
        self._pass_time(envelope, before, after)
        self._note_away(before, after)
        if before.leases is after.leases and before.record_count == after.record_count:
            return
        records = {(each.lease, each.server): each for each in self._made(before, after)}
        goes = False
        for lease in before.leases.values():
            left = after.leases.get(lease.id)
            goes |= left is not None and left.relocation != lease.relocation
            if left is not lease:
                self._judge(lease, left, records, after)
                self._note_gone(lease, left, after)
            if left is None:
                self._away.pop(lease.id, None)
        for key, record in records.items():
            self._fail(f"record {record.number} is of {key}, of which no part was freed")
        for lease_id in after.leases.keys() - before.leases.keys():
            for server in after.leases[lease_id].parts:
                self._began[lease_id, server] = self._passed
                self._granted[lease_id, server] = after.now
        if goes:
            self._judge_living(after)

    def end(self, state: PoolState) -> None:
        """Demand that the store has all records, and that leases not over yet count rightly."""
        self._judge_store()
        self._judge_living(state)
        for lease in state.leases.values():
            away = self._away_ms(lease.id, state.now)
            told = sum(end - begin for begin, end in lease.times_away(state.now))
            if told != away:
                self._fail(f"lease {lease.id} was suspended for {told} ms, not {away}")

    def _judge_living(self, state: PoolState) -> None:
        """Demand that leases count for as long as they were held on each server."""
        move = state.moving
        told = {
            (each.lease, each.server): each.freed_at - each.granted_at
            for each in live_records(build_view(state, NO_HEALTH, ServerId(""), state.now))[0]
        }
        for lease in state.leases.values():
            due = move is not None and move.is_due(lease.id)
            for server, part in lease.parts.items():
                key = lease.id, server
                counts = part is not PartStatus.FREED and key in self._began
                counted = self._passed - self._began[key] if counts else None
                if told.get(key) != counted and not due:
                    text = f"{told.get(key)} ms on {server}, not {counted}"
                    self._fail(f"lease {lease.id} has been held for {text}")

    def _judge_store(self) -> None:
        store = UsageStore(Path(":memory:"), write=True)
        store.add(self._records)
        records, missing = store.everything(), store.missing()
        store.close()
        if missing:
            self._fail(f"the store lacks the records {missing}")
        if (kept := byte_ms(records)) != self.freed:
            apart = {key for key, _ in kept.items() ^ self.freed.items()}
            self._fail(f"the store does not say what {sorted(apart)} have had")

    def _note_gone(self, lease: Lease, left: Lease | None, after: PoolState) -> None:
        """Begin to count for the server where a lease is from now on, or has memory already."""
        was, now = lease.relocation, left.relocation if left is not None else None
        if now is None or (now.state is not RelocationState.GONE and not now.billed):
            return
        if was is None or (was.state is not RelocationState.GONE and not was.billed):
            self._began[lease.id, now.target] = self._passed
            self._granted[lease.id, now.target] = after.now

    def _note_away(self, before: PoolState, after: PoolState) -> None:
        if before.leases is after.leases:
            return
        apart = before.leases.suspended().keys() | after.leases.suspended().keys()
        for lease in apart:
            was, now = before.leases.get(lease), after.leases.get(lease)
            spans = self._away.setdefault(lease, [])
            is_away = now is not None and now.is_away
            if is_away and not (was is not None and was.is_away):
                spans.append((after.now, -1))
            elif spans and spans[-1][1] < 0 and now is not None and not is_away:
                spans[-1] = spans[-1][0], after.now

    def _away_ms(self, lease: LeaseId, now: int, since: int = 0) -> int:
        spans = [(begin, now if end < 0 else end) for begin, end in self._away.get(lease, ())]
        return sum(end - max(begin, since) for begin, end in spans if end > since)

    def _pass_time(self, envelope: Envelope, before: PoolState, after: PoolState) -> None:
        if after.era == before.era:
            self._passed += after.now - before.now
            return
        assert isinstance(envelope.command, SetClock)
        now, to = max(before.now, envelope.at), after.now
        self._passed += now - before.now + max(0, to - now)
        for key, granted in self._granted.items():
            # An operator has declared that this time did not pass; what began in it lasts as long.
            if to < granted <= now:
                self._granted[key] = granted - (now - to)
            elif to < now:
                self._began[key] += now - to
        for lease, spans in self._away.items():
            of = before.leases.get(lease)
            if of is None or to >= now:
                continue
            moved = now - to if of.granted_at > to else 0
            self._away[lease] = [
                (_put(begin, moved, to), -1 if end < 0 else _put(end, moved, to))
                for begin, end in spans
            ]

    def _made(self, before: PoolState, after: PoolState) -> tuple[LeaseRecord, ...]:
        made = records_since(after, before.record_count)
        numbers = [each.number for each in made]
        count = after.record_count - before.record_count
        if count != len(made) or numbers != [before.record_count + 1 + n for n in range(count)]:
            self._fail(f"{count} records after {before.record_count} have the numbers {numbers}")
        self._records += made
        return made

    def _judge(
        self, lease: Lease, left: Lease | None, records: dict[Key, LeaseRecord], after: PoolState
    ) -> None:
        for server, part in lease.parts.items():
            now = left.parts.get(server, PartStatus.FREED) if left else PartStatus.FREED
            key = lease.id, server
            if part is PartStatus.FREED or now is not PartStatus.FREED or key not in self._began:
                continue
            passed = self._passed - self._began.pop(key)
            away = self._away_ms(lease.id, after.now, self._granted.pop(key))
            record = records.pop(key, None)
            if not after.accounts_since:
                continue
            memory = sum(p.memory for p in lease.partitions if p.server == server)
            self.freed[key] = self.freed.get(key, 0) + memory * (passed - away)
            if record is None:
                self._fail(f"the part of lease {lease.id} on {server} was freed without a record")
            elif record.freed_at - record.granted_at != passed:
                told = record.freed_at - record.granted_at
                self._fail(f"record {record.number} says {told} ms, and {passed} have passed")
            elif sum(end - begin for begin, end in record.away) != away:
                self._fail(f"record {record.number} says {record.away}, and {away} ms were away")
            elif sum(gpu.memory for gpu in record.gpus) != memory or record.user != lease.user:
                self._fail(f"record {record.number} is not of what {lease.user} had")

    def _fail(self, text: str) -> None:
        self._failures.fail("accounts-close", text)


def byte_ms(records: Iterable[LeaseRecord]) -> dict[Key, int]:
    """Return the byte-milliseconds that records have, by lease and server."""
    found: dict[Key, int] = {}
    for each in records:
        memory, key = sum(gpu.memory for gpu in each.gpus), (each.lease, each.server)
        found[key] = found.get(key, 0) + memory * Range().ms_of(each)
    return found


def _put(at: int, moved: int, to: int) -> int:
    """Return an instant when the time is set back: moved with its lease, or cut."""
    return at - moved if moved else min(at, to)
