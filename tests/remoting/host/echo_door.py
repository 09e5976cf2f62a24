"""A door for tests: small commands in, answers out, and ways to misbehave."""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FRAME = struct.Struct(">cI")


def read_exactly(stream: Any, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    count = 0
    while count < size:
        received = stream.recv_into(view[count:])
        if not received:
            raise EOFError
        count += received
    return bytes(data)


def serve(
    stream: Any, devices: Sequence[Any], budget: Any, log: Callable[[str], None], _peers: Any
) -> None:
    """Answer one command after the other until the client closes."""
    try:
        while True:
            command, size = FRAME.unpack(read_exactly(stream, FRAME.size))
            stream.calls += 1
            body = read_exactly(stream, size)
            if command == b"t":
                execute(stream.tally, int(body))
                body = b""
            answer = run(command, body, devices, budget, log)
            stream.send_buffers([FRAME.pack(command, len(answer)), answer])
    except EOFError:
        pass


def run(
    command: bytes,
    body: bytes,
    devices: Sequence[Any],
    budget: Any,
    log: Callable[[str], None],
) -> bytes:
    match command:
        case b"e" | b"t":
            return body
        case b"r":
            device, size = struct.unpack(">HQ", body)
            return bytes([budget.reserve(device, size)])
        case b"f":
            device, size = struct.unpack(">HQ", body)
            budget.release(device, size)
            return b""
        case b"u":
            return struct.pack(">Q", budget.usage(int.from_bytes(body, "big")))
        case b"T":  # the number of a thousand reservations that are granted
            return str(sum(budget.reserve(0, 512) for _ in range(1000))).encode()
        case b"d":
            return repr(devices).encode()
        case b"l":
            log(body.decode())
            return b""
        case b"o":
            return try_open(body)
        case b"w":  # leave a file where compiled kernels are kept
            name, _, content = body.partition(b"\0")
            directory = Path(os.environ["CUPY_CACHE_DIR"])
            directory.mkdir(exist_ok=True)
            return try_write(directory / os.fsdecode(name), content)
        case b"m":  # the kernels at hand
            directory = Path(os.environ["CUPY_CACHE_DIR"])
            return b"\n".join(os.fsencode(p.name) for p in sorted(directory.glob("*")))
        case b"v":
            return os.environb.get(body, b"unset")
        case b"i":
            return describe_process()
        case b"c":  # start a child that outlives this process, if it is let
            child = subprocess.Popen(["/bin/sleep", "300"], process_group=0)
            return str(child.pid).encode()
        case b"O":  # and one whose parent has ended
            code = "import subprocess as s; n = s.DEVNULL; print("
            code += "s.Popen(['/bin/sleep', '300'], stdout=n, stderr=n).pid)"
            words = [sys.executable, "-ISc", code]
            return subprocess.run(words, check=True, capture_output=True).stdout
        case b"S":
            ctypes.string_at(0)
        case b"X":
            os._exit(int(body or b"7"))
        case b"!":
            raise RuntimeError("the door fell off")
        case b"z":  # busy with nobody's work
            threading.Event().wait()
        case b"k":
            return try_kill(int(body))
        case b"g":  # speak to the host over the door's head
            os.write(int(sys.argv[1]), body)
            return b""
        case b"q":
            socket.socket(fileno=int(sys.argv[1])).shutdown(socket.SHUT_WR)
            threading.Event().wait()
        case b"x":  # run Python code that tries things; ``answer`` is what it says
            names: dict[str, Any] = {"budget": budget, "answer": ""}
            exec(body, names)
            return str(names["answer"]).encode()
        case b"p":
            os.write(2, body)
            return b""
        case _:
            raise ValueError(command)
    return b""


def execute(tally: Any, milliseconds: int) -> None:
    """Count as the array door does on an emulated GPU, for an answer that takes so long."""
    tally.executed_ns = tally.executed_ns or 0
    began = time.perf_counter_ns()
    tally.begin()
    time.sleep(milliseconds / 1000)
    tally.answered(began)
    tally.end()


def try_open(path: bytes) -> bytes:
    try:
        return Path(os.fsdecode(path)).read_bytes()[:100]
    except OSError as error:
        return type(error).__name__.encode()


def try_write(path: Path, content: bytes) -> bytes:
    try:
        path.write_bytes(content)
    except OSError as error:
        return type(error).__name__.encode()
    return b"written"


def name_thread(name: bytes) -> bytes:
    """Name this thread as the CUDA driver names its own: with O_TRUNC."""
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    try:
        comm.write_bytes(name)
    except OSError as error:
        return type(error).__name__.encode()
    return comm.read_bytes().strip()


def try_kill(pid: int) -> bytes:
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        return type(error).__name__.encode()
    return b"killed"


def is_of_libffi(number: str) -> bool:
    """Return whether a descriptor is the one that libffi keeps of itself, from 3.5 on."""
    try:
        return "libffi" in os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:  # the folder that was being listed
        return False


def describe_process() -> bytes:
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    kept = {name: " ".join(fields[name].split()) for name in ("Uid", "Groups", "NoNewPrivs")}
    lines: list[str] = []
    for path in Path("/proc/self/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            lines += path.read_text().splitlines()
    kept["CapEff of threads"] = " ".join(x.split()[1] for x in lines if x.startswith("CapEff:"))
    kept["cwd"] = str(Path.cwd())
    kept["environment"] = " ".join(sorted(os.environ))
    opened = (number for number in os.listdir("/proc/self/fd") if not is_of_libffi(number))
    kept["fds"] = " ".join(sorted(opened, key=int))
    return "\n".join(f"{name}={value}" for name, value in kept.items()).encode()
