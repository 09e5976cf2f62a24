"""The worker's own libnccl.so.2, by its C interface."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

SUCCESS, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = range(7)
ID_SIZE = 128
ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE = range(7)
"""Kinds of operations."""

KINDS = range(7)

LIBRARY = "libnccl.so.2"
CONFIG_MAGIC, CONFIG_VERSION = 0xCAFEBEEF, 21800


class NcclMissingError(Exception):
    """There is no NCCL on this server."""


class NcclError(Exception):
    """NCCL refused, or failed; ``result`` is its ncclResult_t."""

    def __init__(self, result: int) -> None:
        super().__init__(f"NCCL failed with {result}")
        self.result = result


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``, which travels by value."""

    _fields_ = (("internal", ctypes.c_char * ID_SIZE),)


class Config(ctypes.Structure):
    """``ncclConfig_t`` as of version 2.18, which later ones take."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cluster", ctypes.c_int),
        ("least", ctypes.c_int),
        ("most", ctypes.c_int),
        ("net", ctypes.c_char_p),
        ("shares", ctypes.c_int),
    )


def find_library() -> list[str]:
    """Return where NCCL may be, in the order in which to try: named, of a wheel, the system's."""
    found = [os.environ.get("GPUPOOL_NCCL", "")]
    # Not by import: another package may have taken the name "nvidia" for a folder of its own.
    wheels = (Path(place) / "nvidia" / "nccl" / "lib" / LIBRARY for place in sys.path)
    found += [str(path) for path in wheels if path.exists()]
    return [*filter(None, found), LIBRARY]


