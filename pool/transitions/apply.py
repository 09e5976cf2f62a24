"""``apply(state, index, envelope)``: the one function that changes the table.

It is total and deterministic: it reads no clock and no random source, does no I/O, and returns a
new state and a result for every command. A refusal is a result, never an exception. ``HANDLERS``
names the function of each command.

``PoolMachine``, the state machine that consensus replicates, holds the table around ``apply``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpupool.pool.invariants import InvariantSampler
from gpupool.pool.model.codec import CodecError, TableHash, decode, encode
from gpupool.pool.model.commands import (
    ApplyPolicy,
    CancelRequest,
    Command,
    CreatePool,
    CreateToken,
    DrainGpu,
    DrainServer,
    EndLease,
    Envelope,
    FreeLease,
    GiveNotice,
    Grant,
    JoinServer,
    LabelServer,
    NoteBackup,
    NoteIdle,
    RemoveServer,
    RenewToken,
    ReportGpus,
    ReportIssuer,
    RestoreBackup,
    RetireCa,
    RevokeToken,
    RotateCa,
    ServerContact,
    ServerUp,
    SetClock,
    SetSilence,
    StagePart,
    Tick,
    Wait,
    unwrap,
)
from gpupool.pool.model.forgetting import ForgetUser
from gpupool.pool.model.formats import VERSION, OutdatedError
from gpupool.pool.model.ids import LeaseId, Milliseconds, Plain, lease_name
from gpupool.pool.model.pieces import Field, PieceDecoder, fields_of
from gpupool.pool.model.relocation import ConfirmRelocated, RefuseRelocation, RelocateLease
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import Act, Event, LeaseRecord, PoolState, with_changes
from gpupool.pool.model.suspension import (
    ConfirmResumed,
    ConfirmSuspended,
    MoveLease,
    RefuseSuspension,
    ResumeLease,
    SuspendLease,
)
from gpupool.pool.policy import lease_ends
from gpupool.pool.transitions import (
    authorities,
    clock_setting,
    gpu_drains,
    kept_records,
    lease_moves,
    lease_relocations,
    lease_suspensions,
    leases,
    policy_versions,
    servers,
    silencing,
    tokens,
    uploads,
)
from gpupool.pool.transitions.backup import restore_backup
from gpupool.pool.transitions.kept_records import acts_since, emit_event, record, records_since


def apply(state: PoolState, index: int, envelope: Envelope) -> Step:
    """Return the state after ``envelope``, committed at ``index``, and its result."""
    if envelope.era != state.era:
        # Its stamp and its deadline are of a time that the pool does not have any more.
        why = "the pool's time was set after the command was stamped"
        return with_changes(state, index=index), refuse(RefusalKind.EXPIRED, why)
    # Time goes back by ``SetClock`` alone, whatever the clock of a proposer shows.
    now = Milliseconds(max(state.now, envelope.at))
    state = with_changes(state, index=index, now=now)
    state = leases.lapse_waiting(state)
    if state.staged:
        state = uploads.lapse_staged(state)
    if envelope.expires and now > envelope.expires:
        return state, refuse(RefusalKind.EXPIRED, "the command arrived after its deadline")
    command = envelope.command
    if state.moving is not None:
        state = clock_setting.moved_ahead(state, lease_of(state, command))
    return HANDLERS[type(command)](state, command)


def lease_of(state: PoolState, command: Command) -> LeaseId | None:
    """Return the one lease that a command may change; others change many (``end_leases_of``)."""
    if isinstance(command, CancelRequest):
        return state.by_request.get(command.request)
    return getattr(command, "lease", None)


def create_pool(state: PoolState, command: CreatePool) -> Step:
    """Name the pool; once."""
    if state.cluster_id:
        return state, refuse(RefusalKind.CONFLICT, "the pool exists already")
    state = with_changes(
        state,
        cluster_id=command.cluster_id,
        name=command.name,
        data_encryption=command.data_encryption,
    )
    state = record(state, "pool-created", by="", subject=command.name)
    return emit_event(state, "pool-created", command.name, "pool created"), Result(ok=True)


def apply_policy(state: PoolState, command: ApplyPolicy) -> Step:
    """Put a policy in force, for everything that is granted from now on."""
    before = state.policy.version
    state, result = policy_versions.apply_policy(state, command)
    if state.policy.version != before:
        text = f"version {state.policy.version} applied by {command.by}"
        version = f"version {state.policy.version}"
        state = record(state, "policy-applied", by=command.by, subject=version)
        state = emit_event(state, "policy-applied", state.name, text)
    return state, result


def give_notice(state: PoolState, command: GiveNotice) -> Step:
    """Set an end to a lease that the policy allows no more."""
    state, result = lease_ends.give_notice(state, command)
    if result.ok:
        name = lease_name(command.lease)
        text = lease_ends.notice_text(state.leases[command.lease])
        state = emit_event(state, "notice", name, text)
    return state, result


def note_backup(state: PoolState, command: NoteBackup) -> Step:
    """Remember when there was a backup; it has the hashes of all tokens in it, so it is an act."""
    state = with_changes(state, backup_at=state.now)
    return record(state, "backup-made", by=command.by, subject=state.name), Result(ok=True)


def tick(state: PoolState, command: Tick) -> Step:
    """Do nothing: ``apply`` itself has advanced the time."""
    return state, Result(ok=True)


HANDLERS: dict[type[Command], Callable[[PoolState, Any], Step]] = {
    CreatePool: create_pool,
    JoinServer: servers.join_server,
    ServerUp: servers.server_up,
    ServerContact: servers.server_contact,
    RemoveServer: servers.remove_server,
    ReportGpus: servers.report_gpus,
    DrainServer: servers.drain_server,
    DrainGpu: gpu_drains.drain_gpu,
    LabelServer: servers.label_server,
    Grant: leases.grant,
    CancelRequest: leases.cancel_request,
    EndLease: leases.end_lease,
    NoteIdle: leases.note_idle,
    FreeLease: leases.free_lease,
    Wait: leases.wait,
    CreateToken: tokens.create_token,
    RevokeToken: tokens.revoke_token,
    RenewToken: tokens.renew_token,
    StagePart: uploads.stage_part,
    ApplyPolicy: apply_policy,
    RestoreBackup: restore_backup,
    GiveNotice: give_notice,
    Tick: tick,
    SetClock: clock_setting.set_clock,
    RotateCa: authorities.rotate_ca,
    RetireCa: authorities.retire_ca,
    ReportIssuer: authorities.report_issuer,
    SetSilence: silencing.set_silence,
    ForgetUser: kept_records.forget_user,
    SuspendLease: lease_suspensions.suspend_lease,
    ConfirmSuspended: lease_suspensions.confirm_suspended,
    RefuseSuspension: lease_suspensions.refuse_suspension,
    ResumeLease: lease_suspensions.resume_lease,
    ConfirmResumed: lease_suspensions.confirm_resumed,
    MoveLease: lease_moves.move_lease,
    RelocateLease: lease_relocations.relocate_lease,
    ConfirmRelocated: lease_relocations.confirm_relocated,
    RefuseRelocation: lease_relocations.refuse_relocation,
    NoteBackup: note_backup,
}


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
        """Return a hasher of the table of this moment, in pieces."""
        return TableHash(self.state)

    def restoring(self) -> PieceDecoder[PoolState]:
        """Return a decoder of a snapshot's table in pieces, on any thread; see ``adopt``."""
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
