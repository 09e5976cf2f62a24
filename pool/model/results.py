"""What ``apply`` answers: done, or refused with a kind that the client acts on."""

from dataclasses import dataclass

from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import PoolState


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one command. Of one that has changed nothing, ``why`` may say so.

    ``kind`` is empty when ``ok``; else "busy" (try later), "never" (nothing could ever fit),
    "denied" (a rule forbids it), "conflict" (the table has moved on: ask again), "closed" (the
    request was cancelled or its lease is over), "expired" or "invalid".
    """

    ok: bool
    kind: str = ""
    why: str = ""
    lease: LeaseId | None = None


def refuse(kind: str, why: str) -> Result:
    """Return a refusal."""
    return Result(ok=False, kind=kind, why=why)


Step = tuple[PoolState, Result]
"""The answer of every function that applies a command: the next table, and the result."""
