"""Results as JSON carries them, the same for commands, for files and for the page."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

from gpupool.pool.model.ids import LeaseId, lease_name


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON values: dataclasses as objects, bytes as hex.

    Fields that are leases have their names, as commands take them. A number would be read as the
    name of another lease.
    """
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _field(f.type, getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no infinity
    return value


def _field(kind: object, value: Any) -> Any:
    if kind is LeaseId:
        return lease_name(value)
    return to_plain([lease_name(each) for each in value] if kind == tuple[LeaseId, ...] else value)
