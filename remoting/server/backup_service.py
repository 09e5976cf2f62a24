"""The calls about backups: make one, take its parts, restore it. Operators only."""

from gpupool.pool.errors import DeniedError, UsageError
from gpupool.pool.model import commands
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.backup import (
    Backup,
    BackupError,
    make_backup,
    restore_refusal,
    to_file,
    unpack,
)
from gpupool.pool.transitions.uploads import assemble
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.service_context import Client, Handler, ServiceContext

REFUSED = "the backup cannot be restored"
HINT = "restore into a pool that was made just now, before anything is decided in it"


class BackupService:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def handlers(self) -> dict[type[m.Call], Handler]:
        """Return the handler of each call that is served here."""
        return {
            m.GetBackup: self._get,
            m.PutPart: self._put_part,
            m.RestoreBackup: self._restore,
        }

    def _get(self, client: Client, call: int, _message: m.GetBackup) -> None:
        """Answer with a backup that holds everything committed before the call."""

        def then(_result: Result) -> m.Message:
            return m.BackupIs(to_file(make_backup(self._context.state)))

        self._context.propose_for(client, call, commands.NoteBackup(client.user), then)

    def _put_part(self, client: Client, call: int, message: m.PutPart) -> None:
        """Replicate one part of a backup; ``apply`` checks its size and number."""
        command = commands.StagePart(message.upload, message.part, message.data)

        def then(result: Result) -> m.Message:
            if not result.ok:
                raise DeniedError("the backup cannot be sent", why=result.why)
            return m.Done()

        self._context.propose_for(client, call, command, then)

    def _restore(self, client: Client, call: int, message: m.RestoreBackup) -> None:
        """Check the whole upload, and have it taken into the table."""
        context = self._context
        backup = _checked(context.state, message)

        def then(result: Result) -> m.Message:
            if not result.ok:
                raise DeniedError(REFUSED, why=result.why, hint=HINT)
            return m.Done(_summary(backup, context.state) if backup else "this backup before")

        command = commands.RestoreBackup(
            message.upload, message.part_count, message.digest, client.user
        )
        context.propose_for(client, call, command, then)


def _checked(state: PoolState, message: m.RestoreBackup) -> Backup | None:
    """Return the backup before it is proposed, so that nothing malformed enters the log.

    None when the same one was restored already, and only the answer was lost.
    """
    if state.former is not None and state.former.digest == message.digest:
        return None
    if why := restore_refusal(state):
        raise DeniedError(REFUSED, why=why, hint=HINT)
    _, data = assemble(state, message.upload, message.part_count, message.digest)
    if isinstance(data, Result):
        raise DeniedError(REFUSED, why=data.why)
    try:
        return unpack(data)
    except BackupError as error:
        raise UsageError(REFUSED, why=str(error)) from error


def _summary(backup: Backup, state: PoolState) -> str:
    policy = f"policy version {backup.policy.version}" if backup.policy.version else "no policy"
    here = len(backup.labels) - len(state.labels_awaited)
    labels = f"labels of {here} servers"
    if state.labels_awaited:
        labels += f" ({len(state.labels_awaited)} more when they have joined)"
    return f"{policy}, {len(backup.tokens)} tokens, {labels}, {len(backup.acts)} acts of the audit"
