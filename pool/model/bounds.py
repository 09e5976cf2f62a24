"""Bounds of message fields, declared at the fields: ``name: Annotated[str, Bound(64)]``.

``codec`` refuses what is beyond a bound, whoever has sent it, and our own ends do not send it. What
is only told, such as a figure or a line for a log, is trimmed when it is sent. So nothing that a
process says which is trusted with less has a size that nobody has thought of.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId

SIGNED_MAX = 2**63 - 1
"""The largest integer of SQLite."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The range of a number, or of the length of a text, of bytes, a list or a map."""

    most: int
    least: int = 0
    trims: bool = False  # what is sent is brought within it, and not refused

    def trimmed(self, value: Any) -> Any:
        """Return the nearest number, or the beginning of a text, that is within it."""
        if isinstance(value, int | float):
            return min(max(value, self.least), self.most) if value == value else 0.0  # not NaN
        return value[: self.most]


Count = Annotated[int, Bound(2**56, trims=True)]  # what only grows
Figure = Annotated[float, Bound(2**53, -(2**53), trims=True)]
Microseconds = Annotated[int, Bound(2**43, trims=True)]
Uint32 = Annotated[int, Bound(2**32 - 1, trims=True)]  # as the kernel counts
Int = Annotated[int, Bound(SIGNED_MAX, -SIGNED_MAX, trims=True)]
Time = Annotated[Milliseconds, Bound(SIGNED_MAX, -SIGNED_MAX, trims=True)]
Number = Annotated[int, Bound(SIGNED_MAX)]
AskedTime = Annotated[Milliseconds, Bound(SIGNED_MAX, -SIGNED_MAX)]  # of a question: never changed
AskedLease = Annotated[LeaseId, Bound(SIGNED_MAX)]
LeaseNumber = Annotated[LeaseId, Bound(SIGNED_MAX, trims=True)]
Name = Annotated[str, Bound(256)]
GpuKey = Annotated[GpuId, Bound(256)]
ServerKey = Annotated[ServerId, Bound(256)]
Line = Annotated[str, Bound(2003, trims=True)]  # as ``worker_messages.shortened`` leaves
PathText = Annotated[str, Bound(4096)]
Digits = Annotated[str, Bound(256)]  # an exact sum, too large for an integer
Digest = Annotated[bytes, Bound(64)]
Blob = Annotated[bytes, Bound(64 * 1024)]  # a key, or certificates

# What the table may hold already, which no bound may refuse: no command has more.
Kept = Annotated[int, Bound(2**64 - 1, 1 - 2**64)]
KeptTime = Annotated[Milliseconds, Bound(2**64 - 1, 1 - 2**64)]
KeptLease = Annotated[LeaseId, Bound(2**64 - 1)]
Text = Annotated[str, Bound(1 << 20)]
