"""The pool's policy as data: limits of users and classes on GPUs, times and durations.

A policy is written as one TOML document (``policy_document`` reads it), and in force as the frozen
dataclasses below, which are what the table holds. ``rulebook`` answers questions about it. Every
key of the document becomes one ``Rule`` that knows its line, so that whatever is refused can name
the rule. Times of day are wall time of a named zone. ``apply`` must evaluate them alike on every
server, and databases of time zones differ, so the policy carries a table of each zone that it
names, made by the server that proposed it.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import Milliseconds

UNIT = 10**12
"""Shares of GPUs are counted in integers: a whole GPU has so many units.

A partition counts as ``memory * UNIT // capacity``. Rounding down loses less than a byte of a GPU
of 1 TiB for each partition, so that 1 + 0.75 + 0.75 is never more than 2.5, and nobody gains by it.
"""

MILLI = UNIT // 1000
"""Limits are written with three decimals at most."""

NO_LIMIT = -1
"""The number of a rule with the value "none"."""

MIN_RUN_MS = 10 * 60_000
"""Between two suspensions of one lease, unless ``min_run_time`` says otherwise."""

POLICY_COUNT_MAX = 32
"""Documents kept in the history, the one in force included."""

TEXT_SIZE_MAX = 256 * 1024
"""Bytes of a document; 500 rules need about 30 KiB."""

PACKED_SIZE_MAX = 48 * 1024
"""Bytes of a compressed document: a client's message has 64 KiB, and the history stays small."""


class DataEncryption(StrEnum):
    """Whether the data of programs is encrypted on TCP; control always is.

    Fields of it are strings, because a lease's may be empty: as the pool has it.
    """

    TLS = "tls"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Rule:
    """One key of the document, such as ``max_gpus`` in ``[class.students]`` at line 12."""

    target: str  # "defaults", "pool", "class" or "user"
    name: str  # of the class or user; empty for the other two
    key: str
    line: int
    number: int = 0  # thousandths of a GPU, bytes, milliseconds or a plain number; NO_LIMIT
    words: tuple[str, ...] = ()  # of the keys that take words


@dataclass(frozen=True, slots=True)
class Zone:
    """Offsets from UTC of one time zone, for the years around a policy's making."""

    name: str
    changes: tuple[int, ...]  # ms since the epoch at which each further offset begins
    offsets: tuple[int, ...]  # seconds east of UTC; one more than changes


@dataclass(frozen=True, slots=True)
class Span:
    """When something holds: on days of the week between two times, or once between two dates."""

    zone: str
    start: int  # ms since local midnight; for once ms since the epoch, as if local time were UTC
    end: int  # not after ``start`` when it is over on the next day
    days: tuple[int, ...] = ()  # on which it starts, Monday is 0; empty for every day
    once: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Rules that take the place of others for some hours."""

    name: str
    line: int
    span: Span
    rules: tuple[Rule, ...]
    ends_leases: bool = False  # those that the rules allow no more, once it has opened or closed
    grace_ms: int = 0  # for such leases, from the notice on
    suspends_leases: bool = field(default=False, metadata=OPTIONAL)  # instead of ending them


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs that are kept for a class; they count as taken for everybody else."""

    name: str
    line: int
    group: str
    gpu_count: int
    span: Span
    gpus: tuple[str, ...] = ()  # globs of GPU names; empty for any
    servers: tuple[str, ...] = ()  # globs of labels as key=value; empty for any


@dataclass(frozen=True, slots=True)
class Membership:
    """A glob of user names in a class; the first match counts, exact names first."""

    user: str
    group: str
    line: int


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy; version 0 is the one of a pool that was never given any: no limits."""

    version: int = 0
    digest: bytes = b""  # SHA-256 of what the version was made of
    rules: tuple[Rule, ...] = ()
    windows: tuple[Window, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    members: tuple[Membership, ...] = ()
    zones: dict[str, Zone] = field(default_factory=dict[str, Zone])


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One document of the history, for people."""

    version: int
    by: str
    at: Milliseconds
    packed: bytes  # the text, deflated


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums of all live leases of one user that limits count."""

    units: int = 0
    memory: int = 0  # bytes
    leases: int = 0
