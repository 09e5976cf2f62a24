"""Every constant of consensus, each with its reason."""

from dataclasses import dataclass

VOTERS_MAX = 7
"""More voters make each commit slower and no pool safer: seven survive the loss of three."""

COMMAND_BYTES_MAX = 32 * 1024
"""One command: a lease of 256 GPUs, or a server with 64 MIG instances, each named by 40 characters.
Below every batch size, so that no entry is ever split (finding L6)."""

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""One frame between peers; the links refuse anything longer before reading it."""

SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
"""A whole state. A pool of 1,000 servers needs about 1 MiB; beyond this somebody is lying."""

SNAPSHOT_CHUNK_BYTES = 512 * 1024
"""One piece of a snapshot in transit: small enough that heartbeats are not held up behind it."""

PROBE_BYTES_MAX = 64 * 1024
"""Bytes of entries sent to a follower with an unknown log: a wrong guess wastes no more than
this."""

BATCH_BYTES_MAX = 1024 * 1024
"""Bytes of entries in one message to a follower with a known log."""

IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
"""Entries sent to one follower and not acknowledged; beyond it the leader waits (finding L5)."""

IN_FLIGHT_MESSAGES_MAX = 256
"""The same in messages, for many tiny batches."""

QUEUE_COMMANDS_MAX = 10_000
"""Proposals of this server that are not decided yet. More would only wait longer than they may."""

APPLIED_AT_ONCE_MAX = 100
"""Entries that one step applies: 10 ms of grants."""

APPLYING_S_MAX = 0.005
"""After so long a step applies no further entry: some take as long as a hundred grants."""

UNCOMMITTED_ENTRIES_MAX = 10_000
"""Entries that a leader appends without hearing from a majority; beyond it proposals are refused.
At most 160 MiB of commands, and a second of the highest measured rate of commits."""

INBOX_BYTES_MAX = 64 * 1024 * 1024
"""Frames received and not processed yet; beyond it the connection ends, and begins anew."""

WAITING_PULLS_MAX = 4096
"""Servers without a vote that one voter keeps up to date; a pool has far fewer."""

RESERVE_BYTES = 8 * 1024 * 1024
"""Disk space kept in reserve, so that a full disk still lets the server stop in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSettings:
    """Durations in seconds of the server's own monotonic clock, and when to take a snapshot.

    The library insists that ``election_min_s`` exceeds three heartbeats.
    """

    heartbeat_s: float = 0.06
    """Three fit into the shortest election timeout, so that one late message never starts an
    election; and no more often than that, for heartbeats are all that an idle server costs."""

    election_min_s: float = 0.2
    """Silence after which a follower may ask around. The budget for a new leader is 0.5 s."""

    election_max_s: float = 0.4
    """Upper end of the draw. The spread must exceed a round trip with a disk sync by far, or
    candidates collide; 0.2 s is about forty of them on a LAN."""

    leader_fallback_s: float = 0.6
    """A leader that heard from no majority for so long steps down. Above ``election_max_s``, so
    that a leader never gives up before its followers would; the library's default is 30 s."""

    pull_wait_s: float = 0.5
    """How long a voter holds a pull of a server without a vote when there is nothing new."""

    pull_timeout_s: float = 1.5
    """Silence after which a server without a vote pulls from the next voter."""

    lost_s: float = 5.0
    """Without any answer for so long, a server without a vote asks every server it was told of:
    the voters that it knows may all have been replaced while it was away."""

    alive_s: float = 1.0
    """How often a server without a vote tells every voter that it lives; the pool declares a
    server unreachable after 10 s."""

    snapshot_entries: int = 10_000
    """Entries between snapshots: replaying twice as many takes well under a second."""

    snapshot_log_bytes: int = 16 * 1024 * 1024
    """The same in bytes of log, for large commands."""

    snapshots_per_rewrite: int = 4
    """The journal drops the entries of so many snapshots at once: writing it anew takes 10 ms and
    more, in which nothing is committed, however few of them it drops."""

    chunk_retry_s: float = 0.5
    """A snapshot piece without an answer for so long is sent again."""

    learner_lag_max: int = 1_000
    """Entries that a server may lack when it gets a vote: a voter that lacks the whole log
    counts for the majority, and would hold up every commit until it has caught up."""

    hand_over_retry_s: float = 0.5
    """Pause between attempts of a leader to pass its office on, in which proposals are accepted."""

    stopgap_retry_s: float = 60.0
    """The same for a leader that leads only while no other voter can. Each attempt that fails
    keeps all proposals waiting for ``election_max_s``."""

    compare_entries: int = 1_024
    """Entries in each comparison of results between servers; the same on all servers. A frame of 40
    bytes to each peer for each run, and 3 us for each entry."""
