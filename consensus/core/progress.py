"""The leader's progress with one follower: how far it has got, how much more it may send. Pure."""

from collections import deque
from enum import Enum
from typing import NamedTuple

from gpupool.consensus.protocol.raft_settings import IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MESSAGES_MAX

ASKED_MAX = 4096
"""Messages without an answer that one follower is remembered by: minutes of heartbeats."""

REJECTIONS_AT_ONCE = 64
"""Rejections of one follower that are answered at once. A log that differs takes one for each of
its terms that nobody else has: a few. One that goes on rejecting has a fault, and would get
messages as fast as it answers; it gets one for each heartbeat."""


class Mode(Enum):
    """The leader's knowledge of a follower's log; the states of etcd's ``tracker.Progress``.

    ::

        PROBE --(a message is accepted)--> REPLICATE --(rejected, or reconnected)--> PROBE
        PROBE or REPLICATE --(the entries needed are gone)--> SNAPSHOT --(installed)--> REPLICATE
    """

    PROBE = "probe"  # one message at a time until the logs are known to meet
    REPLICATE = "replicate"  # many messages at once, each assumed to arrive
    SNAPSHOT = "snapshot"  # the follower gets a whole table


class _Asked(NamedTuple):
    """A message that a follower answers, and when it was sent; a heartbeat has -1 and -1."""

    previous_index: int
    last_index: int
    sent_at: float


class Progress:
    """Flow control towards one follower; the library keeps its next and match index."""

    def __init__(self) -> None:
        self.mode = Mode.PROBE
        self.probe_sent = False
        self.rests = False
        """True while the next probe waits for a heartbeat."""
        self.commit_sent = 0
        self._patience = REJECTIONS_AT_ONCE
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0
        self._asked: deque[_Asked] = deque()

    def become(self, mode: Mode) -> None:
        """Change the mode, and forget the messages in flight."""
        self.mode = mode
        self.probe_sent = self.rests = False
        self.commit_sent = 0
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def rejected(self) -> None:
        """Probe again, at once if this follower has not rejected too often of late."""
        self.become(Mode.PROBE)
        self.rests = not self._patience
        self._patience = max(0, self._patience - 1)

    def heartbeat(self) -> None:
        """Note that a heartbeat is due: one more rejection may be answered at once."""
        self._patience = min(self._patience + 1, REJECTIONS_AT_ONCE)

    def has_room(self) -> bool:
        """Tell whether another message with entries may go out."""
        return (
            len(self._in_flight) < IN_FLIGHT_MESSAGES_MAX
            and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX
        )

    def sent(self, last_index: int, size: int) -> None:
        """Note a message with entries up to ``last_index``."""
        self._in_flight.append((last_index, size))
        self._in_flight_bytes += size

    def acknowledged(self, match_index: int) -> None:
        """Note that the follower has everything up to ``match_index``."""
        while self._in_flight and self._in_flight[0][0] <= match_index:
            self._in_flight_bytes -= self._in_flight.popleft()[1]

    # --- what the answers are answers to -----------------------------------------------------

    def asked(self, previous_index: int, last_index: int, now: float) -> None:
        """Note a message that will be answered; of a silent follower the oldest ones."""
        if len(self._asked) < ASKED_MAX:
            self._asked.append(_Asked(previous_index, last_index, now))

    def connection_begins(self) -> None:
        """Forget unanswered messages of the previous connection: their answers never come."""
        self._asked.clear()

    def sent_at(self, *, match: int = -1, rejected: int = -1) -> float | None:
        """Return when the message was sent that is answered now.

        Answers come in the order of the messages, and each fits its message: it matches up to
        ``match``, or was ``rejected``, or was a heartbeat. The first that fits is the one, or an
        earlier one whose answer was lost; never a later one.
        """
        for position, (previous_index, last_index, sent_at) in enumerate(self._asked):
            if 0 <= last_index <= match if match >= 0 else previous_index == rejected:
                for _ in range(position + 1):
                    self._asked.popleft()
                return sent_at
        return None
