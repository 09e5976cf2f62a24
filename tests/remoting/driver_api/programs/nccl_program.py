"""One process with a rank on each of two servers, by NCCL's interface.

With "lose", the second server's worker is ended after the first collective. With "stuck", the first
rank waits for what the second never sends. With "capture", collectives are captured and launched.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

FLOAT, SUM, SCALED = 7, 0, 5
COUNT = 1000

cuda = ctypes.CDLL("libcuda.so.1")
nccl = ctypes.CDLL("libnccl.so.2")


class Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


def good(status: int) -> None:
    if status:
        nccl.ncclGetLastError.restype = ctypes.c_char_p
        nccl.ncclGetLastError.argtypes = (ctypes.c_void_p,)
        sys.exit(f"status {status}: {nccl.ncclGetLastError(None)}")


class Rank:
    """A device with memory for three arrays, a stream and a communicator."""

    def __init__(self, device: int, comm: int) -> None:
        self.device, self.comm = device, ctypes.c_void_p(comm)
        self.context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.current()
        good(cuda.cuStreamCreate(ctypes.byref(self.stream), 1))
        self.source, self.target = self.memory(), self.memory()

    def current(self) -> None:
        good(cuda.cuCtxSetCurrent(self.context))

    def memory(self) -> ctypes.c_void_p:
        address = ctypes.c_void_p()
        good(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8 * COUNT)))
        return address

    def put(self, value: float) -> None:
        self.current()
        data = (ctypes.c_float * (2 * COUNT))(*([value] * COUNT + [value + 1] * COUNT))
        good(cuda.cuMemcpyHtoD_v2(self.source, data, ctypes.c_size_t(8 * COUNT)))
        # From pageable memory it may still be on its way, and other streams do not wait for it.
        good(cuda.cuCtxSynchronize())

    def get(self) -> tuple[float, float]:
        self.current()
        good(cuda.cuStreamSynchronize(self.stream))
        data = (ctypes.c_float * (2 * COUNT))()
        good(cuda.cuMemcpyDtoH_v2(data, self.target, ctypes.c_size_t(8 * COUNT)))
        return data[0], data[COUNT]


def show(name: str, ranks: list[Rank]) -> None:
    print(name, *(value for rank in ranks for value in rank.get()), flush=True)


def split(ranks: list[Rank]) -> None:
    """Split the communicator: the ranks in another order, then the first one alone."""
    made = [ctypes.c_void_p() for _ in ranks]
    for colors, keys in (((0, 0), (1, 0)), ((0, -1), (0, 0))):

        def one(at: int, color: int, key: int) -> None:
            words = (ranks[at].comm, color, key, ctypes.byref(made[at]), None)
            good(nccl.ncclCommSplit(*words))

        threads = [
            threading.Thread(target=one, args=(at, *wish))
            for at, wish in enumerate(zip(colors, keys, strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rank, count = ctypes.c_int(), ctypes.c_int()
        for comm in made:
            if not comm.value:
                print("split none")
                continue
            good(nccl.ncclCommUserRank(comm, ctypes.byref(rank)))
            good(nccl.ncclCommCount(comm, ctypes.byref(count)))
            print("split", rank.value, count.value)
            good(nccl.ncclCommAbort(comm))


def lose(ranks: list[Rank]) -> None:
    """End the second server's worker, and print when both ranks hear of it."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            place = words[words.index(b"--place") + 1] if b"--place" in words else b""
            if int(parent) == os.getppid() and place == b"1":
                os.kill(int(process.name), signal.SIGKILL)
    state, started = ctypes.c_int(), time.monotonic()
    for rank in reversed(ranks):
        while state.value == 0 and time.monotonic() - started < 5:
            good(nccl.ncclCommGetAsyncError(rank.comm, ctypes.byref(state)))
            time.sleep(0.01)
        print("state", state.value)
        state.value = 0
    for rank in ranks:
        print("abort", nccl.ncclCommAbort(rank.comm))


