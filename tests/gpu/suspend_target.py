"""A process that uses CUDA in one way, for ``suspend_probe.py`` to suspend; needs libcuda alone.

Usage: python tests/gpu/suspend_target.py KIND [NAME=VALUE ...]. It prints ``ready``, then answers
each line of its input: ``sum`` by what its memory holds, ``more`` by that of a new allocation,
``who`` by the devices that CUDA has for it.
"""

import ctypes
import hashlib
import importlib
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry incr(.param .u64 p) {
 .reg .u64 %rd<2>; .reg .u32 %r<2>;
 ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;
 ret; }
.visible .entry spin(.param .u64 p) {
 .reg .u64 %rd<2>; .reg .u32 %r<2>; .reg .pred %q<2>;
 ld.param.u64 %rd1, [p];
again: ld.volatile.global.u32 %r1, [%rd1]; setp.ne.u32 %q1, %r1, 4294967295; @%q1 bra again;
 ret; }
\0"""
U64 = ctypes.c_uint64


class CudaError(RuntimeError):
    """A call that failed."""


class Driver:
    """The driver's functions, by name; the first device's primary context."""

    def __init__(self, device: int = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self.context = U64()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)
        module = U64()
        self("cuModuleLoadData", ctypes.byref(module), PTX)
        self.module = module

    def __call__(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            raise CudaError(f"{name} answers {result}")

    def out(self, name: str, *arguments: Any) -> int:
        value = U64()
        self(name, ctypes.byref(value), *arguments)
        return value.value

    def allocate(self, size: int, word: int = 7) -> int:
        address = self.out("cuMemAlloc_v2", ctypes.c_size_t(size))
        self.fill(address, size, word)
        return address

    def fill(self, address: int, size: int, word: int) -> None:
        self("cuMemsetD32_v2", U64(address), ctypes.c_uint(word), ctypes.c_size_t(size // 4))
        self("cuCtxSynchronize")

    def words(self, address: int, size: int) -> list[int]:
        """Return the first, a middle and the last word."""
        found: list[int] = []
        for offset in (0, size // 8 * 4, size - 4):
            word = ctypes.c_uint()
            self("cuMemcpyDtoH_v2", ctypes.byref(word), U64(address + offset), ctypes.c_size_t(4))
            found.append(word.value)
        return found

    def launch(self, name: str, address: int, stream: int = 0) -> None:
        function = self.out("cuModuleGetFunction", self.module, name.encode())
        parameter = U64(address)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        self("cuLaunchKernel", U64(function), *([1] * 6), 0, U64(stream), parameters, U64(0))


class Target:
    """One way to use CUDA; ``sum`` summarizes the content of its memory."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.size = int(options.get("mib", "256")) * MIB
        self.driver = Driver(int(options.get("device", "0")))
        self.keep: list[object] = []

    def plain(self) -> Callable[[], object]:
        pieces = int(self.options.get("pieces", "1"))
        size = self.size // pieces
        blocks = [self.driver.allocate(size, 7 + i) for i in range(pieces)]

        def look() -> object:
            return [self.driver.words(each, size) for each in (blocks[0], blocks[-1])]

        return look

    def managed(self) -> Callable[[], object]:
        address = self.driver.out("cuMemAllocManaged", ctypes.c_size_t(self.size), 1)
        self.driver.fill(address, self.size, 9)
        host = ctypes.c_uint.from_address(address)  # one page goes to the host
        return lambda: [host.value, self.driver.words(address, self.size)]

    def pinned(self) -> Callable[[], object]:
        pointer = ctypes.c_void_p()
        self.driver("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(self.size), 3)
        assert pointer.value
        ctypes.memset(pointer.value, 5, self.size)
        device = self.driver.out("cuMemHostGetDevicePointer_v2", pointer, 0)
        word = ctypes.c_uint.from_address(pointer.value)

        def look() -> object:
            self.driver.launch("incr", device)
            self.driver("cuCtxSynchronize")
            return [word.value, self.driver.words(device, self.size)]

        return look

    def registered(self) -> Callable[[], object]:
        """Memory shared with another process, as the CUDA door shares it with the program."""
        path = self.options["path"]
        with Path(path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), self.size)
        self.keep.append(memory)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.driver("cuMemHostRegister_v2", U64(pointer), ctypes.c_size_t(self.size), 3)
        device = self.driver.out("cuMemHostGetDevicePointer_v2", U64(pointer), 0)

        def look() -> object:
            self.driver.launch("incr", device)
            self.driver("cuCtxSynchronize")
            return self.driver.words(device, self.size)

        return look

    def graph(self) -> Callable[[], object]:
        driver, address = self.driver, self.driver.allocate(self.size, 0)
        stream = driver.out("cuStreamCreate", 1)
        driver("cuStreamBeginCapture_v2", U64(stream), 2)
        for _ in range(3):
            driver.launch("incr", address, stream)
        captured = self._end(stream)
        executable = driver.out("cuGraphInstantiateWithFlags", U64(captured), U64(0))
        event = driver.out("cuEventCreate", 0)

        def look() -> object:
            driver("cuGraphLaunch", U64(executable), U64(stream))
            driver("cuEventRecord", U64(event), U64(stream))
            driver("cuEventSynchronize", U64(event))
            return driver.words(address, self.size)

        return look

    def _end(self, stream: int) -> int:
        graph = U64()
        self.driver("cuStreamEndCapture", U64(stream), ctypes.byref(graph))
        return graph.value

    def spin(self) -> Callable[[], object]:
        address = self.driver.allocate(MIB, 1)
        self.driver.launch("spin", address)
        return lambda: "spins"

    def launches(self) -> Callable[[], object]:
        """Launch without end from another thread, never waiting."""
        address = self.driver.allocate(self.size, 0)
        done = [0]

        def run() -> None:
            self.driver("cuCtxSetCurrent", self.driver.context)
            while True:
                self.driver.launch("incr", address)
                done[0] += 1

        threading.Thread(target=run, daemon=True).start()

        def look() -> object:
            return [done[0], self.driver.words(address, 4)[0]]

        return look

    def vmm(self) -> Callable[[], object]:
        """Virtual memory: ``export=1`` may be exported, ``export=2`` was, to nobody yet."""
        export = int(self.options.get("export", "0"))
        properties = (ctypes.c_uint * 8)(1, 1 if export else 0, 1, 0)  # pinned, POSIX, device 0
        handle = self.driver.out(
            "cuMemCreate", ctypes.c_size_t(self.size), properties, ctypes.c_uint64(0)
        )
        address = self._map(handle)
        self.driver.fill(address, self.size, 11)
        if export == 2:
            descriptor = ctypes.c_int()
            self.driver(
                "cuMemExportToShareableHandle", ctypes.byref(descriptor), U64(handle), 1, U64(0)
            )
            if path := self.options.get("socket"):
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(path)
                    server.listen(1)
                    print("listens", flush=True)
                    connection, _ = server.accept()
                    socket.send_fds(connection, [b"."], [descriptor.value])
                    os.close(descriptor.value)
        return lambda: self.driver.words(address, self.size)

    def _map(self, handle: int) -> int:
        address = self.driver.out("cuMemAddressReserve", ctypes.c_size_t(self.size), *(U64(0),) * 3)
        self.driver(
            "cuMemMap", U64(address), ctypes.c_size_t(self.size), U64(0), U64(handle), U64(0)
        )
        access = (ctypes.c_uint * 3)(1, 0, 3)
        self.driver("cuMemSetAccess", U64(address), ctypes.c_size_t(self.size), access, U64(1))
        return address

    def vmm_import(self) -> Callable[[], object]:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(self.options["socket"])
            _, descriptors, _, _ = socket.recv_fds(server, 1, 1)
        handle = self.driver.out("cuMemImportFromShareableHandle", U64(descriptors[0]), 1)
        address = self._map(handle)
        return lambda: self.driver.words(address, self.size)

    def ipc_export(self) -> Callable[[], object]:
        address = self.driver.allocate(self.size, 13)
        handle = ctypes.create_string_buffer(64)
        self.driver("cuIpcGetMemHandle", handle, U64(address))
        print("handle", handle.raw.hex(), flush=True)
        return lambda: self.driver.words(address, self.size)

    def ipc_import(self) -> Callable[[], object]:
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 64)]

        handle = Handle.from_buffer_copy(bytes.fromhex(self.options["handle"]))
        address = self.driver.out("cuIpcOpenMemHandle_v2", handle, 1)
        return lambda: self.driver.words(address, self.size)

    def peer(self) -> Callable[[], object]:
        """Two devices with access to each other, in one process."""
        first, other = self.driver.allocate(self.size, 3), U64()
        self.driver("cuDevicePrimaryCtxRetain", ctypes.byref(other), 1)
        self.driver("cuCtxEnablePeerAccess", other, 0)
        self.driver("cuCtxSetCurrent", other)
        self.driver("cuCtxEnablePeerAccess", self.driver.context, 0)
        second = self.driver.allocate(self.size, 4)
        self.driver("cuCtxSetCurrent", self.driver.context)

        def look() -> object:
            self.driver("cuMemcpy", U64(first), U64(second), ctypes.c_size_t(4))
            self.driver("cuCtxSynchronize")
            return [self.driver.words(first, self.size), self.driver.words(second, self.size)]

        return look

    def training(self) -> Callable[[], object]:
        """Train a small model for some steps; the answer has all losses and weights in it."""
        torch: Any = importlib.import_module("torch")
        device = torch.device("cuda", 0)
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        model = torch.nn.Sequential(
            *(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3)),
            *(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(1568, 10)),
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batch, labels = (
            torch.randn(64, 3, 32, 32).to(device),
            torch.randint(0, 10, (64,)).to(device),
        )
        ballast = torch.full((self.size,), 3, dtype=torch.uint8, device=device)
        pinned, side = torch.empty(1 << 20).pin_memory(), torch.cuda.Stream()
        graph, x = torch.cuda.CUDAGraph(), torch.ones(512, 512, device=device) / 512
        float((x @ x).sum())  # what cuBLAS makes at first cannot be captured
        with torch.cuda.graph(graph):
            x.copy_(torch.tanh(x @ x) + 0.001)
        seen = hashlib.sha256()
        done = [0]

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            graph.replay()
            ended.record()
            value = float(loss)
            with torch.cuda.stream(side):
                total = float(pinned.fill_(value).to(device, non_blocking=True).sum())
            assert began.elapsed_time(ended) >= 0
            seen.update(f"{value.hex()} {total.hex()} {float(x[3, 5]).hex()}".encode())

        def run() -> None:
            for _ in range(int(self.options.get("steps", "400"))):
                step()
                done[0] += 1
                time.sleep(0.02)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def look() -> object:
            thread.join()
            for each in model.parameters():
                seen.update(each.detach().cpu().numpy().tobytes())
            return [done[0], int(ballast[:: 1 << 20].sum(dtype=torch.int64)), seen.hexdigest()[:24]]

        return look

    def nccl(self) -> Callable[[], object]:
        torch: Any = importlib.import_module("torch")
        distributed: Any = importlib.import_module("torch.distributed")
        rank = int(self.options["device"])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.options["port"]}
        torch.cuda.set_device(rank)
        distributed.init_process_group("nccl", rank=rank, world_size=2)
        data = torch.full((MIB,), float(rank + 1), device="cuda")
        distributed.all_reduce(data)
        torch.cuda.synchronize()

        def look() -> object:
            distributed.all_reduce(data)
            torch.cuda.synchronize()
            return float(data[5])

        return look


