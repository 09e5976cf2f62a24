"""Silences: findings and alerts that an operator knows of, so that nobody is woken by them."""

from dataclasses import dataclass

from gpupool.pool.model.ids import Milliseconds

SILENCE_COUNT_MAX = 256
SILENCE_MAX_MS = 90 * 86_400_000
"""A silence for longer is a check that is turned off and forgotten."""

SILENCE_NAME_MAX = 64
SILENCE_SUBJECT_MAX = 200


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence; of those for the same thing the latest counts."""

    check: str  # a check's or a rule's name
    server: str  # its name; empty: any
    subject: str  # as the finding has it; empty: any
    until: Milliseconds
    reason: str
    by: str
    at: Milliseconds
    lifted: bool = False
    """It is kept until it lapses, so that a late repetition of its order does nothing."""
    orders: tuple[bytes, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the silence's check, server and subject."""
        return self.check, self.server, self.subject


def silence_scope(server: str, subject: str) -> str:
    """Return on which server and of which subject a silence is; empty when it is of all."""
    parts = (f"on {server}" if server else "", f"({subject})" if subject else "")
    return " ".join(part for part in parts if part)