class Nccl:
    """NCCL's calls, which raise NcclError."""

    def __init__(self, library: Any) -> None:
        self._library = library
        word, size, number, pointer = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.POINTER,
        )
        library.ncclCommInitRankConfig.argtypes = (
            pointer(word),
            number,
            UniqueId,
            number,
            pointer(Config),
        )
        library.ncclCommSplit.argtypes = (word, number, number, pointer(word), pointer(Config))
        for name in ("Destroy", "Abort", "Finalize"):
            getattr(library, f"ncclComm{name}").argtypes = (word,)
        for name in ("GetAsyncError", "Count", "UserRank"):
            getattr(library, f"ncclComm{name}").argtypes = (word, pointer(number))
        library.ncclGetLastError.argtypes = (word,)
        library.ncclGetLastError.restype = ctypes.c_char_p
        library.ncclRedOpCreatePreMulSum.argtypes = (pointer(number), word, number, number, word)
        library.ncclRedOpDestroy.argtypes = (number, word)
        library.ncclAllReduce.argtypes = (word, word, size, number, number, word, word)
        library.ncclReduceScatter.argtypes = (word, word, size, number, number, word, word)
        library.ncclReduce.argtypes = (word, word, size, number, number, number, word, word)
        library.ncclBroadcast.argtypes = (word, word, size, number, number, word, word)
        library.ncclAllGather.argtypes = (word, word, size, number, word, word)
        library.ncclSend.argtypes = (word, size, number, number, word, word)
        library.ncclRecv.argtypes = (word, size, number, number, word, word)
        found = number()
        self._check(library.ncclGetVersion(ctypes.byref(found)))
        self.version = found.value

    @classmethod
    def load(cls) -> "Nccl":
        """Return the library of this machine.

        Raises:
            NcclMissingError: when there is none.
        """
        # Else the first collective of a communicator waits for all its ranks, and with it all
        # other calls of this client.
        os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
        reasons: list[str] = []
        for path in find_library():
            try:
                return cls(ctypes.CDLL(path))
            except (OSError, AttributeError) as error:
                reasons.append(str(error))
        raise NcclMissingError("this server has no NCCL: " + "; ".join(reasons))

    def _check(self, result: int) -> None:
        if result != SUCCESS:
            raise NcclError(result)

    def unique_id(self) -> bytes:
        """Return a unique ID for a new communicator with its root in this process."""
        made = UniqueId()
        self._check(self._library.ncclGetUniqueId(ctypes.byref(made)))
        return ctypes.string_at(ctypes.addressof(made), ID_SIZE)

    def _config(self, settings: tuple[int, int, int, int]) -> Config:
        cluster, least, most, shares = settings
        size = ctypes.sizeof(Config)
        return Config(size, CONFIG_MAGIC, CONFIG_VERSION, 1, cluster, least, most, None, shares)

    def begin(self, count: int, name: bytes, rank: int, settings: tuple[int, int, int, int]) -> int:
        """Make a communicator of the current device; waits for all ranks."""
        made = ctypes.c_void_p()
        given = UniqueId.from_buffer_copy(name)
        config = self._config(settings)
        self._check(
            self._library.ncclCommInitRankConfig(
                ctypes.byref(made), count, given, rank, ctypes.byref(config)
            )
        )
        return made.value or 0

    def split(self, parent: int, color: int, key: int, settings: tuple[int, int, int, int]) -> int:
        """Make a communicator of some ranks of another; 0 where this one is of none."""
        made = ctypes.c_void_p()
        config = self._config(settings)
        self._check(
            self._library.ncclCommSplit(
                parent, color, key, ctypes.byref(made), ctypes.byref(config)
            )
        )
        return made.value or 0

    def place(self, handle: int) -> tuple[int, int]:
        """Return the rank, and how many there are."""
        return self._number("UserRank", handle), self._number("Count", handle)

    def state(self, handle: int) -> int:
        """Return the result that a communicator is in."""
        return self._number("GetAsyncError", handle)

    def _number(self, name: str, handle: int) -> int:
        found = ctypes.c_int()
        self._check(getattr(self._library, f"ncclComm{name}")(handle, ctypes.byref(found)))
        return found.value

    def last_error(self, handle: int) -> str:
        """Return NCCL's text about its last error."""
        text: bytes | None = self._library.ncclGetLastError(handle)
        return (text or b"").decode(errors="replace")

    def finalize(self, handle: int) -> None:
        """End the pending operations of a communicator."""
        self._check(self._library.ncclCommFinalize(handle))

    def destroy(self, handle: int) -> None:
        """End a communicator."""
        self._check(self._library.ncclCommDestroy(handle))

    def abort(self, handle: int) -> None:
        """Abort a communicator and its operations."""
        self._check(self._library.ncclCommAbort(handle))

    def scaled(self, scalar: bytes, kind: int, handle: int, *, on_device: bool) -> int:
        """Make the reduction that multiplies by a scalar and adds up."""
        made, room = ctypes.c_int(), ctypes.create_string_buffer(scalar, len(scalar))
        address = int.from_bytes(scalar, "little") if on_device else ctypes.addressof(room)
        self._check(
            self._library.ncclRedOpCreatePreMulSum(
                ctypes.byref(made), address, kind, 0 if on_device else 1, handle
            )
        )
        return made.value

    def end_scaled(self, reduction: int, handle: int) -> None:
        """End such a reduction."""
        self._check(self._library.ncclRedOpDestroy(reduction, handle))

    @contextlib.contextmanager
    def group(self) -> Generator[None]:
        """Run the NCCL operations within as one group."""
        self._check(self._library.ncclGroupStart())
        try:
            yield
        except NcclError:
            self._library.ncclGroupEnd()
            raise
        self._check(self._library.ncclGroupEnd())

    def operation(
        self,
        kind: int,
        source: int,
        target: int,
        count: int,
        of: int,
        reduction: int,
        peer: int,
        handle: int,
        stream: int,
    ) -> Callable[[], None]:
        """Return the call of one operation, of one of ``KINDS``."""
        library = self._library
        ends = (handle, stream)
        call: Callable[..., int]
        words: tuple[int, ...]
        if kind in (ALL_REDUCE, REDUCE_SCATTER):
            call = library.ncclAllReduce if kind == ALL_REDUCE else library.ncclReduceScatter
            words = (source, target, count, of, reduction)
        elif kind == REDUCE:
            call, words = library.ncclReduce, (source, target, count, of, reduction, peer)
        elif kind == BROADCAST:
            call, words = library.ncclBroadcast, (source, target, count, of, peer)
        elif kind == ALL_GATHER:
            call, words = library.ncclAllGather, (source, target, count, of)
        elif kind == SEND:
            call, words = library.ncclSend, (source, count, of, peer)
        else:
            call, words = library.ncclRecv, (target, count, of, peer)
        return partial(self._run, call, (*words, *ends))

    def _run(self, call: Callable[..., int], words: tuple[int, ...]) -> None:
        self._check(call(*words))