def devices(driver: Driver) -> list[object]:
    """Return each device's identity and place, and the free memory of the current one."""
    found: list[object] = []
    count = ctypes.c_int()
    driver("cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        uuid, bus = ctypes.create_string_buffer(16), ctypes.create_string_buffer(32)
        driver("cuDeviceGetUuid_v2", uuid, ordinal)
        driver("cuDeviceGetPCIBusId", bus, 32, ordinal)
        found.append((ordinal, uuid.raw.hex()[-8:], bus.value.decode()))
    free, whole = ctypes.c_size_t(), ctypes.c_size_t()
    driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole))
    return [*found, f"{free.value // MIB} MiB free"]


def confine(uid: int) -> None:
    """Confine this process like a worker of gpupool."""
    from gpupool.remoting.worker import namespaces, sandbox, syscall_filter

    holds: list[object] = [sandbox.keep_descendants(), sandbox.forbid_new_privileges()]
    holds.append(namespaces.own_network())
    nodes = [str(each) for each in Path("/dev").glob("nvidia*") if not each.is_dir()]
    nodes += [str(each) for each in Path("/dev/nvidia-caps").glob("*")]
    staging = Path(f"/tmp/dev-{os.getpid()}")
    holds.append(namespaces.private_devices(nodes, staging))
    holds.append(
        sandbox.restrict_files(("/tmp/site",), ("/dev",), (), network=True, abstract=False)
    )
    sandbox.limit_resources(own_uid=True)
    sandbox.become(uid, uid, ())
    sandbox.hide_memory()
    syscall_filter.install()
    print("confined", holds, flush=True)


