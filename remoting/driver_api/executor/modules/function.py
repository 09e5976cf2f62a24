"""A kernel of a client, prepared for its launches."""

import ctypes
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Function:
    """A kernel with everything that a launch needs, prepared."""

    handle: int
    kernel: bool
    size: int
    view: memoryview  # of the parameters' bytes, which lie at ``values``
    values: int
    pointers: int  # to one address for each parameter
    keep: tuple[Any, ...]
    offsets: tuple[int, ...]  # of the parameters

    def parameters_of(self, given: bytes) -> tuple[Any, Any]:
        """Return a copy of the parameters' bytes, and a pointer to each parameter."""
        values = ctypes.create_string_buffer(given, max(len(given), 1))
        base = ctypes.addressof(values)
        addresses = [base + offset for offset in self.offsets]
        return values, (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
