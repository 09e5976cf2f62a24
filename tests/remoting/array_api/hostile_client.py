"""Sessions of a client of the array door that means harm, each drawn from a seed.

    python tests/remoting/array_api/hostile_client.py FIRST COUNT

Serves each as a worker does, over emulated memory of 64 MiB. It ends with an error when a session
ends other than by the door's rules, has more memory than it may, or leaves some reserved.
"""

import collections
import os
import random
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cbor2
from door_kit import MIB, MemoryBudget, PlayedStream, emulated

from gpupool.remoting.array_api.server import array_wire as wire
from gpupool.remoting.array_api.server.serve import serve

PARTITION = 64 * MIB
ADDRESSES_MAX = 4 << 30
SESSION_S = 5.0
"""Of processor time: a call may go on as long as a kernel may, such as a difference of order 2**40.
"""

EDGES = (
    *(0, 1, 2, -1, 7, 8, 255),
    *(1 << 16, 1 << 31, 1 << 40, (1 << 62) - 1, -(1 << 62), (1 << 63) - 1),
)
DTYPES = ("<f8", "<i4", "|b1", "<c16", "|u1", "<f2", "<U3", "O", "<f8,<f8", "x")
WORDS = ("C", "F", "same_kind", "x" * 200, "sum", "ij,jk->ik", "\x1b[2J", "..", "<f8")
KEYWORDS = ("axis", "dtype", "out", "shape", "order", "k", "casting", "x" * 50)
GOOD = wire.FIRST_META + 50


def frame(
    kind: int, body: bytes = b"", *, request: int = 0, length: int = -1, bulk: int = 0
) -> bytes:
    size = len(body) if length < 0 else length
    return wire.HEADER.pack(size, kind, 0, 0, request, 1, bulk) + body


def sized(code: int, body: Any) -> bytes:
    packed = cbor2.dumps(body)
    return wire.SIZED_RECORD.pack(code, len(packed)) + packed


class Hostile:
    """The messages of one hostile client."""

    def __init__(self, seed: int, names: list[str]) -> None:
        self.draw = random.Random(seed)
        self.names = names
        self.metas = [0, 1, GOOD]
        self.handles: list[int] = []
        self.next_handle = 100

    def size(self) -> int:
        if self.draw.random() < 0.3:
            return self.draw.choice((1000, 1 << 20, 1 << 31, 1 << 40, 1 << 61))
        return self.draw.randrange(6)

    def meta(self, number: int) -> bytes:
        shape = [self.size() for _ in range(self.draw.choice((0, 1, 1, 2, 2, 3, 5, 32, 64)))]
        strides = [self.draw.choice((0, 8, -8, 64, 1 << 40)) for _ in shape]
        self.metas.append(number)
        return sized(wire.META, [number, self.draw.choice(DTYPES[:6]), shape, strides])

    def node(self, depth: int = 0) -> Any:
        """Return an argument: mostly an array, else anything."""
        chance = self.draw.random()
        if chance < 0.45:
            return "h"
        if chance < 0.6:
            return self.draw.choice("ifce")
        if chance < 0.75:
            return self.draw.choice((*EDGES, None, True, False))
        if chance < 0.85 and depth < 4:
            kind = self.draw.choice("ttls")
            count = 3 if kind == "s" else self.draw.randrange(4)
            return [kind, *(self.node(depth + 1) for _ in range(count))]
        if chance < 0.92:
            return ["q", self.draw.choice(WORDS)]
        return [self.draw.choice("dn"), self.draw.choice(DTYPES[:5])]

    def values(self, node: Any) -> bytes:
        """Return the bytes of an argument in a call's record."""
        match node:
            case "h":
                known = self.handles and self.draw.random() < 0.9995
                return struct.pack("<Q", self.draw.choice(self.handles) if known else 5)
            case "i":
                return struct.pack("<q", self.draw.choice(EDGES))
            case "f":
                return struct.pack("<d", self.draw.choice((0, 1.5, -1, 1e308, float("nan"))))
            case "c":
                return struct.pack("<dd", 1, float("nan"))
            case ["t" | "l" | "s", *parts]:
                return b"".join(map(self.values, parts))
            case ["n", str(dtype)]:
                return b"\xff" * int(dtype[2:])
            case _:
                return b""

    def call(self, number: int) -> bytes:
        outputs = self.draw.choice((0, 1, 1, 1, 2))
        arguments = [self.node() for _ in range(self.draw.choice((0, 1, 1, 2, 2, 3, 4)))]
        named = [[self.draw.choice(KEYWORDS), self.node()]] * (self.draw.random() < 0.25)
        operation = self.draw.randrange(len(self.names))
        template = sized(wire.TEMPLATE, [number, operation, outputs, arguments, named])
        ask = self.draw.random() < 0.4
        record = b""
        grouped = not ask and self.draw.random() < 0.4
        for _ in range(3 if grouped else 1):
            record += struct.pack("<I", number)
            record += b"".join(
                struct.pack("<I", self.draw.choice(self.metas)) for _ in range(outputs)
            )
            record += struct.pack("<Q", self.next_handle)
            record += b"".join(map(self.values, [*arguments, *(node for _, node in named)]))
            if not ask:
                self.handles += range(self.next_handle, self.next_handle + outputs)
            self.next_handle += outputs + 1
        if grouped:
            if len(self.handles) > 3 and self.draw.random() < 0.5:
                dropped = self.handles.pop(self.draw.randrange(len(self.handles)))
                record += wire.FREE_RECORD.pack(wire.FREE, dropped)
            length = len(record) + (self.draw.random() < 0.002)
            record = wire.SIZED_RECORD.pack(wire.GROUP, length) + record
        both = bytearray(template + record)
        if self.draw.random() < 0.002:
            both[self.draw.randrange(len(both))] ^= 1 << self.draw.randrange(8)
        return frame(wire.Kind.ASK if ask else wire.Kind.CALLS, bytes(both), request=number)

    def upload(self) -> bytes:
        bulk = self.draw.choice((0, 32, MIB, 1 << 40, wire.MAX_BULK + 1))
        body = cbor2.dumps([self.next_handle, self.draw.choice(self.metas), False])
        self.next_handle += 1
        return frame(wire.Kind.PUT, body, bulk=bulk) + bytes(min(bulk, MIB))

    def odd(self) -> bytes:
        """Return now and then a frame that is none."""
        chance = self.draw.random()
        if chance < 0.002:
            return self.upload()
        if chance < 0.003:
            return frame(self.draw.randrange(30), self.draw.randbytes(20))
        if chance < 0.004:
            return frame(wire.Kind.CALLS, b"x", length=wire.MAX_BODY + 1)
        return b""

    def session(self) -> bytes:
        numbers = range(wire.FIRST_META, wire.FIRST_META + self.draw.randrange(1, 6))
        start = sized(wire.META, [GOOD, "<f8", [4], [8]])
        for _ in range(3):
            start += wire.PUT_RECORD.pack(wire.INLINE_PUT, self.next_handle, GOOD, 32)
            start += struct.pack("<4d", 1, 2, 3, 4)
            self.handles.append(self.next_handle)
            self.next_handle += 1
        said = frame(wire.Kind.CALLS, start)
        for number in numbers:
            said += frame(wire.Kind.CALLS, self.meta(number)) if self.draw.random() < 0.4 else b""
        for at in range(self.draw.randrange(20, 300)):
            said += self.call(wire.FIRST_TEMPLATE + at) + self.odd()
        return said