def stuck(ranks: list[Rank]) -> None:
    """Wait for data that nobody sends, and print the outcome of the calls that end the wait."""
    words = (ranks[0].target, ctypes.c_size_t(COUNT), FLOAT, 1, ranks[0].comm, ranks[0].stream)
    good(nccl.ncclRecv(*words))
    good(nccl.ncclRecv(*words))  # which comes to an aborted communicator
    time.sleep(0.1)  # until the worker is in it
    began = time.monotonic()
    print("abort", nccl.ncclCommAbort(ranks[0].comm), "soon", time.monotonic() - began < 5)
    ranks[0].put(3.0)
    good(cuda.cuMemcpyDtoD_v2(ranks[0].target, ranks[0].source, ctypes.c_size_t(8 * COUNT)))
    print("goes on", *ranks[0].get())
    print("abort", nccl.ncclCommAbort(ranks[1].comm))


def capture(ranks: list[Rank]) -> None:
    """Capture a collective of each rank, and launch the graphs twice."""
    graph = ctypes.c_void_p()
    execs = [ctypes.c_void_p() for _ in ranks]
    for at, rank in enumerate(ranks):
        rank.current()
        good(cuda.cuStreamBeginCapture_v2(rank.stream, 2))
        words = (rank.source, rank.target, ctypes.c_size_t(2 * COUNT), FLOAT, SUM)
        good(nccl.ncclAllReduce(*words, rank.comm, rank.stream))
        good(cuda.cuStreamEndCapture(rank.stream, ctypes.byref(graph)))
        good(cuda.cuGraphInstantiateWithFlags(ctypes.byref(execs[at]), graph, ctypes.c_uint64(0)))
        good(cuda.cuGraphDestroy(graph))
    for value in (5.0, 7.0):
        for rank, made in zip(ranks, execs, strict=True):
            rank.put(value)
            good(cuda.cuGraphLaunch(made, rank.stream))
        show("captured", ranks)


def main() -> None:
    version, count = ctypes.c_int(), ctypes.c_int()
    good(cuda.cuInit(0))
    good(cuda.cuDeviceGetCount(ctypes.byref(count)))
    comms = (ctypes.c_void_p * count.value)()
    good(nccl.ncclGetVersion(ctypes.byref(version)))
    good(nccl.ncclCommInitAll(comms, count.value, None))
    print("version", version.value, "ranks", count.value)
    ranks = [Rank(at, comms[at] or 0) for at in range(count.value)]
    half = ctypes.c_size_t(COUNT)

    def each(name: str, *middle: object) -> None:
        for at, rank in enumerate(ranks):
            rank.put(10.0 * at)
        good(nccl.ncclGroupStart())
        for rank in ranks:
            words = (rank.source, rank.target, half, FLOAT, *middle, rank.comm, rank.stream)
            good(getattr(nccl, name)(*words))
        good(nccl.ncclGroupEnd())
        show(name, ranks)

    each("ncclAllReduce", SUM)
    if "lose" in sys.argv:
        lose(ranks)
        return
    for name, special in (("stuck", stuck), ("capture", capture)):
        if name in sys.argv:
            special(ranks)
            return
    split(ranks)
    each("ncclBroadcast", 1)
    each("ncclReduce", SUM, 0)
    each("ncclAllGather")
    each("ncclReduceScatter", SUM)
    each("ncclAlltoAll")
    operation, scale = ctypes.c_int(), ctypes.c_float(3.0)
    for rank in ranks:
        words = (ctypes.byref(operation), ctypes.byref(scale), FLOAT, 1, rank.comm)
        good(nccl.ncclRedOpCreatePreMulSum(*words))
    each("ncclAllReduce", operation.value)
    wrong = nccl.ncclAllReduce(None, None, half, 99, SUM, ranks[0].comm, None)
    print("wrong type", wrong)
    state = ctypes.c_int(-1)
    for rank in ranks:
        good(nccl.ncclCommGetAsyncError(rank.comm, ctypes.byref(state)))
        print("state", state.value)
        good(nccl.ncclCommDestroy(rank.comm))


if __name__ == "__main__":
    main()
