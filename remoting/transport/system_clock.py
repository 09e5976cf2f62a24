"""The clocks and the randomness of this machine: ``Clock`` and ``Randomness`` of ``pool/ports.py``.

Clients and servers are given them at their start; the simulator gives its own.
"""

import os
import random
import time


class SystemClock:
    """The clocks of this machine."""

    monotonic = staticmethod(time.monotonic)
    """Returns seconds that never go back."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


class SystemRng:
    """Random numbers from the operating system."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def random(self) -> float:
        """Return a float in [0, 1)."""
        return self._random.random()

    def randbytes(self, n: int, /) -> bytes:
        """Return ``n`` random bytes."""
        return os.urandom(n)
