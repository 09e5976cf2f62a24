"""``apply(state, index, envelope)``: the one function that changes the table.

It is total and deterministic: it reads no clock and no random source, does no I/O, and returns a
new state and a result for every command. A refusal is a result, never an exception. ``HANDLERS``
names the function of each command.
"""

from collections.abc import Callable
from typing import Any

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
)
from gpupool.pool.model.forgetting import ForgetUser
from gpupool.pool.model.ids import LeaseId, Milliseconds, lease_name
from gpupool.pool.model.relocation import ConfirmRelocated, RefuseRelocation, RelocateLease
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import PoolState, with_changes
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
    accounts,
    authorities,
    clock_setting,
    gpu_drains,
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
from gpupool.pool.transitions.audit import emit_event, record
from gpupool.pool.transitions.backup import restore_backup


def apply(state: PoolState, index: int, envelope: Envelope) -> Step:
    """Return the state after ``envelope``, committed at ``index``, and its result."""
    if envelope.era != state.era:
        # Its stamp and its deadline are of a time that the pool does not have any more.
        why = "the pool's time was set after the command was stamped"
        return with_changes(state, index=index), refuse(RefusalKind.EXPIRED, why)
    # Time goes back by ``SetClock`` alone, whatever the clock of a proposer shows.
    now = Milliseconds(max(state.now, envelope.at))
    state = with_changes(state, index=index, now=now)
    state = uploads.lapse_staged(leases.lapse_waiting(state))
    if envelope.expires and now > envelope.expires:
        return state, refuse(RefusalKind.EXPIRED, "the command arrived after its deadline")
    command = envelope.command
    if state.moving is not None:
        state = clock_setting.moved_ahead(state, lease_of(state, command))
    return HANDLERS[type(command)](state, command)


def lease_of(state: PoolState, command: Command) -> LeaseId | None:
    """Return the one lease that a command may change; ``batches`` has those that change many."""
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
    ForgetUser: accounts.forget_user,
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
