"""Suspends processes by the driver's checkpoint functions, for ``suspend_probe.py``.

Each call is made by a process of its own (``--caller``), with a deadline.
"""

import contextlib
import ctypes
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB, GIB = 1 << 20, 1 << 30
STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}
BEGAN = time.monotonic()


def say(*words: object) -> None:
    print(f"[{time.monotonic() - BEGAN:5.1f}]", *words, flush=True)


class RestoreArguments(ctypes.Structure):
    _fields_ = [
        ("pairs", ctypes.c_void_p),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_char * 44),
        ("reserved1", ctypes.c_uint64),
    ]


def caller_main(arguments: list[str]) -> None:
    """Call the driver as lines of ``NAME PID [MORE]`` say, and answer each with a line."""
    library = ctypes.CDLL("libcuda.so.1")
    uid = int(arguments[0])
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if caps := next((each for each in arguments if each.startswith("caps=")), ""):
        mask = int(caps.removeprefix("caps="), 16)
        words = (mask & 0xFFFFFFFF, mask & 0xFFFFFFFF, 0, mask >> 32, mask >> 32, 0)
        header, data = (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)(*words)
        assert ctypes.CDLL(None).capset(header, data) == 0
    first = library.cuInit(0) if "noinit" not in arguments else "none"
    print("init", first, flush=True)
    for line in sys.stdin:
        name, pid, *more = line.split()
        start, value = time.monotonic(), ctypes.c_int(-1)
        if name in ("GetState", "GetRestoreThreadId"):
            argument: object = ctypes.byref(value)
        elif name == "Lock":
            argument = (ctypes.c_uint * 16)(int(more[0]) if more else 5000)
        elif name == "Restore" and more:
            pairs = ctypes.create_string_buffer(bytes.fromhex("".join(more)))
            argument = ctypes.byref(RestoreArguments(ctypes.addressof(pairs), len(pairs.raw) // 32))
        else:
            argument = (ctypes.c_uint64 * 9)()
        result = getattr(library, f"cuCheckpointProcess{name}")(int(pid), argument)
        print(result, value.value, round(time.monotonic() - start, 3), flush=True)


class Lines:
    """A process that answers a line with a line."""

    def __init__(
        self, *arguments: str, env: dict[str, str] | None = None, quiet: bool = False
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env=os.environ | (env or {}),
        )
        self._left = b""

    def read(self, seconds: float) -> str | None:
        """Return the next line; None when there is none in time, empty at its end."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._left:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return ""
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        return line.decode()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def ask(self, line: str, seconds: float = 10.0) -> str:
        self.write(line)
        answer = self.read(seconds)
        return "no answer (waits)" if answer is None else answer or "it has ended"

    def wait_for(self, word: str, seconds: float = 40.0) -> str:
        while True:
            line = self.read(seconds)
            if not line:
                raise RuntimeError(f"no {word!r}: {line!r}, exit {self.process.poll()}")
            if line.startswith(word):
                return line
            say("   target:", line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Caller:
    """Calls the driver for a target, with a deadline."""

    def __init__(self, uid: int = 0, *more: str) -> None:
        self._arguments = (str(HERE / "suspend_kit.py"), "--caller", str(uid), *more)
        self.lines = Lines(*self._arguments)
        self.first = self.lines.read(20)

    def call(self, name: str, pid: int, *more: str, seconds: float = 12.0) -> str:
        answer = self.lines.ask(" ".join((name, str(pid), *more)), seconds)
        if answer.startswith("no answer"):
            self.lines.end()
            self.lines = Lines(*self._arguments)
            self.lines.read(20)
            return f"{name}: HANGS ({seconds:.0f} s)"
        if answer == "it has ended":
            return f"{name}: the caller has ended, exit {self.lines.process.poll()}"
        result, value, took = answer.split()
        text = f" {STATES.get(int(value), value) if name == 'GetState' else value}"
        return f"{name}: {result}{text if int(value) >= 0 else ''} {took} s"

    def out(self, pid: int, seconds: float = 12.0) -> str:
        return "; ".join(self.call(each, pid, seconds=seconds) for each in ("Lock", "Checkpoint"))

    def back(self, pid: int, seconds: float = 12.0) -> str:
        return "; ".join(self.call(each, pid, seconds=seconds) for each in ("Restore", "Unlock"))

    def end(self) -> None:
        self.lines.end()


@contextlib.contextmanager
def target(kind: str, env: dict[str, str] | None = None, **options: object) -> Generator[Lines]:
    words = [f"{name}={value}" for name, value in options.items()]
    lines = Lines(str(HERE / "suspend_target.py"), kind, *words, env=env)
    try:
        lines.wait_for("ready")
        yield lines
    finally:
        lines.end()


def used(index: int = 0) -> str:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    return f"{text[index]} MiB"


def memory(pid: int) -> str:
    names = ("VmSize", "VmRSS", "RssAnon", "RssFile", "RssShmem", "VmLck", "VmPin")
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return ", ".join(f"{name} {int(status[name].split()[0]) // 1024}" for name in names) + " MiB"


def largest(pid: int, count: int = 3) -> list[str]:
    """Return the largest mappings in use, with the kernel's figures for them."""
    found: list[tuple[int, str]] = []
    head = ""
    size = huge = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line[:1] in "0123456789abcdef" and "-" in line.split()[0]:
            head = line
        elif line.startswith("Rss:"):
            size = int(line.split()[1])
        elif line.startswith("AnonHugePages:"):
            huge = int(line.split()[1])
        elif line.startswith("VmFlags:"):
            flags = line.split(":")[1].strip()
            found.append((size, f"{size // 1024} MiB, huge {huge // 1024}, {head} [{flags}]"))
    return [text for _, text in sorted(found, reverse=True)[:count]]


def round_trip(caller: Caller, lines: Lines, name: str, seconds: float = 12.0) -> None:
    """Suspend and resume one target twice, and compare the sums of its memory."""
    pid = lines.process.pid
    before = lines.ask("sum")
    for _ in range(2):
        say(name, "|", caller.out(pid, seconds), "| used", used(), "|", memory(pid))
        say(name, "|", caller.call("GetState", pid), "|", caller.back(pid, seconds))
        say(name, "| before", before, "| after", lines.ask("sum"), "| more", lines.ask("more"))


if __name__ == "__main__":
    caller_main(sys.argv[2:])
