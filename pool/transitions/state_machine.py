"""The state machine that consensus replicates: a shell that holds the table around ``apply``."""

from collections.abc import Callable
from dataclasses import dataclass

from gpupool.pool.invariants import InvariantSampler
from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.commands import RemoveServer, ServerUp, unwrap
from gpupool.pool.model.formats import VERSION, OutdatedError
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.pieces import Field, PieceDecoder, fields_of
from gpupool.pool.model.results import RefusalKind, refuse
from gpupool.pool.model.state import Act, Event, LeaseRecord, PoolState, with_changes
from gpupool.pool.model.table_hash import TableHash
from gpupool.pool.transitions.accounts import records_since
from gpupool.pool.transitions.apply import apply
from gpupool.pool.transitions.audit import acts_since

HASH_EVERY_MS = 60_000
"""Of the table's own time between two hashes of the whole table: one takes 0.1 to 0.2 s of a core
in the largest pools, in pieces."""

_SINCE_ERA = 1 << 48


@dataclass(slots=True)
class PoolMachine:
    """The state machine that consensus replicates: ``ports.StateMachine`` over ``apply``.

    ``on_apply`` is called after each change of ``state``, on the thread that changed it. A reader
    on any thread takes ``state`` once and holds one consistent picture. ``on_acts`` is called on
    that thread too, with every administrative act since the last call, in order; ``on_records``
    with every record of a lease, ``on_events`` with the events of each command. ``sampler`` checks
    the invariants of a running server's table. ``version`` is that of this program's formats.
    """

    state: PoolState
    on_apply: Callable[[], None] | None = None
    on_acts: Callable[[tuple[Act, ...]], None] | None = None
    on_records: Callable[[tuple[LeaseRecord, ...]], None] | None = None
    on_events: Callable[[tuple[Event, ...]], None] | None = None
    sampler: InvariantSampler | None = None
    hash_every_ms: int = HASH_EVERY_MS
    version: int = VERSION
    _reported_count: int = 0
    _record_count: int = 0
    _is_outdated: bool = False

    @property
    def violations(self) -> tuple[str, ...]:
        """Return the invariants that the sampler has found broken since the start."""
        return self.sampler.found if self.sampler is not None else ()

    def formats(self) -> int:
        """Return the version of the formats that all servers know that have ever been up."""
        return self.state.formats()

    def apply(self, index: int, command: Plain) -> Plain:
        """Apply one committed envelope; an undecodable one is a refusal on every server alike.

        Raises:
            OutdatedError: when the servers have agreed on a version that this one cannot read.
        """
        if self._is_outdated:
            raise OutdatedError(self.state.formats(), self.version)
        try:
            before = self.state.events
            envelope = unwrap(command)
        except CodecError as error:
            self.state = with_changes(self.state, index=index)
            result = refuse(RefusalKind.INVALID, str(error))
        else:
            self.state, result = apply(self.state, index, envelope)
            if isinstance(envelope.command, ServerUp | RemoveServer):
                # The next entry may need the newer version. This one does not, and tells a server
                # that it was removed.
                self._is_outdated = self.state.formats() > self.version
            if self.on_events is not None and self.state.events is not before:
                self.on_events(_events_since(self.state.events, before))
        if self.sampler is not None:
            self.sampler.applied(self.state)
        self._notify()
        return encode(result)

    def snapshot(self) -> Plain:
        """Return the whole table as plain values."""
        return encode(self.state)

    def restore(self, snapshot: Plain) -> None:
        """Replace the table.

        Raises:
            CodecError: when the snapshot is not one of ours.
            OutdatedError: as ``adopt``.
        """
        self.adopt(decode(PoolState, snapshot))

    def snapshot_fields(self) -> list[Field]:
        """Return the table of this moment, to be encoded in pieces on any thread."""
        return fields_of(self.state)

    def hash_mark(self) -> int:
        """Return a number that follows from the table; it changes when all servers hash it.

        The table's own time is the same everywhere, whenever a server started.
        """
        state = self.state
        return state.now // self.hash_every_ms + state.era * _SINCE_ERA

    def hashing(self) -> TableHash:
        """Return what hashes the table of this moment, in pieces."""
        return TableHash(self.state)

    def restoring(self) -> PieceDecoder[PoolState]:
        """Return what makes a table of a snapshot in pieces, on any thread; see ``adopt``."""
        return PieceDecoder(PoolState)

    def adopt(self, state: PoolState) -> None:
        """Replace the table by one that was restored.

        Raises:
            OutdatedError: when it is of servers that agreed on a version which this cannot read.
        """
        if state.formats() > self.version:
            raise OutdatedError(state.formats(), self.version)
        self.state = state
        self._notify()

    def _notify(self) -> None:
        if self.state.act_count != self._reported_count:
            if self.on_acts is not None:
                self.on_acts(acts_since(self.state, self._reported_count))
            self._reported_count = self.state.act_count
        if self.state.record_count != self._record_count:
            if self.on_records is not None:
                self.on_records(records_since(self.state, self._record_count))
            self._record_count = self.state.record_count
        if self.on_apply is not None:
            self.on_apply()


def _events_since(events: tuple[Event, ...], before: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events that came after ``before``, of which the oldest may be gone."""
    last = before[-1] if before else None
    at = next((at for at in reversed(range(len(events))) if events[at] is last), -1)
    return events[at + 1 :]
