"""Faults of single frames, which TCP and TLS forbid: consensus must hold without their promises."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

Tamper = Callable[[str, str, bytes], bytes | None]
"""Called with the machine that sends, the one that receives, and the frame; None loses it."""

Kind = Literal["lose", "truncate", "flip", "duplicate", "reorder", "reset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameChances:
    """The chance of each fault, for each frame."""

    lose: float = 0.0
    truncate: float = 0.0  # to a part of it, which may be empty
    flip: float = 0.0  # one bit
    duplicate: float = 0.0
    reorder: float = 0.0  # the frame is late, and those behind it are not
    reset: float = 0.0  # the connection breaks
    late_s: float = 0.3  # the most by which a repeated or reordered frame is late


class FrameFaults:
    """The faults of all frames of bytes in a network: by chance, or by a test's own ``tamper``.

    A chance of nothing draws nothing, so that one kind of fault leaves the others as they were.
    """

    def __init__(
        self, random: Random, chances: FrameChances | None = None, *, tamper: Tamper | None = None
    ) -> None:
        self._random = random
        self.chances = chances or FrameChances()
        self.tamper = tamper
        self.counts: Counter[Kind] = Counter()
        """How often each fault happened by chance."""

    def damaged(self, source: str, target: str, frame: bytes) -> bytes | None:
        """Return what is left of a frame; None when it is lost."""
        if self.tamper is not None:
            changed = self.tamper(source, target, frame)
            if changed is None:
                return None
            frame = changed
        if self._happens("lose"):
            return None
        if frame and self._happens("truncate"):
            frame = frame[: self._random.randrange(len(frame))]
        if frame and self._happens("flip"):
            position = self._random.randrange(len(frame))
            flipped = frame[position] ^ (1 << self._random.randrange(8))
            frame = frame[:position] + bytes([flipped]) + frame[position + 1 :]
        return frame

    def breaks(self) -> bool:
        """Return whether a frame finds its connection broken."""
        return self._happens("reset")

    def late_s(self) -> float:
        """Return by how much a frame is late, in no order with the others; 0 for one in order."""
        return self._draw_late_s() if self._happens("reorder") else 0.0

    def again_s(self) -> float | None:
        """Return how long after its time a frame arrives once more; None when it does not."""
        return self._draw_late_s() if self._happens("duplicate") else None

    def _happens(self, kind: Kind) -> bool:
        chance: float = getattr(self.chances, kind)
        if not chance or self._random.random() >= chance:
            return False
        self.counts[kind] += 1
        return True

    def _draw_late_s(self) -> float:
        return self.chances.late_s * (1.0 - self._random.random())
