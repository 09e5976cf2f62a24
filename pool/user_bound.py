"""How many of one thing a user may have at a server, and how many of them by one token.

The bound of a user counts all of their tokens together: one who has several tokens gets no more.
The bound of a token is lower, so a token that leaks, or a program that asks without end, leaves
room for the user's other tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpupool.pool.model.ids import TokenId


class Holder(NamedTuple):
    """The user and the token by which one thing is held."""

    user: str
    token: TokenId


@dataclass(frozen=True, slots=True)
class UserBound:
    """The most of one thing for a user, and for one token."""

    user: int
    token: int

    def reached(self, holder: Holder, held: Iterable[Holder]) -> str:
        """Return a text about the bound that ``holder`` has reached with ``held``, or nothing."""
        tokens = [each.token for each in held if each.user == holder.user]
        return self.reached_by(holder, len(tokens), tokens.count(holder.token))

    def reached_by(self, holder: Holder, of_user: int, of_token: int) -> str:
        """Return the same from the counts of the user and of the token."""
        if of_user >= self.user:
            return f"{holder.user} has {of_user}"
        if of_token >= self.token:
            return f"token {holder.token} of {holder.user} has {of_token}"
        return ""
