"""Every error that a user may see: the failure, its reason, a hint, and the exit code."""

from enum import IntEnum
from typing import cast


class ExitCode(IntEnum):
    """Exit codes of ``gpupool``; the program's own code and 128+n pass through ``run``."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNHEALTHY = 3
    NOT_NOW = 75
    RUN_FAILED = 125
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


class GpupoolError(Exception):
    """Base of all our errors.

    Args:
        what: one clause that says what happened.
        why: the cause, as far as it is known.
        hint: what the user can do next.
    """

    exit_code: ExitCode = ExitCode.FAILED
    code: str = "failed"

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what if not why else f"{what}: {why}")
        self.what = what
        self.why = why
        self.hint = hint


class UsageError(GpupoolError):
    """The command line or a configuration value makes no sense."""

    exit_code = ExitCode.USAGE
    code = "usage"


class UnknownNameError(GpupoolError):
    """The pool has no server, lease or the like of this name, or has it no more."""

    code = "unknown-name"


class UnreachableError(GpupoolError):
    """No server of the pool answered."""

    code = "unreachable"


class AuthenticationError(GpupoolError):
    """A token, certificate or identity was refused."""

    code = "authentication"


class DeniedError(GpupoolError):
    """The pool's rules forbid this; ``why`` names the rule."""

    code = "denied"


class ConflictError(GpupoolError):
    """Somebody else has changed the same thing meanwhile."""

    code = "conflict"


class NeverFitsError(GpupoolError):
    """Nothing in the pool could ever satisfy the request."""

    code = "never"


class NotNowError(GpupoolError):
    """No GPU is free, and the user did not want to wait (any longer)."""

    exit_code = ExitCode.NOT_NOW
    code = "busy"


class NoQuorumError(GpupoolError):
    """The server asked is not in touch with a majority of the voters."""

    exit_code = ExitCode.UNHEALTHY
    code = "no-quorum"


class LeaseLostError(GpupoolError):
    """The lease ended while the program still ran."""

    exit_code = ExitCode.RUN_FAILED
    code = "lease-lost"


class LeaseSuspendedError(GpupoolError):
    """The lease is suspended; the same request can be made again."""

    exit_code = ExitCode.NOT_NOW
    code = "lease-suspended"


class StorageError(GpupoolError):
    """The state directory cannot be read or written, or holds damaged data."""

    code = "storage"


class NoRoomError(StorageError):
    """The disk is full. The same data may be written again, once there is room."""


class ProtocolError(GpupoolError):
    """Base of the errors between two ends of a connection."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """We broke the rules of the protocol: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the rules of the protocol."""


def first_error(group: BaseException) -> BaseException:
    """Return the most important error of a group: a bug, else an interrupt, else one of ours."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    group = cast("BaseExceptionGroup[BaseException]", group)
    leaves = [first_error(each) for each in group.exceptions]

    def weight(error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return 1
        return 2 if isinstance(error, GpupoolError) else 0

    return min(leaves, key=weight)
