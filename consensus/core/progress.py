"""How far the leader has got with one follower, and how much more it may send. Pure."""

from collections import deque
from enum import Enum

from gpupool.consensus.protocol.raft_settings import IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MESSAGES_MAX


class Mode(Enum):
    """What the leader knows of a follower's log; the states of etcd's ``tracker.Progress``.

    ::

        PROBE --(a message is accepted)--> REPLICATE --(rejected, or reconnected)--> PROBE
        PROBE or REPLICATE --(the entries needed are gone)--> SNAPSHOT --(installed)--> REPLICATE
    """

    PROBE = "probe"  # one message at a time until the logs are known to meet
    REPLICATE = "replicate"  # many messages at once, each assumed to arrive
    SNAPSHOT = "snapshot"  # the follower gets a whole table


class Progress:
    """Flow control towards one follower; the library keeps its next and match index."""

    def __init__(self) -> None:
        self.mode = Mode.PROBE
        self.probe_sent = False
        self.commit_sent = 0
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0

    def become(self, mode: Mode) -> None:
        """Change the mode; whatever was in flight is not waited for any more."""
        self.mode = mode
        self.probe_sent = False
        self.commit_sent = 0
        self._in_flight.clear()
        self._in_flight_bytes = 0

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
