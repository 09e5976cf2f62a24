"""Options of the driver's compiler, and what it says."""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

INFO_LOG, INFO_LOG_SIZE, ERROR_LOG, ERROR_LOG_SIZE = 3, 4, 5, 6

PASSED_ON = (0, 1, 7, 11, 12, 13)
"""By CUjit_option: registers, threads, optimisation, debug information, a verbose log, lines."""

LOG_SIZE = 32768


class Options:
    """Arrays of options and their values; they must stay as long as the driver may write logs."""

    def __init__(self, given: Sequence[int]) -> None:
        """Take one more than the value of each of PASSED_ON, or 0."""
        self._logs = [ctypes.create_string_buffer(LOG_SIZE) for _ in range(2)]
        pairs = [(name, word - 1) for name, word in zip(PASSED_ON, given, strict=True) if word]
        pairs += [(INFO_LOG, ctypes.addressof(self._logs[0])), (INFO_LOG_SIZE, LOG_SIZE)]
        pairs += [(ERROR_LOG, ctypes.addressof(self._logs[1])), (ERROR_LOG_SIZE, LOG_SIZE)]
        self.count = len(pairs)
        self.names: Any = (ctypes.c_int * len(pairs))(*[name for name, _ in pairs])
        self.values: Any = (ctypes.c_size_t * len(pairs))(*[value for _, value in pairs])

    def said(self) -> bytes:
        """Return both logs, each behind its size."""
        texts = [log.raw.partition(b"\0")[0][: LOG_SIZE - 1] for log in self._logs]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
