"""Names of the things in a pool, and small value types that every folder shares."""

from typing import NewType, TypeAlias

ServerId = NewType("ServerId", str)
"""A server's identity for life: 12 lowercase hex digits, drawn when it joins, never reused."""

GpuId = NewType("GpuId", str)
"""NVML's UUID of a GPU or MIG instance, or ``EMU-...`` for an emulated one."""

EMULATED_PREFIX = "EMU-"
"""The ids of emulated GPUs begin so, and no others do."""

LeaseId = NewType("LeaseId", int)
"""The Raft index of the committed grant, which is the lease's fencing token as well."""

RequestId = NewType("RequestId", bytes)
"""16 random bytes made by the client: one request has at most one live lease."""

TokenId = NewType("TokenId", str)
"""Public name of a token: 12 lowercase hex digits."""

Incarnation = NewType("Incarnation", int)
"""How many times a server's process has started; grows by one at each start."""

Milliseconds = NewType("Milliseconds", int)
"""Table time: milliseconds since the Unix epoch, never decreasing along the log."""

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""The closed set of values that may cross a wire or enter the log; CBOR carries exactly these."""


def lease_name(lease_id: LeaseId) -> str:
    """Return the short name that people see and type for a lease, such as ``7f3a``."""
    return f"{lease_id:04x}"
