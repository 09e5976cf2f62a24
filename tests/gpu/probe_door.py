"""A door for ``host_check.py``: raw device memory and kernels, within the budget or beyond it."""

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

FRAME = struct.Struct(">cQ")
CHUNK = 256 << 20
WORD = 0xA5C3_96E1_5A3C_691E
SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""


class Probe:
    """The state of one session of the check."""

    def __init__(self, devices: Sequence[Any], budget: Any) -> None:
        import cupy

        self.cupy: Any = cupy
        self.budget = budget
        self.devices = devices
        self.blocks: list[tuple[int, int]] = []

    def info(self, _size: int) -> str:
        runtime = self.cupy.cuda.runtime
        buses = [runtime.deviceGetPCIBusId(at) for at in range(runtime.getDeviceCount())]
        return f"{os.getpid()} {os.getuid()} {len(buses)} {','.join(buses)}"

    def allocate(self, size: int) -> str:
        """Take ``size`` bytes from the budget, then from CUDA."""
        if not self.budget.reserve(0, size):
            return "refused"
        try:
            self.blocks.append((self.cupy.cuda.runtime.malloc(size), size))
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            self.budget.release(0, size)
            return f"cuda: {error}"
        return "granted"

    def steal(self, size: int) -> str:
        """Take memory that the budget knows nothing of."""
        try:
            self.blocks.append((self.cupy.cuda.runtime.malloc(size), size))
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            return f"cuda: {error}"
        return "stolen"

    def words(self, block: tuple[int, int]) -> Any:
        pointer, size = block
        memory = self.cupy.cuda.UnownedMemory(pointer, size, self)
        return self.cupy.ndarray(
            (size // 8,), self.cupy.uint64, self.cupy.cuda.MemoryPointer(memory, 0)
        )

    def mark(self, _size: int) -> str:
        """Write the pattern to every word that is held."""
        for block in self.blocks:
            self.words(block).fill(WORD)
        self.cupy.cuda.runtime.deviceSynchronize()
        return str(sum(size for _, size in self.blocks))

    def search(self, _size: int) -> str:
        """Count words with the pattern, and words that are not zero, in memory never written."""
        found = other = 0
        for block in self.blocks:
            words = self.words(block)
            for start in range(0, len(words), CHUNK // 8):
                part = words[start : start + CHUNK // 8]
                found += int((part == WORD).sum())
                other += int((part != 0).sum())
        return f"{found} {other}"

    def compute(self, _size: int) -> str:
        """Use the compiler, cuBLAS and cuFFT, each for the first time in this process."""
        cupy = self.cupy
        x = cupy.arange(1 << 20, dtype=cupy.float32)
        total = float((x * 2 + 1).sum(dtype=cupy.float64))
        matrix = cupy.ones((256, 256), cupy.float32)
        product = float((matrix @ matrix)[0, 0])
        back = float(cupy.fft.ifft(cupy.fft.fft(x[:1024]))[7].real)
        return f"{total:.0f} {product:.0f} {back:.2f}"

    def spin(self, seconds: int) -> str:
        """Start a kernel that runs for about that long, and do not wait for it."""
        kernel = self.cupy.RawKernel(SPIN, "spin")
        clock_khz = self.cupy.cuda.runtime.deviceGetAttribute(13, 0)  # cudaDevAttrClockRate
        kernel((1,), (1,), (self.cupy.int64(seconds * clock_khz * 1000),))
        return "spinning"

    def wait(self, _size: int) -> str:
        self.cupy.cuda.runtime.deviceSynchronize()
        return "idle"


COMMANDS: dict[bytes, Callable[[Probe, int], str]] = {
    b"i": Probe.info,
    b"a": Probe.allocate,
    b"s": Probe.steal,
    b"m": Probe.mark,
    b"f": Probe.search,
    b"c": Probe.compute,
    b"k": Probe.spin,
    b"w": Probe.wait,
}


def serve(
    stream: Any, devices: Sequence[Any], budget: Any, log: Callable[[str], None], _peers: Any
) -> None:
    probe = Probe(devices, budget)
    buffer = bytearray(FRAME.size)
    while True:
        view, count = memoryview(buffer), 0
        while count < len(buffer):
            received = stream.recv_into(view[count:])
            if not received:
                return
            count += received
        command, size = FRAME.unpack(buffer)
        answer = COMMANDS[command](probe, size).encode()
        stream.send_buffers([struct.pack(">I", len(answer)), answer])