def prefault(count: int, least: int = 32 * MIB) -> None:
    """Fill new mappings of this process with huge pages from several threads, as they appear."""
    libc = ctypes.CDLL(None, use_errno=True)
    maps = Path("/proc/self/maps")
    begun = {line.split("-")[0] for line in maps.read_text().splitlines()}
    jobs: list[tuple[int, int]] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                job = jobs.pop(0) if jobs else None
            if job is None:
                time.sleep(0.002)
                continue
            start, size = U64(job[0]), ctypes.c_size_t(job[1])
            libc.madvise(start, size, 14)  # MADV_HUGEPAGE
            libc.madvise(start, size, 23)  # MADV_POPULATE_WRITE

    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    while True:
        for line in maps.read_text().splitlines():
            span, rights, *rest = line.split()
            first, last = (int(each, 16) for each in span.split("-"))
            old = span.split("-")[0] in begun or rights[:2] != "rw" or len(rest) > 3
            if old or last - first < least:
                continue
            begun.add(span.split("-")[0])
            print("maps", line.strip(), file=sys.stderr, flush=True)
            with lock:
                jobs.extend((at, min(64 * MIB, last - at)) for at in range(first, last, 64 * MIB))
        time.sleep(0.002)


def main() -> None:
    kind, *texts = sys.argv[1:]
    options = dict(text.split("=", 1) for text in texts)
    if kind == "training":
        importlib.import_module("torch")  # reads much that a confined process cannot
    if options.get("confined"):
        confine(int(options["uid"]))
    elif "uid" in options:
        os.setgroups([])
        os.setresgid(*[int(options["uid"])] * 3)
        os.setresuid(*[int(options["uid"])] * 3)
    if options.get("dumpable") == "0":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    if options.get("tracer"):
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1).value, 0, 0, 0)  # PR_SET_PTRACER
    if options.get("waits"):
        print("waits", os.getpid(), flush=True)
        sys.stdin.readline()
    target = Target(options)
    look = getattr(target, kind)()
    if "prefault" in options:
        count = int(options["prefault"])
        threading.Thread(target=prefault, args=(count,), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            if line.strip() == "who":
                print(devices(target.driver), flush=True)
            elif line.strip() == "more":
                target.driver.allocate(16 * MIB)
                print("more: fine", flush=True)
            else:
                print(look(), flush=True)
        except Exception as error:  # noqa: BLE001 - what happens is what is asked
            print(f"failed: {error}", flush=True)


if __name__ == "__main__":
    main()
