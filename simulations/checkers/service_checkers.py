"""Checkers of service: the recipients of servers' messages, their rights, and message sizes.

They see each message of a server at the moment at which it leaves.
"""

from collections import Counter
from collections.abc import Callable

from gpupool.consensus.protocol import raft_settings
from gpupool.pool.model.commands import Envelope, RevokeToken
from gpupool.pool.model.ids import TokenId
from gpupool.pool.model.state import Lease, PoolState
from gpupool.pool.view import MAJORITY_FRESH_S
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.framing import (
    ANSWER_SIZE_MAX,
    REQUEST_SIZE_MAX,
    UNAUTHENTICATED_SIZE_MAX,
    FrameTooLargeError,
)
from gpupool.simulations.checkers.late_commands import is_late
from gpupool.simulations.kernel.failure_reporter import FailureReporter

SERVED_S = MAJORITY_FRESH_S * 1.05 + 0.2
"""For so long a server without news may serve a token that is revoked: the fastest drift of clocks
against each other, and a step of a server, on top of the time that counts as fresh."""

DOUBTFUL_S = 15.0
"""After clocks ran at rates that real ones do not have, for so long ages cannot be judged."""


class RevokedUnserved:
    """Soon after its revocation is committed, no server serves a token, in touch or not.

    A server that is in touch with a majority refuses its connections. One that is not gives it
    no offer and no session.
    """

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._revoked_at: dict[TokenId, float] = {}
        self._doubtful_until = 0.0

    def applied(self, envelope: Envelope, before: PoolState, now: float) -> None:
        """Take note of a command that was applied for the first time at ``now``."""
        if isinstance(envelope.command, RevokeToken) and not is_late(envelope, before):
            self._revoked_at.setdefault(envelope.command.token, now)

    def clocks_differ(self, until: float) -> None:
        """Take note that clocks run at different rates: ages are wrong by more than is allowed."""
        self._doubtful_until = max(self._doubtful_until, until + DOUBTFUL_S)

    def is_doubtful(self, now: float) -> bool:
        """Return whether ages may still be wrong: a leader's slow clock makes it seem late."""
        return now <= self._doubtful_until

    def sent(
        self,
        server: str,
        token: TokenId,
        message: m.Message,
        majority_age_s: Callable[[], float],
        now: float,
    ) -> None:
        """Judge a message to a connection that was opened with ``token``."""
        # To say that something is over gives nothing: a server that comes back into touch says so.
        if not self._is_over(token, now) or isinstance(
            message, m.Refused | m.Dismissed | m.LeaseEnded
        ):
            return
        # A session that it has begun to open may be answered late: see ``starts``.
        if isinstance(message, m.SessionOpened):
            return
        gives = isinstance(message, m.Offered) and message.offer is not None
        if gives or majority_age_s() < MAJORITY_FRESH_S:
            since_s = now - self._revoked_at[token]
            what = type(message).__name__
            text = f"{server} answers token {token} with {what}, {since_s:.1f} s after its end"
            self._failures.fail("revoked-unserved", text)

    def starts(self, server: str, lease: Lease, now: float) -> None:
        """Judge the start of a session."""
        if self._is_over(lease.token, now):
            since_s = now - self._revoked_at[lease.token]
            text = f"{server} starts a session of lease {lease.id}, whose token was revoked "
            self._failures.fail("revoked-unserved", f"{text}{since_s:.1f} s ago")

    def _is_over(self, token: TokenId, now: float) -> bool:
        revoked_at = self._revoked_at.get(token)
        return revoked_at is not None and now > revoked_at + SERVED_S and not self.is_doubtful(now)


OVERHEAD = 2
"""Batches count the commands of their entries alone: small ones are twice as large on the way."""

ENCODE_EVERY = 24
"""Control messages travel as objects here: of each kind so many are encoded, to see their size."""


class MessageSizes:
    """No server or client sends a message that the other side would refuse for its size."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._counts: Counter[type[m.Message]] = Counter()
        self.frame_max = 0
        """The largest frame between servers."""
        self.message_max = 0
        """The largest control message of those that were encoded."""

    def frame(self, server: str, frame: bytes) -> None:
        """Judge a frame to another server: a batch of entries is the largest."""
        size = len(frame)
        if size <= self.frame_max:
            return
        self.frame_max = size
        # The first entry of a batch may be larger than batches are, in runs with small ones.
        largest = OVERHEAD * raft_settings.BATCH_BYTES_MAX + raft_settings.COMMAND_BYTES_MAX
        if size > largest:
            text = f"{server} sends a frame of {size} bytes to another server"
            self._failures.fail("size-bounds", text)

    def message(self, sender: str, message: m.Message, *, from_server: bool) -> None:
        """Judge a control message."""
        kind = type(message)
        self._counts[kind] += 1
        if self._counts[kind] % ENCODE_EVERY != 1 and not isinstance(message, m.PutPolicy):
            return
        size_max = ANSWER_SIZE_MAX
        if not from_server:
            opening = isinstance(message, m.Hello)
            size_max = UNAUTHENTICATED_SIZE_MAX if opening else REQUEST_SIZE_MAX
        try:
            size = len(m.to_frame(1, message, size_max=size_max))
        except FrameTooLargeError as error:
            text = f"{sender} sends a {kind.__name__} that is too large: {error.why}"
            self._failures.fail("size-bounds", text)
            return
        self.message_max = max(self.message_max, size)


class OneServes:
    """A copied state directory never serves, and the original goes on."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self.excused: set[str] = set()
        """Copies that may have passed for a restart of their originals."""

    def clone_acts(self, clone: str, what: str) -> None:
        """Fail for something that only one process of a server may do."""
        if clone not in self.excused:
            self._failures.fail("one-serves", f"{clone}, a copy of a server that runs, {what}")

    def ended(self, original: str, clone: str) -> None:
        """Fail because the original was refused in the place of its copy."""
        if clone not in self.excused:
            text = f"{original} had to end, and its copy {clone} goes on"
            self._failures.fail("one-serves", text)

    def left_behind(self, server: str) -> None:
        """Fail because a server goes on that ``gpupool recover`` left behind."""
        text = f"{server} goes on, although the pool was recovered without it"
        self._failures.fail("one-serves", text)
