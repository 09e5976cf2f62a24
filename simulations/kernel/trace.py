"""The trace of a run: a hash over every event, and a transcript of one line for each."""

import hashlib
import struct
from dataclasses import dataclass
from zlib import crc32

from gpupool.simulations.kernel.scheduler import Scheduler

LINE_COUNT_MAX = 500_000
"""Lines of one transcript; a run of 40 virtual seconds has a few thousand."""

_FRAME = struct.Struct("<dI")


@dataclass(frozen=True, slots=True)
class Line:
    """One event."""

    at: float  # virtual seconds
    subject: str  # "s2", "c7", "nemesis", "checker"
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:11.6f}  {self.subject:<8}  {self.kind:<12}  {self.text}"


class Trace:
    """The record of one run.

    ``digest()`` covers every line and every byte on every wire: two runs with the same digest did
    the same. Lines are always kept, since a run may fail at its end.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._hash = hashlib.sha256()
        self._checksums: dict[type[object], int] = {}
        self.lines: list[Line] = []

    def note(self, subject: str, kind: str, text: str = "") -> None:
        """Record one event."""
        now = self._scheduler.now
        self._hash.update(f"{now!r} {subject} {kind} {text}\n".encode())
        if len(self.lines) < LINE_COUNT_MAX:
            self.lines.append(Line(now, subject, kind, text))

    def frame(self, payload: object) -> None:
        """Record an arrived payload: in the hash only, for there is too much of it to read."""
        if type(payload) is bytes:
            checksum = crc32(payload)
        else:
            kind = type(payload)
            checksum = self._checksums.get(kind)
            if checksum is None:
                checksum = self._checksums[kind] = crc32(kind.__name__.encode())
        self._hash.update(_FRAME.pack(self._scheduler.now, checksum))

    def digest(self) -> str:
        """Return the hash of everything so far, in hex."""
        return self._hash.hexdigest()
