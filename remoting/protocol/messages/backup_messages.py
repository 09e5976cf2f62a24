"""The messages that make and restore a backup; operators only."""

from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.declaration import Answer, CallFor
from gpupool.remoting.protocol.messages.hello_messages import Done


@message(177)
class BackupIs(Answer):
    """The content of a backup's file."""

    data: bytes


@message(97, rights=Rights.OPERATOR)
class GetBackup(CallFor[BackupIs]):
    """Ask for a backup of the table, as it stands once this call is committed."""


@message(98, rights=Rights.OPERATOR)
class PutPart(CallFor[Done]):
    """Keep one part of a packed backup until ``RestoreBackup``."""

    upload: bytes  # 16 random bytes
    part: int  # from 0
    data: bytes


@message(99, rights=Rights.OPERATOR)
class RestoreBackup(CallFor[Done]):
    """Restore the backup from its parts in the table, whole or not at all."""

    upload: bytes
    part_count: int
    digest: bytes  # SHA-256 of all parts together
