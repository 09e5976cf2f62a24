"""A process that calls the driver's checkpoint functions, one after another, as its input says.

The driver may hang or crash in such a call, so neither a server nor its privileged helper makes it.
One line of input is a function, a process and a number, and for a restoration on other GPUs pairs
of them (``OLD=NEW,...``); the answer is a line with the result and a value. Started as ``python -P
-m gpupool.remoting.host.suspension.driver_calls PARENT_PID``.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence

GET_STATE, LOCK, CHECKPOINT, RESTORE, UNLOCK = "GetState", "Lock", "Checkpoint", "Restore", "Unlock"

SUCCESS, NOT_SUPPORTED, NO_SUCH_FUNCTION = 0, 801, -1
"""Results: two of CUDA's, and that the library does not have the function."""

PAIRS_AS_GIVEN, PAIRS_FOR_NAMED, PAIRS_FOR_ALL = 0, 1, 2
"""Numbers for a restoration: the pairs that are given, or those that also bring every other GPU
somewhere, of those that they name, or of this machine."""

_UUID_SIZE = 16
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
        name, process, number, *pairs = line.split()
        moves = dict(pair.split("=") for pair in pairs[0].split(",")) if pairs else {}
        _answer(*call(library, name, int(process), int(number), moves))


class _RestoreArguments(ctypes.Structure):
    """``CUcheckpointRestoreArgs``."""

    _fields_ = [
        ("pairs", ctypes.c_void_p),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_char * 44),
        ("reserved1", ctypes.c_uint64),
    ]


def call(
    library: ctypes.CDLL | None,
    name: str,
    process: int,
    number: int,
    moves: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Call one function; return its result, and the state for ``GetState``."""
    function = getattr(library, f"cuCheckpointProcess{name}", None)
    if function is None:
        return NO_SUCH_FUNCTION, 0
    if name == GET_STATE:
        state = ctypes.c_int(-1)
        return int(function(ctypes.c_int(process), ctypes.byref(state))), state.value
    if name == RESTORE and moves and library is not None:
        named = {_uuid_bytes(old): _uuid_bytes(new) for old, new in moves.items()}
        every: Sequence[bytes] = ()
        if number == PAIRS_FOR_NAMED:
            every = sorted({*named, *named.values()})
        elif number == PAIRS_FOR_ALL:
            every = _uuids(library)
        pairs = b"".join(old + new for old, new in permutation(named, every).items())
        buffer = ctypes.create_string_buffer(pairs, len(pairs))
        count = len(pairs) // (2 * _UUID_SIZE)
        restore = _RestoreArguments(ctypes.addressof(buffer), count)
        return int(function(ctypes.c_int(process), ctypes.byref(restore))), 0
    arguments = (ctypes.c_uint64 * _ARGUMENT_WORDS)()
    if name == LOCK:
        arguments[0] = number  # milliseconds, in the lower half of the first word
    return int(function(ctypes.c_int(process), arguments)), 0


def permutation(named: Mapping[bytes, bytes], every: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return pairs for all GPUs: those that are named; others stay, or take places that are left.

    The driver wants each GPU that it had for a process once as an old one and once as a new one.
    """
    goes = dict(named)
    left = [gpu for gpu in every if gpu not in goes]
    free = [gpu for gpu in every if gpu not in goes.values()]
    goes |= {gpu: gpu for gpu in left if gpu in free}
    places = [gpu for gpu in free if gpu not in goes.values()]
    # A GPU that is named and is not this machine's leaves one without a place; it stays.
    for gpu in left:
        if gpu not in goes:
            goes[gpu] = places.pop(0) if places else gpu
    return goes


def _uuid_bytes(text: str) -> bytes:
    """Return the bytes of a GPU's identifier as NVML writes it: ``GPU-0116022a-9cd6-...``."""
    return bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))


def _uuids(library: ctypes.CDLL) -> list[bytes]:
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    found: list[bytes] = []
    for ordinal in range(count.value):
        uuid = ctypes.create_string_buffer(_UUID_SIZE)
        if library.cuDeviceGetUuid_v2(uuid, ordinal) == SUCCESS:
            found.append(uuid.raw)
    return found


def _answer(result: int, value: int) -> None:
    os.write(1, f"{result} {value}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
