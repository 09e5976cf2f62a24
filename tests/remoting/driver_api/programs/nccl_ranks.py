"""NCCL with two GPUs: one process for both, or one for each. Arguments: libnccl.so.2; "both".

No kernel of NCCL's runs on the driver without a GPU. All that comes before does: what NCCL thinks
of the topology, memory and its sharing, peer access, images, launches.
"""

import ctypes
import subprocess
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

FLOAT, SUM = 7, 0
COUNT = 1 << 20
SIZE = 8 * COUNT


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetLastError.restype = ctypes.c_char_p
cuda = ctypes.CDLL("libcuda.so.1")


def check(status: int) -> None:
    assert status == 0, (status, nccl.ncclGetLastError(None))


class Rank:
    """One GPU, with memory and a stream."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.context, self.stream, self.communicator = c_void_p(), c_void_p(), c_void_p()
        self.memory = c_uint64()
        check(cuda.cuDevicePrimaryCtxRetain(byref(self.context), device))
        self.enter()
        check(cuda.cuMemAlloc_v2(byref(self.memory), c_size_t(2 * SIZE)))
        check(cuda.cuStreamCreate(byref(self.stream), 1))

    def enter(self) -> None:
        check(cuda.cuCtxSetCurrent(self.context))

    def collect(self) -> None:
        """Reduce, small and large, and gather."""
        self.enter()
        one, other = c_void_p(self.memory.value), c_void_p(self.memory.value + SIZE)
        tail = (self.communicator, self.stream)
        for count in (4, COUNT):
            check(nccl.ncclAllReduce(one, one, c_size_t(count), FLOAT, SUM, *tail))
        check(nccl.ncclAllGather(one, other, c_size_t(COUNT // 2), FLOAT, *tail))

    def exchange(self) -> None:
        """Send to the other rank, and receive from it."""
        self.enter()
        one, other = c_void_p(self.memory.value), c_void_p(self.memory.value + SIZE)
        rest = (c_size_t(COUNT), FLOAT, 1 - self.device, self.communicator, self.stream)
        check(nccl.ncclSend(one, *rest))
        check(nccl.ncclRecv(other, *rest))


def use(ranks: list[Rank]) -> None:
    for _ in range(3):
        for step in (Rank.collect, Rank.exchange):
            check(nccl.ncclGroupStart())
            for rank in ranks:
                step(rank)
            check(nccl.ncclGroupEnd())
    for rank in ranks:
        rank.enter()
        check(cuda.cuStreamSynchronize(rank.stream))
    for rank in ranks:
        check(nccl.ncclCommDestroy(rank.communicator))


def one_process() -> None:
    ranks = [Rank(0), Rank(1)]
    communicators = (c_void_p * 2)()
    check(nccl.ncclCommInitAll(communicators, 2, (c_int * 2)(0, 1)))
    for rank, communicator in zip(ranks, communicators, strict=True):
        rank.communicator = c_void_p(communicator)
    use(ranks)


def process_of(device: int, unique: UniqueId) -> None:
    rank = Rank(device)
    nccl.ncclCommInitRank.argtypes = [c_void_p, c_int, UniqueId, c_int]
    check(nccl.ncclCommInitRank(byref(rank.communicator), 2, unique, device))
    use([rank])


def main() -> None:
    check(cuda.cuInit(0))
    if sys.argv[2] == "both":
        one_process()
    elif len(sys.argv) > 3:
        process_of(1, UniqueId.from_buffer_copy(bytes.fromhex(sys.argv[3])))
        return
    else:
        unique = UniqueId()
        check(nccl.ncclGetUniqueId(byref(unique)))
        command = [sys.executable, *sys.argv, bytes(unique.bytes).hex()]
        with subprocess.Popen(command) as other:
            process_of(0, unique)
        check(other.returncode)
    print("results right")


main()
