"""Gives the worker's real code records that no shim sends; runs in a process with the fake driver.

    hostile.py SEED COUNT

Prints how each session ended, if it was in any other way than with a word about the client, and the
most memory that was used, in MiB.
"""

import ctypes
import random
import re
import struct
import sys
import threading
from pathlib import Path

from loopback import CountingBudget
from test_cuda_door import MEMORY, ScriptedStream, frame, record

from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.driver_api.executor.serve import serve
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.layout import HEADER, Record, fields_of
from gpupool.remoting.driver_api.schema.records import NUMBERS, RECORDS

EDGES = [0, 1, 2, 8, 64, 255, 4096, 65536, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 47]
LIMITS = [(1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]
MADE = range(64, 72)
"""Handles that sessions give to new objects, so that they find these again."""

SPEC = DeviceSpec(0, "GPU-0", "GPU", MEMORY, emulated=False, ordinal=0)


def rows() -> dict[int, Record]:
    """Return the rows of all records that are executed, by their numbers."""
    found = {NUMBERS[record.name]: record for record in RECORDS}
    del found[NUMBERS["COPY_2D"]]
    for op, (name, tokens, asked) in table.CALLS.items():
        words = " ".join(f"word_{at}" for at in range(len(tokens.split())))
        found[op] = Record(name, fields_of(words), asked)
    return found


def tail_of(rng: random.Random, record: Record, values: dict[str, int]) -> bytes:
    """Return bytes behind the fields of a record: mostly as many as these say."""
    tail = record.tail
    if tail is None or rng.random() < 0.1:
        return rng.randbytes(rng.choice((0, 0, 0, 8, 64)))
    if not tail.exact:
        return rng.randbytes(rng.choice((0, 8, 40, 128, 360)))
    size = tail.constant + sum(values[name] * unit for name, unit in tail.units)
    return rng.randbytes(min(size, 4096))


def frames(rng: random.Random, known: dict[int, Record]) -> bytes:
    """Return the frames of one session: mostly whole records, with words of all kinds."""
    found = frame(record("HELLO", 1, table.PROTOCOL, 13000, flags=1))
    for request in range(2, rng.randrange(3, 40)):
        op = rng.choice(sorted(known))
        row = known[op]
        counts = {name for name, _ in row.tail.units} if row.tail else set[str]()
        words: list[int] = [request] if row.asked else []
        values: dict[str, int] = {}
        for field in row.fields:
            few = field.name in counts and rng.random() < 0.8
            for _ in range(max(field.count, 1)):
                edge = rng.choice((0, 1, 2, 8)) if few else rng.choice(EDGES + LIMITS)
                value = edge if few else rng.choice((edge, rng.choice(MADE)))
                values[field.name] = value % (1 << 32 if field.type == "u32" else 1 << 64)
                words.append(values[field.name])
        bulk = bytes(rng.choice((0, 8, 64, 4096))) if row.bulk or rng.random() < 0.1 else b""
        if bulk and row.fields and rng.random() < 0.7:
            words[rng.randrange(len(words))] = len(bulk)
        layout = "<" + "Q" * row.asked + row.struct.format.removeprefix("<").replace("q", "Q")
        fields = struct.pack(layout, *fitting(layout, words))
        content = fields + tail_of(rng, row, values)
        content += bytes(-len(content) % 8)
        body = bytearray(HEADER.pack(op, row.asked, HEADER.size + len(content)) + content)
        if rng.random() < 0.03:
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        found += frame(bytes(body), bulk=bulk)
    return found


def fitting(layout: str, words: list[int]) -> list[int]:
    """Return words cut to the fields of a layout."""
    kinds = "".join(kind * int(count or 1) for count, kind in re.findall(r"(\d*)([QI])", layout))
    limits = {"Q": 1 << 64, "I": 1 << 32}
    return [word % limits[kind] for kind, word in zip(kinds, words, strict=True)]


def status() -> list[str]:
    return Path("/proc/self/status").read_text(encoding="utf-8").splitlines()


def main() -> None:
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    threading.excepthook = lambda found: print("thread:", repr(found.exc_value))
    known = rows()
    seed, count = map(int, sys.argv[1:])
    for at in range(seed, seed + count):
        stream, said = ScriptedStream(frames(random.Random(at), known)), list[str]()
        try:
            serve(stream, [SPEC], CountingBudget(MEMORY), said.append)
        except Exception as error:  # noqa: BLE001 - all that is not said of the client
            print(f"{at}: {error!r}")
        assert stream.closed
    # ``ru_maxrss`` would be that of the process which started this one, where it is larger.
    print(next(int(line.split()[1]) >> 10 for line in status() if line.startswith("VmHWM:")))


if __name__ == "__main__":
    main()
