"""A process that calls the driver's checkpoint functions, one after another, as its input says.

The driver may hang or crash in such a call, so neither a server nor its keeper makes it. One line
of input is a function, a process and a number; the answer is a line with the result and a value.
Started as ``python -P -m gpupool.remoting.host.suspension.driver_calls PARENT_PID``.
"""

import ctypes
import os
import signal
import sys

GET_STATE, LOCK, CHECKPOINT, RESTORE, UNLOCK = "GetState", "Lock", "Checkpoint", "Restore", "Unlock"

SUCCESS, NOT_SUPPORTED, NO_SUCH_FUNCTION = 0, 801, -1
"""Results: two of CUDA's, and that the library does not have the function."""

_PR_SET_PDEATHSIG = 1
_ARGUMENT_WORDS = 16
"""Of 8 bytes: far above the 64 bytes of any structure of arguments, all of it zeros."""


def main(parent_pid: int) -> None:
    """Answer until the input ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        return
    try:
        library = ctypes.CDLL("libcuda.so.1")
        result = int(library.cuInit(0))
    except (OSError, AttributeError):
        library, result = None, NO_SUCH_FUNCTION
    _answer(result, 0)
    for line in sys.stdin:
        name, process, number = line.split()
        _answer(*call(library, name, int(process), int(number)))


def call(library: ctypes.CDLL | None, name: str, process: int, number: int) -> tuple[int, int]:
    """Call one function; return its result, and the state for ``GetState``."""
    function = getattr(library, f"cuCheckpointProcess{name}", None)
    if function is None:
        return NO_SUCH_FUNCTION, 0
    if name == GET_STATE:
        state = ctypes.c_int(-1)
        return int(function(ctypes.c_int(process), ctypes.byref(state))), state.value
    arguments = (ctypes.c_uint64 * _ARGUMENT_WORDS)()
    if name == LOCK:
        arguments[0] = number  # milliseconds, in the lower half of the first word
    return int(function(ctypes.c_int(process), arguments)), 0


def _answer(result: int, value: int) -> None:
    os.write(1, f"{result} {value}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
