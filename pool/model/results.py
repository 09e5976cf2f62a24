"""Results of commands: done, or refused with a kind that the client acts on."""

from dataclasses import dataclass
from enum import StrEnum

from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import PoolState


class RefusalKind(StrEnum):
    """Why a command or a request is refused, as a client acts on it.

    Tables and messages carry the value as a plain string, so that a program can pass on a kind that
    only a newer one knows.
    """

    BUSY = "busy"  # try later
    NEVER = "never"  # nothing could ever fit
    DENIED = "denied"  # a rule forbids it
    CONFLICT = "conflict"  # the table has changed: ask again
    CLOSED = "closed"  # the request was cancelled, or its lease is over
    EXPIRED = "expired"  # the command came after its deadline
    CLOCK = "clock"  # the leader's voters' clocks forbid it
    INVALID = "invalid"  # the command is malformed
    NO_QUORUM = "no-quorum"  # the server is not in touch with a majority, so it proposes nothing


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one command. Of one that has changed nothing, ``why`` may say so.

    ``kind`` is empty when ``ok``, and else the value of a ``RefusalKind``.
    """

    ok: bool
    kind: str = ""
    why: str = ""
    lease: LeaseId | None = None


def refuse(kind: RefusalKind, why: str) -> Result:
    """Return a refusal."""
    return Result(ok=False, kind=kind.value, why=why)


Step = tuple[PoolState, Result]
"""The answer of every function that applies a command: the next table, and the result."""