class Wire(PlayedStream):
    """The worker's stream: after the welcome it has a session of the seed."""

    def __init__(self, seed: int) -> None:
        hello = cbor2.dumps({"protocol": wire.PROTOCOL, "peers": None})
        super().__init__(frame(wire.Kind.HELLO, hello, request=1))
        self._seed: int | None = seed

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        if self._seed is not None:
            names = cbor2.loads(b"".join(buffers)[wire.HEADER.size :])["operations"]
            self.rest = memoryview(Hostile(self._seed, names).session())
            self._seed = None


def attack(seed: int) -> str:
    """Serve one session; return how it ended, and how many calls were executed."""
    budget, log = MemoryBudget([PARTITION]), list[str]()
    stream: Any = Wire(seed)
    serve(stream, emulated(1, PARTITION), budget, log.append)
    if budget.used != [0]:
        sys.exit(f"the session of seed {seed} left {budget.used} bytes reserved")
    end = log[-1].removeprefix("array session: ").partition("(")[0] if log else "heard to its end"
    return f"{stream.calls} {end[:60]}"


def apart(seeds: range) -> list[str]:
    """Serve sessions in one process, as a worker is, until one computes for long, which ends it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for seed in seeds:
            signal.setitimer(signal.ITIMER_VIRTUAL, SESSION_S)
            os.write(writer, attack(seed).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        said = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGVTALRM:
        return [*said, "0 ended while a call went on"]
    return said if status == 0 else [*said, f"ended its worker with status {status}"]


def main() -> None:
    first, count = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_MAX, ADDRESSES_MAX))
    said: list[str] = []
    while len(said) < count:
        said += apart(range(first + len(said), first + count))
        if not said[-1][0].isdigit():
            sys.exit(f"the session of seed {first + len(said) - 1} {said[-1]}")
    calls = sum(int(line.partition(" ")[0]) for line in said)
    ends = collections.Counter(line.partition(" ")[2] for line in said)
    print(f"{count} sessions, {calls} calls:", dict(ends.most_common(8)))


if __name__ == "__main__":
    main()
